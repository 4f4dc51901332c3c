"""Rewrites the training text as a teacher translates it: sequence-level distillation (Stern et al. 2018, sec. 6.2).

  python -m experiments.distill --config=configs/wmt14.py:scale=tiny --teacher=out/teacher --workdir=out/distil

The result is workdir/train.en and workdir/train.de (as the config names the languages), whole when there is a
config.json. Killed or out of budget, the same command goes on; several processes may share the work.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag()
TEACHER = flags.DEFINE_string('teacher', None, 'folder of the finished run that translates', required=True)
WORKDIR = flags.DEFINE_string('workdir', None, 'folder for the text', required=True)
BUDGET = cli.budget_flag()
CONNECT = cli.process_flags()


def main(words: list[str]) -> None:
  import pathlib

  from experiments.lab import distillation
  from experiments.papers.stern2018 import text_settings

  budget = cli.seconds(BUDGET.value)
  CONNECT()
  experiment = text_settings.TranslationExperiment.of(CONFIG.value)
  workdir = pathlib.Path(WORKDIR.value)
  if distillation.distill(experiment, pathlib.Path(TEACHER.value), workdir, budget):
    print(distillation.summary(workdir))
  else:
    print(f'Out of budget: the same command goes on in {workdir}')


if __name__ == '__main__':
  cli.run(main)
