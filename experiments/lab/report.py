"""Tables: declared columns that draw rows as Markdown, and for the terminal.

  COLUMNS = Column('k', 'k', names_row=True), Column('Speed-up', 'speedup', '.2f', '×')
  markdown(Table('Speeds', COLUMNS).of(rows))

Where several rows share a line, each column picks its own (`cell`). A figure that was not measured
is a dash. A row that failed shows the reason in the first column that needs a figure of it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table
import rich.text

from fastdec.files import write_text

MISSING = '–'
UNBROKEN = 14  # characters that a column of the terminal holds: figures, but no reasons of failures


class Entry(NamedTuple):
  """Our figure, followed in parentheses by the paper's, by a spread, or by nothing ('')."""

  ours: str
  beside: str = ''


@dataclasses.dataclass(frozen=True)
class Column:
  """One column: a figure of each cell, and its format.

  Attributes:
    heading: the text above it.
    field: the name of a field, or a function of the cell. Text is shown as it is, None as
      `missing`.
    form: the format of a number, such as '.2f'.
    unit: follows the number, such as '×'.
    scale: multiplies the number; 100 for per cent.
    beside: a function of the row: the text that follows the figure, or its dash.
    cell: a function of the row that picks the cell, or None if there is none. By default the row is
      the cell.
    names_row: whether the column names the row; then it is shown even if the cell failed.
    missing: the text for a missing figure.
  """

  heading: str
  field: str | Callable[[Any], Any]
  form: str = ''
  unit: str = ''
  scale: float = 1
  beside: Callable[[Any], str] = lambda row: ''
  cell: Callable[[Any], Any] = lambda row: row
  names_row: bool = False
  missing: str = MISSING

  def text(self, cell: Any) -> str:
    """The figure of a cell that did not fail."""
    value = self.field(cell) if callable(self.field) else field(cell, self.field)
    if value is None:
      return self.missing
    if not isinstance(value, int | float):
      return str(value)
    return text(self.scale * value, self.form, self.unit)


@dataclasses.dataclass(frozen=True)
class Drawn:
  """A table of text."""

  title: str
  header: tuple[str, ...]
  rows: tuple[tuple[Entry, ...], ...]
  notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Table:
  """A declared table; `of` fills it.

  Attributes:
    title: '' for none.
    columns: from left to right.
    notes: the lines below it.
    conditions: names of the conditions that a last note lists.
    sort: the key of the order of rows; None keeps their order.
  """

  title: str
  columns: Sequence[Column]
  notes: Sequence[str] = ()
  conditions: Sequence[str] = ()
  sort: Callable[[Any], Any] | None = None

  def of(
    self,
    rows: Iterable[Any],
    cells: Iterable[Any] | None = None,
    above: Iterable[Mapping[str, str | Entry]] = (),
    below: Iterable[Mapping[str, str | Entry]] = (),
    notes: Iterable[str] = (),
  ) -> Drawn:
    """The table of some rows.

    Args:
      rows: cells, or whatever the columns' `cell` picks cells by.
      cells: the cells whose conditions are noted; by default the rows.
      above, below: published rows, as text by heading; a heading that is left out is missing.
      notes: more of them, after the table's own.
    """
    shown = list(rows)
    noted = shown if cells is None else list(cells)
    if self.sort is not None:
      shown = sorted(shown, key=self.sort)
    texts = [*map(self._published, above), *map(self._entries, shown), *map(self._published, below)]
    conditions = conditions_note(noted, self.conditions) if self.conditions else ()
    header = tuple(column.heading for column in self.columns)
    return Drawn(self.title, header, tuple(texts), (*self.notes, *notes, *conditions))

  def _entries(self, row: Any) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    failed: list[Any] = []  # cells of this row whose reason is already shown
    for column in self.columns:
      cell = column.cell(row)
      error = None if column.names_row else field(cell, 'error')
      if cell is not None and error is None:
        ours = column.text(cell)
      elif error is not None and not any(cell is one for one in failed):
        ours = f'failed: {" ".join(error.split())}'
        failed.append(cell)
      else:
        ours = column.missing
      entries.append(Entry(ours, column.beside(row)))
    return tuple(entries)

  def _published(self, row: Mapping[str, str | Entry]) -> tuple[Entry, ...]:
    texts = [row.get(column.heading, column.missing) for column in self.columns]
    return tuple(Entry(text) if isinstance(text, str) else text for text in texts)


