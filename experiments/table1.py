"""Table 1 of Stern et al. 2018: trains what is missing, measures what is missing, writes the table
and the picture.

  python -m experiments.table1 --config=configs/wmt14.py:scale=tiny --workdir=out/quickstart
  [--budget=540s]

In the workdir: the runs (see papers/stern2018/page.py), results.jsonl (one line a cell), table1.md,
.csv, .png. Finished cells are skipped, an interrupted run goes on where it was, several processes
on one workdir share the work, and what failed is shown as failed (exit code 1) while the rest goes
on.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the table and its runs', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab import report
  from experiments.papers.stern2018 import (
    entries,
    figures,
    kinds,
    published,
    show,
    text_page,
    text_settings,
  )

  budget = cli.seconds(BUDGET.value)
  experiment, workdir = (
    text_settings.TranslationExperiment.of(CONFIG.value),
    pathlib.Path(WORKDIR.value),
  )
  asked = text_page.table1_cells(experiment)
  page = text_page.TranslationPage(experiment, workdir, budget, cli.conditions(), asked)
  outcome, found = page.fill(), page.cells()
  if not found:
    page.end(outcome)
  drawn = [one for one in (make(found) for make in kinds.KINDS['translation'].tables) if one.rows]
  entries.write(drawn, found, workdir / 'table1', picture='table1.png', published=published.TABLE1)
  figures.scatter(found, workdir / 'table1.png')
  for one in drawn:
    page.console.print(report.terminal(one))
  trained = [one for one in asked if one.k > 1 and page.model_of(one.k, one.regime)]
  if trained and outcome.is_complete and page.has_measured:
    k, regime = trained[-1].k, trained[-1].regime  # the longest blocks to be expected
    page.console.rule(f'k = {k}, {regime}, exact: what each call of the model wrote', align='left')
    show.print_examples(page.console, page.measuring, page.run(k, regime).workdir, k)
  paths = f'{workdir}/table1.md, the picture {workdir}/table1.png'
  page.console.print(f'\nThe table is {paths}, every cell a line of {page.results}')
  if said := show.in_short(found):
    page.console.print(f'The fastest exact decoding here: {said}')
  page.end(outcome)


if __name__ == '__main__':
  cli.run(main)
