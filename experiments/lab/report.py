"""Tables of text as Markdown and for the terminal, and rows as CSV."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table
import rich.text

MISSING = '–'
UNBROKEN = 14  # characters: figures are not broken over lines, reasons of failures are


class Entry(NamedTuple):
  """Ours, and the paper's beside it ('' where there is none)."""

  ours: str
  paper: str = ''


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of text, before it is drawn."""

  title: str
  header: tuple[str, ...]
  rows: tuple[tuple[Entry, ...], ...]
  notes: tuple[str, ...]


def markdown(table: Table) -> str:
  """A pipe table under its title, notes below."""

  def line(texts: Iterable[str]) -> str:
    return '| ' + ' | '.join(text.replace('|', r'\|') for text in texts) + ' |'

  body = [line(' '.join(filter(None, entry)) for entry in row) for row in table.rows]
  notes = [f'{note}\n' for note in table.notes]
  return '\n'.join([f'## {table.title}\n', line(table.header), line(['---'] * len(table.header)), *body, '', *notes])


def terminal(table: Table) -> rich.console.Group:
  """The same for `rich.print`, 80 columns wide if need be: figures without spaces, the paper's dim, below ours."""
  drawn = rich.table.Table(box=rich.box.SIMPLE, padding=(0, 1, 0, 0))
  rows = [
    [(ours.replace(' / ', '/'), beside.replace(' / ', '/').strip('()')) for ours, beside in row] for row in table.rows
  ]
  for index, heading in enumerate(table.header):
    texts = [*heading.split(), *(text for row in rows for text in row[index])]
    drawn.add_column(heading, min_width=max(len(text) for text in texts if len(text) <= UNBROKEN))
  for row in rows:
    drawn.add_row(
      *(
        rich.text.Text('\n' * bool(ours and beside)).join([rich.text.Text(ours), rich.text.Text(beside, 'dim')])
        for ours, beside in row
      )
    )
  return rich.console.Group(f'\n{table.title}', drawn, rich.text.Text('\n'.join(table.notes), 'dim'))


def csv_text(rows: Sequence[Mapping[str, Any]], first: Iterable[str] = ()) -> str:
  """One line a row, without the columns that no row has; those named in `first` come first."""
  names = dict.fromkeys([*first, *(name for row in rows for name in row)])
  columns = [name for name in names if any(row.get(name) is not None for row in rows)]
  out = io.StringIO()
  writer = csv.DictWriter(out, columns, extrasaction='ignore', lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return out.getvalue()


def text(value: Any, form: str, unit: str = '') -> str:
  """A figure, or a dash for None."""
  return MISSING if value is None else f'{value:{form}}{unit}'
