"""Trains one run: a base model (k = 1), or, on a finished base, prediction heads for block size k
or a draft network.

  python -m experiments.train --config=configs/wmt14.py:scale=tiny --workdir=out/base
  python -m experiments.train --config=configs/wmt14.py:k=8,regime=regular --config.base=out/base \\
    --workdir=out/k8
  python -m experiments.train --config=configs/wmt14.py:regime=distil --config.base=out/base \\
    --config.data.distilled=out/distilled --workdir=out/base-distil
  python -m experiments.train --config=configs/drafts.py:scale=tiny,kind=eagle \\
    --config.base=out/base \\
    --config.data.own=out/own --workdir=out/eagle

Killed or out of budget, the same command continues; the result is workdir/model, of a draft network
workdir/draft. On several devices: --config.mesh.data=8; from several processes, each started with
--coordinator=host:port --processes=2
--process=0 (1).

Metrics are lines of workdir/metrics.jsonl, and in workdir/tb for TensorBoard.
"""

import pathlib

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14', 'celeba', 'drafts')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the run', required=True)
LIMIT_TIME = cli.budget_flag()
cli.process_flags()


def main(_: list[str]) -> None:
  from experiments import stern2018
  from experiments.lab import networks
  from experiments.lab.config import to_dataclass
  from fastdec.training import stage
  from fastdec.training.processes import is_first

  if 'kind' in CONFIG.value:
    settings, make = networks.settings_of(CONFIG.value.kind), networks.train_one
  else:
    paper, settings = stern2018.half(CONFIG.value)
    make = paper.train_run
  workdir = pathlib.Path(WORKDIR.value)
  with LIMIT_TIME():
    try:
      is_new = make(to_dataclass(settings, CONFIG.value), workdir)
      name = 'draft' if (workdir / 'draft').is_dir() else 'model'
      outcome = f'The {name} is in {workdir}/{name}'
      if not is_new:
        outcome = f'{workdir} is finished: its {name} is in {workdir}/{name}'
    except stage.OutOfTime:
      outcome = f'Out of budget: the same command continues in {workdir}'
  if is_first():
    print(outcome)


if __name__ == '__main__':
  cli.run(main)
