"""Medusa (Cai et al. 2024): heads on a language model, their trees, and what they gain, beside what
is published.

  python -m experiments.medusa --config=configs/medusa.py:scale=smoke --workdir=out/medusa-smoke
  [--budget=540s]

Trains a language model, heads on it frozen (Medusa-1) and heads together with it (Medusa-2), where
they are missing; grows a tree for each on the dev set, then measures chain, published tree and
calibrated trees against plain greedy decoding. In the workdir: target/, own/, medusa-1/, medusa-2/
(runs), medusa-1-tree.json and .png, results.jsonl (one line a cell), medusa.md. Finished cells are
skipped, an interrupted run goes on where it was, several processes on one workdir share the work,
and what failed is shown as failed (exit code 1) while the rest goes on.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('medusa')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the tables and their runs', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab import report
  from experiments.papers.cai2024 import tables
  from experiments.papers.cai2024.page import MedusaPage
  from experiments.papers.cai2024.settings import MedusaExperiment
  from fastdec.files import write_text

  budget = cli.seconds(BUDGET.value)
  experiment, workdir = MedusaExperiment.of(CONFIG.value), pathlib.Path(WORKDIR.value)
  page = MedusaPage(experiment, workdir, budget, cli.conditions())
  outcome = page.fill()
  drawn = [tables.speed_table(found)] if (found := page.cells()) else []
  for stage, one in page.calibrations().items():
    drawn += [
      tables.heads_table(one, stage.capitalize()),
      tables.widths_table(one, stage.capitalize()),
    ]
  if drawn:
    write_text(workdir / 'medusa.md', '\n'.join(map(report.markdown, drawn)))
    for table in drawn:
      page.console.print(report.markdown(table))  # too wide for a terminal's table
    trees = f'the trees {workdir}/medusa-1-tree.png and {workdir}/medusa-2-tree.png'
    page.console.print(
      f'\nThe tables are {workdir}/medusa.md, {trees}, every cell a line of {page.results}'
    )
  page.end(outcome)


if __name__ == '__main__':
  cli.run(main)
