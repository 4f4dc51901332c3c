"""What incremental decoding saves: without a cache, with one driven from the host, with the whole
loop on the device.

  python -m experiments.incremental --config=configs/incremental.py:scale=small
  --workdir=out/incremental [--budget=9m]

Measures time per token against length, FasterTransformer's tables (Decoder against Decoding), what
a step launches and the encoder alone, all with random weights. In the workdir: results.jsonl (one
line a cell), incremental.md, .csv, .png. Finished cells are skipped, an interrupted run goes on
where it was, and what failed is shown as failed (exit code 1) while the rest goes on. An idle
machine is asked for: rounds run in turn, but times are the machine's.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('incremental')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the tables', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab import report
  from experiments.lab.cells import flat, latest
  from experiments.papers.incremental import figure, tables
  from experiments.papers.incremental.page import IncrementalPage
  from experiments.papers.incremental.settings import IncrementalExperiment
  from fastdec.files import write_text

  budget = cli.seconds(BUDGET.value)
  experiment, workdir = IncrementalExperiment.of(CONFIG.value), pathlib.Path(WORKDIR.value)
  page = IncrementalPage(experiment, workdir, budget, cli.conditions())
  outcome = page.fill()
  found = page.cells()
  if found:
    drawn = [report.markdown(table) for table in tables.tables(found)]
    has_picture = any(cell.part == 'growth' and cell.error is None for cell in found)
    if has_picture:
      figure.draw(found, workdir / 'incremental.png')
      drawn.append('![Time per token against length](incremental.png)\n')
    write_text(workdir / 'incremental.md', '\n'.join(drawn))
    rows = [flat(cell) for cell in latest(found).values()]
    write_text(workdir / 'incremental.csv', report.csv_text(rows))
    page.console.print('\n'.join(drawn))
    page.console.print(
      f'The tables are {workdir}/incremental.md and .csv, every cell a line of {page.results}'
    )
  page.end(outcome)


if __name__ == '__main__':
  cli.run(main)
