"""Rewrites the training text as a teacher translates it: sequence-level distillation (Stern et al.
2018, sec. 6.2); or the training images as the base writes them.

  python -m experiments.distill --config=configs/wmt14.py:scale=tiny --teacher=out/teacher \\
    --workdir=out/distil
  python -m experiments.distill --config=configs/celeba.py:scale=tiny --teacher=out/images/base \\
    --workdir=out/own

The result is workdir/train.en and workdir/train.de (as the config names the languages), of images
workdir/images.npz, whole when there is a config.json. Killed or out of budget, the same command
continues.
"""

import pathlib

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14', 'celeba')
TEACHER = flags.DEFINE_string(
  'teacher', None, 'folder of the finished run that writes', required=True
)
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for what it writes', required=True)
LIMIT_TIME = cli.budget_flag()
cli.process_flags()


def main(_: list[str]) -> None:
  from experiments import stern2018
  from experiments.lab.config import to_dataclass
  from fastdec.training import stage
  from fastdec.training.processes import is_first

  paper, settings = stern2018.half(CONFIG.value)
  c, workdir = to_dataclass(settings, CONFIG.value), pathlib.Path(WORKDIR.value)
  with LIMIT_TIME():
    try:
      outcome = paper.distil(c, pathlib.Path(TEACHER.value), workdir)
    except stage.OutOfTime:
      outcome = f'Out of budget: the same command continues in {workdir}'
  if is_first():
    print(outcome)


if __name__ == '__main__':
  cli.run(main)