def field(row: Any, name: str) -> Any:
  """A field of a row; None where it has none."""
  return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)


def conditions_note(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
  """One note with the conditions of these names, all values where rows differ; [] without rows."""
  values_of: dict[str, dict[str, None]] = {name: {} for name in names}
  for row in rows:
    for name in names if row.get('error') is None else ():
      if row.get(name) is not None:
        values_of[name][str(row[name])] = None
  note = '; '.join(f'{name} {", ".join(values)}' for name, values in values_of.items() if values)
  return [f'Conditions: {note}.'] if note else []


def repetition_note(rows: Iterable[Mapping[str, Any]]) -> list[str]:
  """One note on how much greedy texts repeat, from the lowest share to the highest."""
  compared = (row for row in rows if row.get('same_as_plain') is not None)
  shares = [row['repeated_4grams'] for row in compared if row.get('repeated_4grams') is not None]
  if not shares:
    return []
  known = ' to '.join(dict.fromkeys(f'{100 * share:.1f}' for share in (min(shares), max(shares))))
  return [f'In greedy texts, {known} % of the 4-grams had occurred before in the same text.']


def write(
  path: Path,
  console: rich.console.Console,
  tables: Sequence[Drawn],
  picture: Callable[[Path], object] | None = None,
) -> None:
  """Writes <path>.md and, if there is a picture, <path>.png; prints the tables and says where they
  are."""
  drawn = '\n'.join(map(markdown, tables))
  places = f'\nThe table is {path}.md'
  console.print(drawn)
  if picture is not None:
    picture(path.with_suffix('.png'))
    drawn += f'\n![{tables[0].title}]({path.name}.png)\n'
    places += f', the picture {path}.png'
  write_text(path.with_suffix('.md'), drawn)
  console.print(f'{places}; every row is a line of {path.parent}/results.jsonl')


def markdown(table: Drawn) -> str:
  """A pipe table under its title, notes below."""

  def line(texts: Iterable[str]) -> str:
    return '| ' + ' | '.join(text.replace('|', r'\|') for text in texts) + ' |'

  title = [f'## {table.title}\n'] if table.title else []
  body = [line(' '.join(filter(None, entry)) for entry in row) for row in table.rows]
  notes = [f'{note}\n' for note in table.notes]
  return '\n'.join(
    [*title, line(table.header), line(['---'] * len(table.header)), *body, '', *notes]
  )


def terminal(table: Drawn) -> rich.console.Group:
  """The table for `rich.print`, for 80 columns: what follows a figure is dim and below it."""
  drawn = rich.table.Table(box=rich.box.SIMPLE, padding=(0, 1, 0, 0))
  rows = [
    [(_tight(ours), _tight(beside).strip('()')) for ours, beside in row] for row in table.rows
  ]
  for index, heading in enumerate(table.header):
    texts = [*heading.split(), *(text for row in rows for text in row[index])]
    drawn.add_column(heading, min_width=max(len(text) for text in texts if len(text) <= UNBROKEN))
  for row in rows:
    drawn.add_row(*(_two_lines(ours, beside) for ours, beside in row))
  return rich.console.Group(
    f'\n{table.title}', drawn, rich.text.Text('\n'.join(table.notes), 'dim')
  )


def _tight(figures: str) -> str:
  """Joins several figures, so that the terminal keeps them on one line."""
  return figures.replace(' / ', '/')


def _two_lines(ours: str, beside: str) -> rich.text.Text:
  between = rich.text.Text('\n' if ours and beside else '')
  return between.join([rich.text.Text(ours), rich.text.Text(beside, 'dim')])


def between(ratios: Sequence[float] | None) -> str:
  """The least and the largest ratio of the rounds, in parentheses; '' without rounds."""
  return '' if not ratios else f'({ratios[0]:.2f} .. {ratios[1]:.2f})'


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
