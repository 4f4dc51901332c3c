"""Evaluates one finished run: BLEU (of images PSNR, SSIM), mean accepted block size, wall clock,
head accuracy, for every rule of the table.

  python -m experiments.evaluate --config=configs/wmt14.py:k=8,regime=finetune --workdir=out/k8
  python -m experiments.evaluate --config=configs/celeba.py:scale=tiny,k=4     --workdir=out/k4

Rows are appended to workdir/results.jsonl, one JSON line each with all conditions; finished ones
are skipped.

  python -m experiments.evaluate --config=configs/wmt14.py --workdir=out/base --dtype=bfloat16,int8
  python -m experiments.evaluate --config=configs/speculative.py:scale=multi30k,task=lm \\
    --workdir=out/spec-lm/target --dtype=int8

With --dtype the model itself is measured in these types of numbers, and in float32: BLEU, nats a
token of what people wrote (of images bits an intensity), and how much of its greedy output is
float32's. These cells are in workdir/types.jsonl.
"""

import pathlib

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14', 'celeba', 'speculative')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the finished run', required=True)
DTYPE = flags.DEFINE_list(
  'dtype', None, 'compares the model in these types: float32, bfloat16, int8, int8w'
)


def main(_: list[str]) -> None:
  from experiments import precision, stern2018
  from experiments.lab import report
  from experiments.lab.config import to_dataclass
  from experiments.lab.workdir import Workdir
  from fastdec.errors import UserError

  config, workdir = CONFIG.value, pathlib.Path(WORKDIR.value)
  if DTYPE.value is not None:
    names, types = DTYPE.value, precision.TYPES
    if not names or len(set(names)) < len(names) or not set(names) <= set(types):
      raise UserError(
        f'--dtype={",".join(names)} is not possible: give one or more of {", ".join(types)}, each'
        ' once'
      )
    sample = precision.open_sample(config, workdir)
    work = Workdir(workdir, cli.conditions(), file='types.jsonl')
    rows = precision.measure(workdir, sample, names, work)
    print(report.markdown(precision.table(rows)))
    return
  if 'table' not in config:
    raise UserError(
      'this config has no table of rules: give configs/wmt14.py or configs/celeba.py, or --dtype'
    )
  paper, settings = stern2018.half(config)
  work = Workdir(workdir, cli.conditions())
  paper.evaluate(to_dataclass(settings, config), work)
  cli.end([work])


if __name__ == '__main__':
  cli.run(main)
