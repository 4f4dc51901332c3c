"""Lookahead decoding (Fu et al. 2024): its sizes swept, its pool taken apart, beside Jacobi and
prompt lookup.

  python -m experiments.lookahead --config=configs/lookahead.py:scale=smoke,task=lm \\
    --workdir=out/lookahead-smoke
  python -m experiments.lookahead --config=configs/lookahead.py:scale=multi30k,task=code \\
    --workdir=out/lookahead-code

Trains one small model, if it is missing (or takes that of --config.base), and measures every size
and pool against plain greedy decoding in turn; with --config.measure.repeats=0 it counts tokens and
times nothing, and the same command with more repeats adds the times. In the workdir: model/ (a
run), results.jsonl (one line a cell), lookahead.md, .png; of task=code also code/, the source files
of this repository as passages. Finished cells are skipped, an interrupted run goes on where it was,
several processes on one workdir share the work, and what failed is shown as failed (exit code 1)
while the rest goes on.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('lookahead')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the table and its run', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab import report
  from experiments.papers.fu2024 import figure, settings, tables
  from experiments.papers.fu2024.page import LookaheadPage
  from fastdec.files import write_text

  budget, workdir = cli.seconds(BUDGET.value), pathlib.Path(WORKDIR.value)
  experiment = settings.experiment_of(CONFIG.value, workdir)
  page = LookaheadPage(experiment, workdir, budget, cli.conditions())
  outcome = page.fill()
  if found := page.cells():
    drawn = tables.speed_table(found)
    picture = '\n![Tokens a call against nodes](lookahead.png)\n'
    write_text(workdir / 'lookahead.md', report.markdown(drawn) + picture)
    figure.tokens_by_nodes(found, workdir / 'lookahead.png')
    page.console.print(report.markdown(drawn))  # too wide for a terminal's table
    paths = f'{workdir}/lookahead.md, the picture {workdir}/lookahead.png'
    page.console.print(f'\nThe table is {paths}, every cell a line of {page.results}')
  page.end(outcome)


if __name__ == '__main__':
  cli.run(main)
