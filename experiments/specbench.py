"""Tokens a call by category, on questions of Spec-Bench, MT-bench, HumanEval, GSM8K, SPEED-Bench.

  python -m experiments specbench --model=folder --questions=question.jsonl \\
    --questions=HumanEval.jsonl.gz [--draft=folder] [--texts=10] [--max-len=128] [--dtype=int8]

Give --questions, --strategy, --temperature and --batch once or more. Rows that are there stay.
"""

import pathlib

from absl import flags

from experiments.lab import cli

MODEL = flags.DEFINE_string('model', None, 'folder of a model, or a GGUF file', required=True)
QUESTIONS = flags.DEFINE_multi_string('questions', None, 'files of questions', required=True)
DRAFT = flags.DEFINE_string('draft', None, 'a smaller model, or the folder of a draft network')
STRATEGY = flags.DEFINE_multi_string('strategy', [], "in words: 'jacobi(k=4)' (the usual ones)")
TEMPERATURE = flags.DEFINE_multi_float('temperature', [0.0, 1.0], 'once or more', lower_bound=0)
BATCH = flags.DEFINE_multi_integer('batch', [1], 'questions at once; once or more', lower_bound=1)
TEXTS = flags.DEFINE_integer('texts', 10, 'questions of each category; 0: all', lower_bound=0)
MAX_LEN = flags.DEFINE_integer('max-len', 128, 'the most tokens of an answer', lower_bound=1)
CHAT = flags.DEFINE_bool('chat', None, "asks in the model's chat template (if it has one)")
DTYPE = flags.DEFINE_string('dtype', None, "float32, bfloat16, int8, int8w, ... (the model's own)")
REPEATS = flags.DEFINE_integer('repeats', 3, 'of timing; 0: nothing is timed', lower_bound=0)
WORKDIR = flags.DEFINE_string('workdir', 'out/specbench', 'folder of the results')


def main(_: list[str]) -> None:
  from experiments import xia2024
  from experiments.lab.workdir import Workdir
  from fastdec.cli import cores
  from fastdec.evaluation.rows import command, conditions

  cores.restrict(MODEL.value, max(BATCH.value))  # before JAX looks for them
  files = ','.join(QUESTIONS.value).split(',')
  settings = xia2024.SpecBench(
    MODEL.value, files, DRAFT.value, STRATEGY.value, TEMPERATURE.value, BATCH.value, TEXTS.value,
    MAX_LEN.value, CHAT.value, DTYPE.value, REPEATS.value,
  )  # fmt: skip
  here = {'config': command(), **conditions()}
  work = Workdir(pathlib.Path(WORKDIR.value), here)
  xia2024.specbench(settings, work)
  cli.end([work])


if __name__ == '__main__':
  cli.run(main)
