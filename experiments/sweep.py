"""Sweeps over any settings of a paper's config: one results.jsonl, one table, one picture.

  python -m experiments.sweep --config=configs/wmt14.py:scale=tiny --sweep='k=2,4,6,8' \\
    --sweep='rule=exact,top-2' --workdir=out/sweep
  python -m experiments.sweep --config=configs/lookahead.py:scale=smoke --sweep='window=2,5,10' \\
    --sweep='train.steps=100,200' --engine=slurm --slurm.partition=gpu --workdir=out/sweep

A name is one of the paper's own (k, regime, rule, ...), or a setting of the config; all products
are measured. Rows run here in order, by --engine=processes --jobs=N, or by --engine=slurm. Rows
that are there are not measured again; a sweep that is killed goes on by the same command.
"""

from typing import Any

from absl import flags

from experiments.lab import cli, command

PAGE = command.Page()
SWEEP = flags.DEFINE_multi_string('sweep', [], 'values of a name or a setting, such as k=2,4')


def main(_: list[str]) -> None:
  import itertools
  import pathlib
  import runpy

  from configs.common import to_dataclass
  from experiments.lab import sweeping
  from experiments.lab.rows import Rows
  from fastdec.errors import UserError

  config = PAGE.config.value
  paper: Any = runpy.run_path(cli.config_words()[0].removeprefix('--config=').split(':')[0]).get(
    'PAPER'
  )
  swept = sweeping.parse(SWEEP.value, config, paper)
  lists = [one for one in swept if one.is_listed]
  for one in lists:
    sweeping.put(config, one.setting, one.values)
  points = []
  for values in itertools.product(*(one.values for one in swept if not one.is_listed)):
    point = dict(zip((one.setting for one in swept if not one.is_listed), values, strict=True))
    for setting, value in point.items():
      sweeping.put(config, setting, value)
    changed = point | {one.setting: one.values for one in lists}
    words = [f'--config.{setting}={value}' for setting, value in changed.items()]
    points.append((point, words, to_dataclass(paper.settings, config)))  # mistakes show first
  found = []
  for point, words, c in points:
    try:
      found.append((point, PAGE.rows(c, paper.make, words)))
    except UserError as error:
      if not point:
        raise
      rows = Rows(pathlib.Path(PAGE.workdir.value) / 'results.jsonl', {})
      rows.fail(point, error)
      rows.all([point])
      found.append((point, rows))
  sweeping.write(pathlib.Path(PAGE.workdir.value) / 'sweep', found, swept, paper)
  PAGE.end([rows for _, rows in found])


if __name__ == '__main__':
  cli.run(main)
