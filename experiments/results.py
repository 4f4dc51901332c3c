"""Draws the tables of docs/results again from the JSON lines in that folder: `make results`.

  python -m experiments.results [--folder=docs/results]

A page names a table and its lines in a comment; the table follows, up to the next comment. All
other text is written by hand:

  <!-- table: stern2018.table1 from multi30k.jsonl -->
  ...
  <!-- end -->

A page that shows a part of the lines says which fields the rows must have, with `|` between the
values of a field. Lines of several files are one table; a later file replaces rows of an earlier
one that have the same key:

  <!-- table: drafts.speeds from drafts.jsonl,drafts-long.jsonl where batch=1; tree=0|32 -->

Pages of docs/methods, and the README, show rows of several files: `methods.eagle from ../results`.

The lines are those that launchers append to a workdir's results.jsonl, and benchmarks to their
file. After a new measurement, copy the file over the one here, and draw. Lines that say "recovered"
were read back from tables that had been pasted: their figures have the printed precision.
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
  xia2024,
)
from experiments.lab import cli, rows
from experiments.lab.report import Column, Table, between, markdown
from experiments.lab.rows import Row
from experiments.stern2018 import image_tables
from experiments.stern2018 import tables as stern2018
from fastdec.errors import UserError
from fastdec.files import write_text

FOLDER = flags.DEFINE_string('folder', 'docs/results', 'folder with the pages and their lines')
MARKED = re.compile(
  r'(<!-- table: (\S+) from (\S+)(?: where (.*?))? -->\n).*?(<!-- end -->)', re.DOTALL
)
CALLS = (  # of benchmarks/calls.py
  Column('model', 'shape'),
  Column('cores', 'cpus'),
  Column('type', 'dtype'),
  Column('variant', 'variant'),
  Column('ms a call', 'ms_per_call', '.2f'),
  Column('to greedy', 'to_greedy', '.2f', beside=lambda row: between(row['spread'])),
  Column('to the floor', 'to_floor', '.2f'),
)
PROGRAMS = (  # of benchmarks/program.py
  Column('model', 'shape'),
  Column('weights', 'dtype'),
  Column('batch', 'batch'),
  Column('call', 'drafter'),
  Column('kernels', 'kernels', ','),
  Column('by the layers', 'a layer', '.1f'),
  Column('sorts', 'sorts'),
  Column('graphs', 'graphs'),
  Column('copies', 'copies'),
  Column('floor, ms', 'floor ms', '.2f'),
  Column('on paper, ms', 'on paper ms', '.2f'),
  Column('of greedy', 'of greedy', '.2f'),
)
PEERS = (  # of benchmarks/peers.py
  Column('cores', 'cpus'),
  Column('engine', 'engine'),
  Column('ms a token', 'ms_a_token', '.1f'),
  Column('times our greedy speed', 'times_ours', '.2f', beside=lambda row: between(row['spread'])),
  Column('texts like its own', 'same_as_greedy', '.0%'),
)
MEMORY = (
  Column('model', 'shape'),
  Column('weights', 'dtype'),
  Column('batch', 'batch'),
  Column('tokens', 'tokens', ','),
  Column('weights, GB', 'weights_gb', '.1f'),
  Column('cache, GB', 'cache_gb', '.1f'),
  Column('a prompt by 256, GB', 'prefill_256_gb', '.1f'),
  Column('by 4,096, GB', 'prefill_4096_gb', '.1f'),
  Column('least, GB', 'total_gb', '.1f'),
  Column('fits on, GB', 'fits'),
)
CONDITIONS = ('platform', 'device', 'devices', 'processor', 'jax', 'commit')
Draw = Callable[[list[Row]], str]  # makes Markdown of rows


def main(_: list[str]) -> None:
  pages = pages_of(pathlib.Path(FOLDER.value))
  if not pages:
    raise UserError(f'--folder={FOLDER.value} has no pages: give a folder such as docs/results')
  for page in pages:
    text = drawn(page)
    if text != page.read_text():
      write_text(page, text)
      print(f'{page} is drawn again')


def pages_of(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the pages of docs/results, then other pages that show the same figures."""
  others = sorted((folder / '../methods').glob('*.md'))
  return [*sorted(folder.glob('*.md')), *others, *folder.glob('../../README.md')]


