"""Figure 4 of Stern et al. 2018: wall-clock speed-up against mean accepted block size, on the test
set.

  python -m experiments.figure4 --config=configs/wmt14.py:scale=multi30k --workdir=out/multi30k
  [--budget=1h]

Shares its workdir, runs and cells with Tables 1 and 4: trains and measures what is missing, and
writes figure4.png and figure4.csv.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the tables and their runs', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.papers.stern2018 import entries, figures, published, text_page, text_settings
  from fastdec.files import write_text

  budget = cli.seconds(BUDGET.value)
  experiment, workdir = (
    text_settings.TranslationExperiment.of(CONFIG.value),
    pathlib.Path(WORKDIR.value),
  )
  asked = text_page.figure4_cells(experiment)
  page = text_page.TranslationPage(experiment, workdir, budget, cli.conditions(), asked)
  outcome, found = page.fill(), page.cells()
  if found:
    figures.speedups(found, workdir / 'figure4.png')
    write_text(workdir / 'figure4.csv', entries.tidy_csv(found, published.TABLE1))
    page.console.print(f'The picture is {workdir}/figure4.png, its points {workdir}/figure4.csv')
  page.end(outcome)


if __name__ == '__main__':
  cli.run(main)
