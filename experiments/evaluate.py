"""Evaluates one finished run: BLEU (of images PSNR, SSIM), mean accepted block size, wall clock,
head accuracy, for every rule of the table.

  python -m experiments.evaluate --config=configs/wmt14.py:k=8,regime=finetune --workdir=out/k8
  python -m experiments.evaluate --config=configs/celeba.py:scale=tiny,k=4     --workdir=out/k4

Rows are appended to workdir/results.jsonl, one JSON line each with all conditions; finished ones
are skipped.

  python -m experiments.evaluate --config=configs/wmt14.py --workdir=out/base \\
    --dtype=float32,bfloat16,int8
  python -m experiments.evaluate --config=configs/celeba.py:scale=tiny --workdir=out/images/base \\
    --dtype=int8
  python -m experiments.evaluate --config=configs/speculative.py:scale=multi30k,task=lm \\
    --dtype=int8 \\
    --workdir=out/spec-lm/target

With --dtype the model itself is measured in these types of numbers, and in float32: BLEU, nats a
token of what people wrote (of images bits an intensity), and how much of its greedy output is
float32's. These cells are in workdir/types.jsonl.
"""

from absl import flags

from experiments.lab import cli

CONFIG = cli.config_flag('wmt14', 'celeba', 'speculative')
WORKDIR = flags.DEFINE_string('workdir', None, 'folder of the finished run', required=True)
DTYPE = flags.DEFINE_list(
  'dtype', None, 'compares the model in these types: float32, bfloat16, int8'
)


def main(words: list[str]) -> None:
  if DTYPE.value is None:
    _rules()
  else:
    _types(DTYPE.value)


def _rules() -> None:
  """Every rule of the table."""
  import pathlib
  import sys

  import rich

  from configs.common import to_dataclass
  from experiments.lab import cells, report
  from experiments.lab.run import Run
  from experiments.papers.stern2018 import kinds
  from experiments.papers.stern2018.cells import BlockwiseCell
  from fastdec import folders
  from fastdec.errors import UserError

  if CONFIG.value.get('task') == 'images':
    from configs.common import to_dataclass
    from experiments.stern2018 import images

    c = to_dataclass(images.Table2, CONFIG.value)
    images.evaluate(c, pathlib.Path(WORKDIR.value), cli.conditions())
    return
  if 'table' not in CONFIG.value:
    raise UserError(
      'this config has no table of rules: give configs/wmt14.py or configs/celeba.py, or --dtype'
    )
  if CONFIG.value.task == 'translation':
    from experiments.stern2018 import text

    c = to_dataclass(text.Translation, CONFIG.value)
    rows = text.evaluate(c, pathlib.Path(WORKDIR.value), cli.conditions())
    sys.exit(1 if rows.failed else 0)
  kind, experiment = kinds.KINDS[CONFIG.value.task], kinds.experiment_of(CONFIG.value)
  workdir, split = pathlib.Path(WORKDIR.value), experiment.table.split
  run = Run(experiment, experiment.k, experiment.regime, None, workdir)
  if not run.is_finished:
    raise UserError(
      f'{workdir} holds no finished run: train it first, by experiments.train with the same config'
    )
  run.check()
  results, model = workdir / 'results.jsonl', folders.content(workdir)

  def current() -> list[BlockwiseCell]:
    found = cells.read(results, BlockwiseCell)
    return [cell for cell in found if cell.models == model and cell.split == split]

  measuring = kind.measuring(experiment, workdir, cli.conditions())
  measuring.check(current(), results)
  done = {cell.rule for cell in current()}
  rules = [
    rule for rule in (kind.rules(experiment) if run.k > 1 else ('exact',)) if rule not in done
  ]
  for cell in measuring.cells(workdir, run.k, run.regime, rules) if rules else ():
    cells.append(results, cell)
  for table in (make(current()) for make in kind.tables):
    if table.rows:
      rich.print(report.terminal(table))


def _types(dtypes: list[str]) -> None:
  """The model in several types of numbers."""
  import pathlib

  import rich

  from experiments.lab import precision, report
  from experiments.lab.rows import Rows
  from experiments.papers.samples import sample_of

  precision.check_types(dtypes)
  workdir = pathlib.Path(WORKDIR.value)
  rows, sample = Rows(workdir / 'types.jsonl', cli.conditions()), sample_of(CONFIG.value, workdir)
  rich.print(report.terminal(precision.table(precision.measure(workdir, sample, dtypes, rows))))


if __name__ == '__main__':
  cli.run(main)
