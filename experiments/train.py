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

  from experiments import training, translation
  from fastdec.errors import UserError

  budget = cli.seconds(BUDGET.value)
  experiment = translation.Experiment.of(CONFIG.value)
  workdir = pathlib.Path(WORKDIR.value)
  if experiment.k > 1 and not experiment.base:
    raise UserError(f'heads for k={experiment.k} are trained on a base model: name its workdir by --config.base=...')
  training.check_run(experiment, experiment.k, experiment.tune, workdir)
  if training.is_finished(workdir):
    print(f'{workdir} is finished: its model is in {workdir}/model')
    return
  base = pathlib.Path(experiment.base)
  if training.train_run(experiment, experiment.k, experiment.tune, base, workdir, budget):
    print(f'The model is in {workdir}/model')
  else:
    print(f'Out of budget: the same command goes on in {workdir}')


if __name__ == '__main__':
  cli.run(main)
