"""The worked example of Stern et al. 2018 (section 7.4): which tokens each call of the model
accepted.

  python -m experiments.example --config=configs/wmt14.py:scale=multi30k --workdir=out/multi30k
  python -m experiments.example --config=configs/wmt14.py:scale=tiny,k=4,regime=finetune
  --workdir=... "A sentence."

Translates the sentence, or else the longer half's sentence of the test set that needs the fewest
calls for its length. Without k in the config it is the table's largest k and last regime; the model
is trained before if need be. Writes example.txt and example.png.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the tables and their runs', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.papers.stern2018 import example, show, text_page, text_settings
  from fastdec.errors import UserError
  from fastdec.files import write_text

  budget = cli.seconds(BUDGET.value)
  experiment, workdir = (
    text_settings.TranslationExperiment.of(CONFIG.value),
    pathlib.Path(WORKDIR.value),
  )
  if len(words) > 1:
    raise UserError(f'there are {len(words)} sentences, and one makes an example: put it in quotes')
  ks, regimes = experiment.table.ks, experiment.table.regimes
  k, regime = (experiment.k, experiment.regime) if experiment.k > 1 else (max(ks), regimes[-1])
  if k not in ks or regime not in regimes:
    here = f'k in {ks} and regime in {regimes}'
    raise UserError(
      f'the table has no cell k={k}, regime={regime}: give {here}, or change the'
      ' table by --config.table'
    )
  asked = [text_page.ModelCells(k, regime, (), 'test')]
  page = text_page.TranslationPage(experiment, workdir, budget, cli.conditions(), asked)
  outcome = page.fill()
  if outcome.failed or not outcome.is_complete:
    page.end(outcome)
  source, blocks = show.worked_example(page.measuring, page.run(k, regime).workdir, k, *words)
  text = example.as_text(source, blocks)
  write_text(workdir / 'example.txt', text)
  example.picture(source, blocks, workdir / 'example.png')
  page.console.print(
    f'{text}\nIt is in {workdir}/example.txt, as a picture in {workdir}/example.png'
  )


if __name__ == '__main__':
  cli.run(main, words=True)
