"""Rewrites the training text as a teacher translates it: sequence-level distillation (Stern et al.
2018, sec. 6.2); or the training images as the base writes them.

  python -m experiments.distill --config=configs/wmt14.py:scale=tiny --teacher=out/teacher \\
    --workdir=out/distil
  python -m experiments.distill --config=configs/celeba.py:scale=tiny --teacher=out/images/base \\
    --workdir=out/own

The result is workdir/train.en and workdir/train.de (as the config names the languages), of images
workdir/images.npz, whole when there is a config.json. Killed or out of budget, the same command
goes on.
"""

import pathlib

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14', 'celeba')
TEACHER = flags.DEFINE_string(
  'teacher', None, 'folder of the finished run that writes', required=True
)
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for what it writes', required=True)
BUDGET = cli.budget_flag()
CONNECT = cli.process_flags()


def main(_: list[str]) -> None:
  teacher, workdir = pathlib.Path(TEACHER.value), pathlib.Path(WORKDIR.value)
  write = _images if CONFIG.value.get('task') == 'images' else _text
  said = write(teacher, workdir, cli.seconds(BUDGET.value))
  print(said or f'Out of budget: the same command goes on in {workdir}')


def _images(teacher: pathlib.Path, workdir: pathlib.Path, seconds: float | None) -> str | None:
  """Has a base write its own images; says what there is, or None where the budget ended first."""
  import functools

  from configs.common import to_dataclass
  from experiments.lab import stage
  from experiments.stern2018 import images

  c = to_dataclass(images.Table2, CONFIG.value)
  CONNECT()
  make = functools.partial(images.write_own, mesh=c.mesh)
  with stage.budget(seconds):
    try:
      stage.in_place(workdir, make, base=teacher, data=c.photographs, images=c.distill.images)
    except stage.OutOfTime:
      return None
  n, height, width, _ = images.open_own(workdir).written.shape
  return f'{workdir}/images.npz has {n:,} images of {height} x {width} pixels that the base wrote'


def _text(teacher: pathlib.Path, workdir: pathlib.Path, seconds: float | None) -> str | None:
  """Has a teacher translate; says what there is, or None where the budget ended first."""
  from configs.common import to_dataclass
  from experiments.lab import stage
  from experiments.stern2018 import text

  c = to_dataclass(text.Translation, CONFIG.value)
  CONNECT()
  with stage.budget(seconds):
    try:
      return text.distil(c, teacher, workdir)
    except stage.OutOfTime:
      return None


if __name__ == '__main__':
  cli.run(main)
