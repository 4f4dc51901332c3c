"""Trains one run: the base model (k = 1), or prediction heads for block size k on a finished base.

  python -m experiments.train --config=configs/wmt14.py:scale=tiny --workdir=out/base
  python -m experiments.train --config=configs/wmt14.py:k=8,tune=freeze --config.base=out/base --workdir=out/k8

Killed or out of budget, it goes on where it was; the result is workdir/model.
"""

from absl import flags

from experiments import cli

CONFIG = cli.config_flag()
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the run', required=True)
BUDGET = cli.budget_flag()


def main(words: list[str]) -> None:
  import pathlib

  from experiments import translation
  from fastdec.errors import UserError
  from fastdec.training.checkpoint import claim_workdir

  experiment = translation.Experiment.of(CONFIG.value)
  workdir, budget = pathlib.Path(WORKDIR.value), cli.seconds(BUDGET.value)
  if experiment.k > 1 and not experiment.base:
    raise UserError(f'heads for k={experiment.k} are trained on a base model: name its workdir by --config.base=...')
  claim_workdir(workdir, CONFIG.value.to_dict())
  if translation.is_finished(workdir):
    print(f'{workdir} is finished: its model is in {workdir}/model')
  elif experiment.k == 1:
    _say(workdir, translation.train_base(experiment, workdir, budget))
  else:
    _say(workdir, translation.train_heads(experiment, experiment.k, experiment.tune, experiment.base, workdir, budget))


def _say(workdir: object, is_finished: bool) -> None:
  print(f'The model is in {workdir}/model' if is_finished else f'Out of budget: the same command goes on in {workdir}')


if __name__ == '__main__':
  cli.run(main)
