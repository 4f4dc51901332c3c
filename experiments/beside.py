"""Several workdirs of Table 1 in one table: the Transformer beside the convolutional model, for
example.

  python -m experiments.beside --workdirs=out/multi30k,out/fconv [--out=beside.md]

Reads their results.jsonl; measures nothing. Columns have the folders' names.
"""

import pathlib

from absl import flags

from experiments.lab import cli

WORKDIRS = flags.DEFINE_list(
  'workdirs', None, 'workdirs of experiments.table1, two or more', required=True
)
OUT = flags.DEFINE_string('out', None, 'also writes the table to this Markdown file')


def main(_: list[str]) -> None:
  from experiments.lab import report, rows
  from experiments.stern2018 import tables
  from fastdec.errors import UserError
  from fastdec.files import write_text

  given = ','.join(WORKDIRS.value)
  names = {pathlib.Path(path).resolve().name: pathlib.Path(path) for path in WORKDIRS.value}
  if len(names) < max(2, len(WORKDIRS.value)):
    raise UserError(f'--workdirs={given} is not two or more folders of different names: give such')
  out = pathlib.Path(OUT.value) if OUT.value else None
  if out and (out.is_dir() or not out.parent.is_dir()):
    raise UserError(f'--out={out} is no file in a folder that exists: name one')
  found = {name: rows.read(path / 'results.jsonl') for name, path in names.items()}
  page = report.markdown(tables.beside(found))
  print(page)
  if out:
    write_text(out, page)


if __name__ == '__main__':
  cli.run(main)
