"""Several workdirs of Table 1 in one table: the Transformer beside the convolutional model, for
example.

  python -m experiments.beside --workdirs=out/multi30k,out/fconv [--out=beside.md]

Reads their results.jsonl; measures nothing. Columns have the folders' names. Where a workdir has
its models, cells of models that have been trained again since are left out.
"""

from absl import flags

from experiments.lab import cli

WORKDIRS = flags.DEFINE_list(
  'workdirs', None, 'workdirs of experiments.table1, two or more', required=True
)
OUT = flags.DEFINE_string('out', None, 'also writes the table to this Markdown file')


def main(_: list[str]) -> None:
  import pathlib

  from experiments.lab import cells, report
  from experiments.papers.stern2018.beside import beside_table, of_models_there
  from experiments.papers.stern2018.cells import BlockwiseCell
  from fastdec.errors import UserError
  from fastdec.files import write_text

  names = {
    pathlib.Path(workdir).resolve().name: pathlib.Path(workdir) for workdir in WORKDIRS.value
  }
  if len(names) < max(2, len(WORKDIRS.value)):
    raise UserError(
      f'--workdirs={",".join(WORKDIRS.value)} is not two or more folders of different'
      ' names: give such'
    )
  if OUT.value and (
    pathlib.Path(OUT.value).is_dir() or not pathlib.Path(OUT.value).parent.is_dir()
  ):
    raise UserError(f'--out={OUT.value} is no file in a folder that exists: name one')
  found = {
    name: of_models_there(cells.read(path / 'results.jsonl', BlockwiseCell), path)
    for name, path in names.items()
  }
  page = report.markdown(beside_table(found))
  print(page)
  if OUT.value:
    write_text(pathlib.Path(OUT.value), page)


if __name__ == '__main__':
  cli.run(main)
