"""Trains one run: a base model (k = 1), or prediction heads for block size k on a finished base.

  python -m experiments.train --config=configs/wmt14.py:scale=tiny --workdir=out/base
  python -m experiments.train --config=configs/wmt14.py:k=8,regime=regular --config.base=out/base --workdir=out/k8
  python -m experiments.train --config=configs/wmt14.py:regime=distil --config.base=out/base \\
    --config.data.distilled=out/distilled --workdir=out/base-distil

Killed or out of budget, it goes on where it was; the result is workdir/model. On several devices:
--config.mesh.data=8; from several processes, each started with --coordinator=host:port --processes=2 --process=0 (1).
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag()
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the run', required=True)
BUDGET = cli.budget_flag()
CONNECT = cli.process_flags()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab.run import Run
  from experiments.papers.stern2018 import kinds
  from fastdec.training.processes import is_first

  budget = cli.seconds(BUDGET.value)
  CONNECT()
  experiment = kinds.experiment_of(CONFIG.value)
  base, workdir = pathlib.Path(experiment.base) if experiment.base else None, pathlib.Path(WORKDIR.value)
  run = Run(experiment, experiment.k, experiment.regime, base, workdir)
  run.check()
  if run.is_finished:
    said = f'{workdir} is finished: its model is in {workdir}/model'
  elif run.train(budget):
    said = f'The model is in {workdir}/model'
  else:
    said = f'Out of budget: the same command goes on in {workdir}'
  if is_first():
    print(said)


if __name__ == '__main__':
  cli.run(main)
