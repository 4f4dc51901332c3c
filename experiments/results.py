"""Draws the tables of docs/results anew, from the JSON lines that lie beside the pages: `make
results`.

  python -m experiments.results [--folder=docs/results]

A page names a table and its lines, and the table stands between two comments; all other text is
written by hand:

  <!-- table: stern2018.table1 from multi30k.jsonl -->
  ...
  <!-- end -->

Pages of docs/methods, and the README, show rows of several files: `methods.eagle from ../results`.

The lines are those that launchers append to a workdir's results.jsonl, and benchmarks to their
file. After a new measurement, copy the file over the one here, and draw. Lines that say "recovered"
were read back from tables that had been pasted: their figures have the printed precision. A table
named `finished` is of a study whose code is gone; it stays as it is.
"""

import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from experiments import (
  cai2024,
  drafters,
  figures,
  fu2024,
  incremental_decoding,
  leviathan2022,
  precision,
)
from experiments.lab import cli, rows
from experiments.lab.report import Column, Table, between, markdown
from experiments.stern2018 import image_tables
from experiments.stern2018 import tables as stern2018
from fastdec.errors import UserError
from fastdec.evaluation.tree_calibration import Calibration
from fastdec.files import write_text

FOLDER = flags.DEFINE_string('folder', 'docs/results', 'folder with the pages and their lines')
MARKED = re.compile(r'(<!-- table: (\S+) from (\S+) -->\n).*?(<!-- end -->)', re.DOTALL)
FINISHED = 'finished'  # a table that stays as it is: its lines are drawn by no code any more
CALLS = (  # of benchmarks/calls.py
  Column('model', 'shape'),
  Column('dtype', 'dtype'),
  Column('batch', 'batch'),
  Column('variant', 'variant'),
  Column('ms a call', 'ms_per_call', '.2f'),
  Column('to greedy', 'to_greedy', '.2f', beside=lambda row: between(row['spread'])),
  Column('to the floor', 'to_floor', '.2f'),
  Column('floor ms', 'floor_ms', '.2f'),
  Column('to the chain', 'to_chain', '.2f'),
  Column('of the bandwidth', 'bandwidth_share', '.0%'),
  Column('the model alone, ms', 'bare_ms', '.2f'),
  Column('the loop adds, ms', 'overhead_ms', '.3f'),
  Column('of a call', 'overhead_share', '.1%'),
)
CONDITIONS = ('platform', 'device', 'devices', 'processor', 'cpus', 'jax', 'commit')
Draw = Callable[[pathlib.Path], str]  # from a file of lines to Markdown


def main(_: list[str]) -> None:
  pages = pages_of(pathlib.Path(FOLDER.value))
  if not pages:
    raise UserError(f'--folder={FOLDER.value} has no pages: give a folder such as docs/results')
  for page in pages:
    text = drawn(page)
    if text != page.read_text():
      write_text(page, text)
      print(f'{page} is drawn anew')


def pages_of(folder: pathlib.Path) -> list[pathlib.Path]:
  """The pages of docs/results, then those beside them that show the same figures."""
  others = sorted((folder / '../methods').glob('*.md'))
  return [*sorted(folder.glob('*.md')), *others, *folder.glob('../../README.md')]


def drawn(page: pathlib.Path) -> str:
  """The text of a page with each table as its lines have it.

  Raises:
    UserError: a table or a file of lines that is not there.
  """

  def draw(found: re.Match[str]) -> str:
    begin, name, lines, end = found.groups()
    if name not in (FINISHED, *TABLES):
      raise UserError(f"{page} asks for the table '{name}': known are {', '.join(TABLES)}")
    if not (page.parent / lines).exists():
      raise UserError(
        f'{page} draws {name} from {lines}, which is not beside it: copy it there from the workdir'
      )
    if name == FINISHED:
      return found.group()
    table = TABLES[name](page.parent / lines).strip()
    if lines.endswith('results'):  # links of a page elsewhere
      table = table.replace('](', f']({lines}/')
    return f'{begin}\n{table}\n\n{end}'

  return MARKED.sub(draw, page.read_text())


def of_lines(make: Callable[..., Any], key: Sequence[str]) -> Draw:
  """Draws a table, or several, of the latest rows of a file: one for each value of the fields
  `key`."""

  def draw(lines: pathlib.Path) -> str:
    made = make(rows.latest(rows.read(lines), *key))
    return '\n\n'.join(map(shown, made if isinstance(made, list) else [made]))

  return draw


def of_method(name: str) -> Draw:
  """Draws a few rows of a method, of several files in a folder."""
  return lambda folder: shown(figures.table(folder, name))


def of_calibration(make: Callable[..., Any]) -> Draw:
  """Draws a table of what was found about heads and trees, in medusa-1-tree.json and the like."""

  def draw(found: pathlib.Path) -> str:
    return shown(make(Calibration.load(found), found.stem.removesuffix('-tree').capitalize()))

  return draw


def of_benchmark(columns: Sequence[Column]) -> Draw:
  """Draws rows of a benchmark, without columns that none of them has."""

  def draw(lines: pathlib.Path) -> str:
    found = rows.read(lines)
    names = {name for row in found for name, value in row.items() if value is not None}
    there = [column for column in columns if column.field in names]
    return shown(Table('', there, conditions=CONDITIONS).of(found))

  return draw


def shown(table: Any) -> str:
  """A table as Markdown, one level below the page's sections, its conditions folded."""
  text = re.sub('^## ', '### ', markdown(table).strip())
  folded = r'<details><summary>Conditions</summary>\n\n\1\n\n</details>'
  return re.sub('^Conditions: (.*)$', folded, text, flags=re.MULTILINE)


TABLES: dict[str, Draw] = {  # by the names that pages have for them
  'stern2018.table1': of_lines(stern2018.table1, stern2018.KEY),
  'stern2018.rows': of_lines(stern2018.text_rows, stern2018.KEY),
  'stern2018.heads': of_lines(stern2018.heads_table, stern2018.KEY),
  'stern2018.table4': of_lines(stern2018.table4, stern2018.KEY),
  'stern2018.beside': of_lines(stern2018.beside, ('workdir', *stern2018.KEY)),
  'stern2018.table2': of_lines(image_tables.table2, stern2018.KEY),
  'stern2018.image_rows': of_lines(image_tables.image_rows, stern2018.KEY),
  'leviathan2022.speeds': of_lines(leviathan2022.speeds, leviathan2022.PLAN),
  'leviathan2022.alphas': of_lines(leviathan2022.alphas, leviathan2022.PLAN),
  'cai2024.speeds': of_lines(cai2024.speeds, cai2024.PLAN),
  'cai2024.heads': of_calibration(cai2024.accuracies),
  'cai2024.trees': of_calibration(cai2024.widths),
  'drafts.speeds': of_lines(drafters.speeds, drafters.PLAN),
  'drafts.acceptance': of_lines(drafters.acceptance, drafters.PLAN),
  'fu2024.speeds': of_lines(fu2024.speeds, fu2024.PLAN),
  'incremental': of_lines(incremental_decoding.tables, incremental_decoding.KEY),
  'precision': of_lines(precision.table, precision.KEY),
  'benchmarks.calls': of_benchmark(CALLS),
  **{f'methods.{name}': of_method(name) for name in figures.PICKS},
}


if __name__ == '__main__':
  cli.run(main)
