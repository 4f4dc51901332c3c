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

from typing import Any

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14', 'celeba', 'speculative')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the finished run', required=True)
DTYPE = flags.DEFINE_list(
  'dtype', None, 'compares the model in these types: float32, bfloat16, int8, int8w'
)


def main(_: list[str]) -> None:
  import pathlib

  if DTYPE.value is None:
    _rules(CONFIG.value, pathlib.Path(WORKDIR.value))
  else:
    _types(CONFIG.value, pathlib.Path(WORKDIR.value), DTYPE.value)


def _rules(config: Any, workdir: Any) -> None:
  """Every rule of the table."""
  import sys

  from configs.common import to_dataclass
  from fastdec.errors import UserError

  if 'table' not in config:
    raise UserError(
      'this config has no table of rules: give configs/wmt14.py or configs/celeba.py, or --dtype'
    )
  if config.task == 'images':
    from experiments.stern2018 import images

    images.evaluate(to_dataclass(images.Table2, config), workdir, cli.conditions())
  else:
    from experiments.stern2018 import text

    rows = text.evaluate(to_dataclass(text.Translation, config), workdir, cli.conditions())
    if rows.failed:
      print(f'{len(rows.failed)} of the rows failed: the reasons are in {workdir}/failures')
      sys.exit(1)


def _types(config: Any, workdir: Any, dtypes: list[str]) -> None:
  """The model in several types of numbers."""
  import rich

  from experiments import precision
  from experiments.lab import report
  from experiments.lab.rows import Rows

  precision.check_types(dtypes)
  sample = precision.sample_of(config, workdir)
  rows = Rows(workdir / 'types.jsonl', cli.conditions())
  rich.print(report.terminal(precision.table(precision.measure(workdir, sample, dtypes, rows))))


if __name__ == '__main__':
  cli.run(main)
