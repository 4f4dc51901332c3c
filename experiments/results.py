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
  Column('layers', 'layers'),
  Column('GPUs', 'model'),
  Column('weights', 'dtype'),
  Column('batch', 'batch'),
  Column('call', 'drafter'),
  Column('kernels', 'kernels', ','),
  Column('by the layers', 'a layer', '.1f'),
  Column('sorts', 'sorts'),
  Column('graphs', 'graphs'),
  Column('copies', 'copies'),
  Column('exchanges', 'exchanges'),
  Column('exchanged, kB', 'exchanged kB', ',.0f'),
  Column('of sums', 'of sums', '.2f'),
  Column('held, GB', 'held GB', '.2f'),
  Column('whole, MB', 'whole MB', ',.1f'),
  Column('floor, ms', 'floor ms', '.2f'),
  Column('on paper, ms', 'on paper ms', '.2f'),
  Column('of greedy', 'of greedy', '.2f'),
)
PEERS = (  # of benchmarks/peers.py
  Column('cores', 'cpus'),
  Column('search', 'search'),
  Column('texts at once', 'batch'),
  Column('engine', 'engine'),
  Column('ms a token', 'ms_a_token', '.2f'),
  Column('times our speed', 'times_ours', '.2f', beside=lambda row: between(row['spread'])),
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
  pages = list_pages(pathlib.Path(FOLDER.value))
  if not pages:
    raise UserError(f'--folder={FOLDER.value} has no pages: give a folder such as docs/results')
  for page in pages:
    text = draw_page(page)
    if text != page.read_text():
      write_text(page, text)
      print(f'{page} is drawn again')


def list_pages(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the pages of docs/results, then other pages that show the same figures."""
  others = sorted((folder / '../methods').glob('*.md'))
  return [*sorted(folder.glob('*.md')), *others, *folder.glob('../../README.md')]


def draw_page(page: pathlib.Path) -> str:
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
  """Reads rows from files in the folder of a page, such as 'a.jsonl,b.jsonl'; keeps those whose
  fields have the wanted values, such as 'batch=1; tree=0|32', all if `where` is None."""
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
  for row in chosen:
    row.pop('config', None)  # the page itself names the command; the lines keep each row's flags
  return chosen


def method_table(page: pathlib.Path, name: str, folder: str) -> str:
  """Draws a few rows of a method, from several files in a folder. Its links work on the page."""
  method = name.removeprefix('methods.')
  if method not in figures.PICKS or not (page.parent / folder).is_dir():
    raise UserError(
      f"{page} asks for '{name}' from '{folder}': the method or the folder does not exist"
    )
  return write_table(figures.table(page.parent / folder, method)).replace('](', f']({folder}/')


def draw_latest(make: Callable[..., Any], key: Sequence[str]) -> Draw:
  """Draws a table, or several, of the latest row of each key."""

  def draw(chosen: list[Row]) -> str:
    made = make(rows.latest(chosen, *key))
    if isinstance(made, list):
      return '\n\n'.join(map(write_table, made))
    return write_table(made)

  return draw


def draw_used(columns: Sequence[Column]) -> Draw:
  """Draws rows of a benchmark, without columns that none of them has."""

  def draw(chosen: list[Row]) -> str:
    used = []
    for column in columns:
      if any(row.get(str(column.field)) is not None for row in chosen):
        used.append(column)
    return write_table(Table('', used, conditions=CONDITIONS).of(chosen))

  return draw


def write_table(table: Any) -> str:
  """Writes a table in Markdown, one level below the page's sections, its conditions folded."""
  text = re.sub('^## ', '### ', markdown(table).strip())
  folded = r'<details><summary>Conditions</summary>\n\n\1\n\n</details>'
  return re.sub('^Conditions: (.*)$', folded, text, flags=re.MULTILINE)


TABLES: dict[str, Draw] = {  # by the names that pages have for them
  'stern2018.table1': draw_latest(stern2018.table1, stern2018.KEY),
  'stern2018.table2': draw_latest(image_tables.table2, stern2018.KEY),
  'leviathan2022.speeds': draw_latest(leviathan2022.speeds, leviathan2022.PLAN),
  'cai2024.speeds': draw_latest(cai2024.speeds, cai2024.PLAN),
  'drafts.speeds': draw_latest(drafters.speeds, drafters.PLAN),
  'drafts.by_loss': draw_latest(drafters.by_loss, drafters.PLAN),
  'drafts.fewer_calls': draw_latest(drafters.fewer_calls, drafters.PLAN),
  'fu2024.speeds': draw_latest(fu2024.speeds, fu2024.PLAN),
  'xia2024.tables': draw_latest(xia2024.tables, ('strategy', 'temperature', 'batch')),
  'incremental': draw_latest(incremental_decoding.tables, incremental_decoding.KEY),
  'precision': draw_latest(precision.table, precision.KEY),
  'benchmarks.calls': draw_used(CALLS),
  'benchmarks.memory': draw_used(MEMORY),
  'benchmarks.peers': draw_used(PEERS),
  'benchmarks.program': draw_used(PROGRAMS),
}


if __name__ == '__main__':
  cli.run(main)
