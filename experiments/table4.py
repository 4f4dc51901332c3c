"""Table 4 of Stern et al. 2018: BLEU on the test set and single-sentence speed-up, per k, all of it
distilled.

  python -m experiments.table4 --config=configs/wmt14.py:scale=multi30k --workdir=out/multi30k
  [--budget=1h]

Shares its workdir, runs and cells with Table 1: trains and measures what is missing, and writes
table4.md, table4.csv and figure4.png, which shows the same cells (see experiments/figure4.py).
Beside ours stand the paper's figures and the rivals that it quotes.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the tables and their runs', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab import report
  from experiments.papers.stern2018 import (
    entries,
    figures,
    published,
    tables,
    text_page,
    text_settings,
  )

  budget = cli.seconds(BUDGET.value)
  experiment, workdir = (
    text_settings.TranslationExperiment.of(CONFIG.value),
    pathlib.Path(WORKDIR.value),
  )
  asked = text_page.table4_cells(experiment)
  page = text_page.TranslationPage(experiment, workdir, budget, cli.conditions(), asked)
  outcome, found = page.fill(), page.cells()
  if found:
    drawn = tables.table4(found)
    entries.write(
      [drawn], found, workdir / 'table4', picture='figure4.png', published=published.TABLE1
    )
    figures.speedups(found, workdir / 'figure4.png')
    page.console.print(report.terminal(drawn))
    page.console.print(f'\nThe table is {workdir}/table4.md, the picture {workdir}/figure4.png')
  page.end(outcome)


if __name__ == '__main__':
  cli.run(main)
