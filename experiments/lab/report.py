"""Tables: declared columns that draw rows as Markdown.

  COLUMNS = Column('k', 'k', names_row=True), Column('Speed-up', 'speedup', '.2f', '×')
  markdown(Table('Speeds', COLUMNS).of(rows))

Where several rows share a line, each column picks its own (`cell`). A figure that was not measured
is a dash. A row that failed shows the reason in the first column that needs a figure of it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.lab.rows import is_failure
from fastdec.files import write_text

MISSING = '–'


@dataclasses.dataclass(frozen=True)
class Column:
  """One column: a figure of each cell, and its format."""

  heading: str
  field: str | Callable[[Any], Any]  # its name, or a function of the cell: a number, text or None
  form: str = ''  # of a number, such as '.2f'
  unit: str = ''  # follows the number, such as '×'
  scale: float = 1  # multiplies the number; 100 for per cent
  # What follows the figure, or its dash: the paper's figure or a spread, in parentheses.
  beside: Callable[[Any], str] = lambda row: ''
  cell: Callable[[Any], Any] = lambda row: row  # picks the row's cell; None: there is none
  names_row: bool = False  # such a column is shown even if the cell failed
  missing: str = MISSING  # the text for a missing figure

  def text(self, cell: Any) -> str:
    """The figure of a cell that did not fail."""
    value = self.field(cell) if callable(self.field) else field(cell, self.field)
    if value is None:
      return self.missing
    if isinstance(value, bool) or not isinstance(value, int | float):
      return str(value)
    return text(self.scale * value, self.form, self.unit)


@dataclasses.dataclass(frozen=True)
class Drawn:
  """A table of text."""

  title: str
  header: tuple[str, ...]
  rows: tuple[tuple[str, ...], ...]
  notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Table:
  """A declared table; `of` fills it."""

  title: str  # '' for none
  columns: Sequence[Column]  # from left to right
  notes: Sequence[str] = ()  # the lines below it
  conditions: Sequence[str] = ()  # names of those that a last note lists
  sort: Callable[[Any], Any] | None = None  # the key of the order of rows; None keeps their order

  def of(
    self,
    rows: Iterable[Any],
    cells: Iterable[Any] | None = None,
    above: Iterable[Mapping[str, str]] = (),
    below: Iterable[Mapping[str, str]] = (),
    notes: Iterable[str] = (),
  ) -> Drawn:
    """The table of some rows.

    Args:
      rows: cells, or whatever the columns' `cell` picks cells by.
      cells: the cells whose conditions are noted; by default the rows.
      above, below: published rows, as text by heading; a heading that is left out is missing.
      notes: more of them, after the table's own.
    """
    measured = list(rows)
    conditions: list[str] = []
    if self.conditions:
      conditions = conditions_note(measured if cells is None else cells, self.conditions)
    if self.sort is not None:
      measured.sort(key=self.sort)
    lines = [*map(self._write_published, above), *map(self._write_cells, measured)]
    lines += map(self._write_published, below)
    header = tuple(column.heading for column in self.columns)
    return Drawn(self.title, header, tuple(lines), (*self.notes, *notes, *conditions))

  def _write_cells(self, row: Any) -> tuple[str, ...]:
    entries: list[str] = []
    failed: list[Any] = []  # cells of this row whose reason is already shown
    for column in self.columns:
      cell, ours = column.cell(row), column.missing
      error = None if column.names_row else field(cell, 'error')
      if cell is not None and error is None:
        ours = column.text(cell)
      elif error is not None and not any(cell is one for one in failed):
        ours = f'failed: {" ".join(error.split())}'
        failed.append(cell)
      entries.append(f'{ours} {column.beside(row)}'.strip())
    return tuple(entries)

  def _write_published(self, row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row.get(column.heading, column.missing) for column in self.columns)


def field(row: Any, name: str) -> Any:
  """A field of a row; None where it has none."""
  return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)


def conditions_note(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
  """Writes one note with the conditions of these names, all values where rows differ; [] if rows
  have none of them."""
  measured = [*itertools.filterfalse(is_failure, rows)]
  conditions = []
  for name in names:
    values = dict.fromkeys(str(row[name]) for row in measured if row.get(name) is not None)
    if values:
      conditions.append(f'{name} {", ".join(values)}')
  return [f'Conditions: {"; ".join(conditions)}.'] if conditions else []


def repetition_note(rows: Iterable[Mapping[str, Any]]) -> list[str]:
  """One note on how much greedy texts repeat, from the lowest share to the highest."""
  shares = []
  for row in rows:
    if row.get('same_as_plain') is not None and row.get('repeated_4grams') is not None:
      shares.append(row['repeated_4grams'])
  if not shares:
    return []
  known, highest = f'{100 * min(shares):.1f}', f'{100 * max(shares):.1f}'
  if highest != known:
    known += f' to {highest}'
  return [f'In greedy texts, {known} % of the 4-grams had occurred before in the same text.']


def write(work: Any, name: str, tables: Sequence[Drawn], picture: str = '') -> None:
  """Writes <name>.md in a `Workdir`, and prints it. `picture` is the name of a file there."""
  path = work.root / f'{name}.md'
  page = '\n'.join(markdown(table) for table in tables if table.rows)
  if not work.is_complete:
    page += '\nNot finished: the same command continues.\n'
  work.console.print(page)
  places = f'\nThe table is {path}'
  if picture:
    page += f'\n![The same as a picture]({picture})\n'
    places += f', the picture {path.with_name(picture)}'
  write_text(path, page)
  work.console.print(f'{places}; every row is a line of {work.path}')


def markdown(table: Drawn) -> str:
  """A pipe table under its title, notes below."""

  def line(texts: Iterable[str]) -> str:
    return '| ' + ' | '.join(text.replace('|', r'\|') for text in texts) + ' |'

  lines = [line(table.header), line(['---'] * len(table.header))]
  if table.title:
    lines.insert(0, f'## {table.title}\n')
  lines += map(line, table.rows)
  return '\n'.join([*lines, '', *(f'{note}\n' for note in table.notes)])


def between(ratios: Sequence[float] | None) -> str:
  """The least and the largest ratio of the rounds, in parentheses; '' without rounds."""
  return f'({ratios[0]:.2f} .. {ratios[1]:.2f})' if ratios else ''


def text(value: Any, form: str, unit: str = '') -> str:
  """A figure with its unit, or a dash for None."""
  return MISSING if value is None else f'{value:{form}}{unit}'


SPEED_UP = Column(
  'Speed-up', 'speedup', '.2f', '×', beside=lambda cell: between(field(cell, 'spread'))
)
CALLS_ONLY = Column('Calls only', 'speedup_calls', '.2f', '×')
SAME = Column('Same %', 'same_as_plain', '.1f', scale=100)
SAME_NOTE = (
  "Same: texts that equal greedy decoding's, token for token; the others differ at near ties"
  ' (float32 rounding).'
)
# conditions of all tables
MACHINE = ('config', 'seed', 'dtype', 'device', 'processor', 'cpus', 'xla_flags', 'commit')
