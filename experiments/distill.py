"""Rewrites the training text as a teacher translates it: sequence-level distillation (Stern et al.
2018, sec. 6.2); or the training images as the base writes them.

  python -m experiments.distill --config=configs/wmt14.py:scale=tiny --teacher=out/teacher \\
    --workdir=out/distil
  python -m experiments.distill --config=configs/celeba.py:scale=tiny --teacher=out/images/base \\
    --workdir=out/own

The result is workdir/train.en and workdir/train.de (as the config names the languages), of images
workdir/images.npz, whole when there is a config.json. Killed or out of budget, the same command
goes on; several processes may share the work.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14', 'celeba')
TEACHER = flags.DEFINE_string(
  'teacher', None, 'folder of the finished run that writes', required=True
)
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for what it writes', required=True)
BUDGET = cli.budget_flag()
CONNECT = cli.process_flags()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab import distillation
  from experiments.papers.stern2018 import image_distillation, own_images
  from experiments.papers.stern2018.images import ImageExperiment
  from experiments.papers.stern2018.text_settings import TranslationExperiment

  budget = cli.seconds(BUDGET.value)
  CONNECT()
  teacher, workdir = pathlib.Path(TEACHER.value), pathlib.Path(WORKDIR.value)
  if CONFIG.value.get('task') == 'images':
    is_whole = image_distillation.write(ImageExperiment.of(CONFIG.value), teacher, workdir, budget)
    summary = own_images.summary
  else:
    is_whole = distillation.distill(
      TranslationExperiment.of(CONFIG.value), teacher, workdir, budget
    )
    summary = distillation.summary
  if is_whole:
    print(summary(workdir))
  else:
    print(f'Out of budget: the same command goes on in {workdir}')


if __name__ == '__main__':
  cli.run(main)