def drawn(page: pathlib.Path) -> str:
  """Draws each table of a page from its lines; returns the text of the page.

  Raises:
    UserError: a table, a file of lines or rows that are not there.
  """

  def draw(mark: re.Match[str]) -> str:
    begin, name, source, where, end = mark.groups()
    if name.startswith('methods.'):
      table = method_table(page, name, source)
    elif name in TABLES:
      table = TABLES[name](read_rows(page, source, where))
    else:
      raise UserError(f"{page} asks for the table '{name}': known are {', '.join(TABLES)}")
    return f'{begin}\n{table.strip()}\n\n{end}'

  return MARKED.sub(draw, page.read_text())


def read_rows(page: pathlib.Path, source: str, where: str | None) -> list[Row]:
  """Reads rows from files in the folder of a page; keeps those whose fields have the wanted values.

  Args:
    page: the page that shows them.
    source: names of files, with commas between them.
    where: such as 'batch=1; tree=0|32', values as in the lines; None for all rows.
  """
  chosen: list[Row] = []
  for name in source.split(','):
    lines = page.parent / name
    if not lines.exists():
      raise UserError(
        f'{page} draws {name}, which is not in its folder: copy it there from a workdir'
      )
    chosen += rows.read(lines)
  for condition in where.split('; ') if where else ():
    field, _, values = condition.partition('=')
    chosen = [row for row in chosen if str(row.get(field)) in values.split('|')]
  if not chosen:
    raise UserError(f'{page} draws no row of {source}: no row has {where}')
  # The page itself names the command. The lines keep each row's flags.
  return [{name: value for name, value in row.items() if name != 'config'} for row in chosen]


def method_table(page: pathlib.Path, name: str, folder: str) -> str:
  """Draws a few rows of a method, from several files in a folder. Its links work on the page."""
  method = name.removeprefix('methods.')
  if method not in figures.PICKS or not (page.parent / folder).is_dir():
    raise UserError(
      f"{page} asks for '{name}' from '{folder}': the method or the folder does not exist"
    )
  return shown(figures.table(page.parent / folder, method)).replace('](', f']({folder}/')


def of_lines(make: Callable[..., Any], key: Sequence[str]) -> Draw:
  """Draws a table, or several, of the latest row of each key."""

  def draw(chosen: list[Row]) -> str:
    made = make(rows.latest(chosen, *key))
    return '\n\n'.join(map(shown, made if isinstance(made, list) else [made]))

  return draw


def of_benchmark(columns: Sequence[Column]) -> Draw:
  """Draws rows of a benchmark, without columns that none of them has."""

  def draw(chosen: list[Row]) -> str:
    names = {name for row in chosen for name, value in row.items() if value is not None}
    used = [column for column in columns if column.field in names]
    return shown(Table('', used, conditions=CONDITIONS).of(chosen))

  return draw


def shown(table: Any) -> str:
  """A table as Markdown, one level below the page's sections, its conditions folded."""
  text = re.sub('^## ', '### ', markdown(table).strip())
  folded = r'<details><summary>Conditions</summary>\n\n\1\n\n</details>'
  return re.sub('^Conditions: (.*)$', folded, text, flags=re.MULTILINE)


TABLES: dict[str, Draw] = {  # by the names that pages have for them
  'stern2018.table1': of_lines(stern2018.table1, stern2018.KEY),
  'stern2018.table2': of_lines(image_tables.table2, stern2018.KEY),
  'leviathan2022.speeds': of_lines(leviathan2022.speeds, leviathan2022.PLAN),
  'cai2024.speeds': of_lines(cai2024.speeds, cai2024.PLAN),
  'drafts.speeds': of_lines(drafters.speeds, drafters.PLAN),
  'drafts.by_loss': of_lines(drafters.by_loss, drafters.PLAN),
  'fu2024.speeds': of_lines(fu2024.speeds, fu2024.PLAN),
  'xia2024.tables': of_lines(xia2024.tables, ('strategy', 'temperature', 'batch')),
  'incremental': of_lines(incremental_decoding.tables, incremental_decoding.KEY),
  'precision': of_lines(precision.table, precision.KEY),
  'benchmarks.calls': of_benchmark(CALLS),
  'benchmarks.memory': of_benchmark(MEMORY),
  'benchmarks.peers': of_benchmark(PEERS),
  'benchmarks.program': of_benchmark(PROGRAMS),
}


if __name__ == '__main__':
  cli.run(main)
