"""Several workdirs of Table 1 in one table: the Transformer beside the convolutional model, for
example.

  python -m experiments.beside --workdirs=out/multi30k,out/fconv

Reads their results.jsonl; measures nothing. Prints Markdown, in which rows name their folder.
"""

import pathlib

from absl import flags

from experiments.lab import cli

WORKDIRS = flags.DEFINE_list(
  'workdirs', None, 'workdirs of experiments.table1, two or more', required=True
)


def main(_: list[str]) -> None:
  from experiments.lab import report, rows
  from experiments.stern2018 import tables
  from fastdec.errors import UserError

  folders = ','.join(WORKDIRS.value)
  names = {pathlib.Path(path).resolve().name: pathlib.Path(path) for path in WORKDIRS.value}
  if len(names) < max(2, len(WORKDIRS.value)):
    raise UserError(
      f'--workdirs={folders} is not two or more folders of different names: give such'
    )
  lines = []
  for name, path in names.items():
    lines += [{**row, 'workdir': name} for row in rows.read(path / 'results.jsonl')]
  if not lines:
    raise UserError(f'--workdirs={folders} have no rows: give workdirs of experiments.table1')
  print(report.markdown(tables.beside(lines)))


if __name__ == '__main__':
  cli.run(main)
