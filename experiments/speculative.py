"""Speculative decoding, theory against practice: Tables 2 and 3 of Leviathan et al. 2022, beside
our own figures.

  python -m experiments.speculative --config=configs/speculative.py:scale=smoke,task=translation
  --workdir=out/spec [--budget=540s]

Trains a target and two draft models where they are missing, then measures. In the workdir: target/,
large/, small/ (one run each), results.jsonl (one line a cell), speculative.md, .png. Finished cells
are skipped, an interrupted run goes on where it was, several processes on one workdir share the
work, and what failed is shown as failed (exit code 1) while the rest goes on.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('speculative')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the tables and their runs', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab import report
  from experiments.papers.leviathan2022 import figure, settings, tables
  from experiments.papers.leviathan2022.page import SpeculativePage
  from fastdec.files import write_text

  budget = cli.seconds(BUDGET.value)
  experiment, workdir = settings.experiment_of(CONFIG.value), pathlib.Path(WORKDIR.value)
  page = SpeculativePage(experiment, workdir, budget, cli.conditions())
  outcome = page.fill()
  if found := page.cells():
    drawn = tables.speed_table(found), tables.alpha_table(found)
    picture = '\n![Measured against predicted](speculative.png)\n'
    write_text(workdir / 'speculative.md', '\n'.join(map(report.markdown, drawn)) + picture)
    figure.predictions(found, workdir / 'speculative.png')
    for table in drawn:
      page.console.print(report.markdown(table))  # too wide for a terminal's table
    paths = f'{workdir}/speculative.md, the picture {workdir}/speculative.png'
    page.console.print(f'\nThe tables are {paths}, every cell a line of {page.results}')
  page.end(outcome)


if __name__ == '__main__':
  cli.run(main)
