"""What is measured, as JSON lines: one cell a line, finished or failed; mostly strategies against plain decoding."""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from experiments.lab.cells import append_row, no_cell, plain, rows
from fastdec.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
  """One measurement; subclasses say of what. None is what was not measured, or has no meaning there."""

  models: str | None = None  # a hash of all models and heads
  error: str | None = None  # why there are no figures
  conditions: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def key(self) -> Hashable:
    """What the cell is, whatever came out."""
    raise NotImplementedError

  @property
  def name(self) -> str:
    """The same as a word."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured(Line):
  """A strategy against plain decoding.

  Tokens per call and all ratios are to plain decoding of the same texts' length: token by token, at one temperature.
  """

  tokens_per_call: float | None = None  # of the batch: as many times fewer calls of the target than plain decoding
  speedup: float | None = None  # whole texts, encoder and prompt included
  speedup_calls: float | None = None  # without the prompt
  spread: tuple[float, float] | None = None  # the least and the largest `speedup` of rounds side by side
  ms_per_token: float | None = None
  plain_ms_per_token: float | None = None
  same_as_plain: float | None = None  # share of texts, at temperature 0
  parted: int | None = None  # texts that are not the same, at temperature 0: all at near ties, see `parting`
  largest_gap: float | None = None  # between the logits of two tokens where such a text parts
  texts: int | None = None


Kind = TypeVar('Kind', bound=Line)


def append(path: Path, cell: Line) -> None:
  """Adds one line in one write, on disk when this returns."""
  append_row(path, {name: plain(getattr(cell, name)) for name in _fields(type(cell))} | dict(cell.conditions))


def read(path: Path, kind: type[Kind]) -> list[Kind]:
  """The cells in the file in their order, none where it does not exist.

  Raises:
    UserError: a line that is JSON and no cell.
  """
  cells = []
  for number, row in rows(path):
    try:
      fields = {name: row.pop(name) for name in _fields(kind) if name in row}
      fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
      cells.append(kind(**fields, conditions=row))
    except (AttributeError, TypeError, UserError):
      raise no_cell(number, path) from None
  return cells


def latest(cells: Iterable[Kind]) -> dict[Hashable, Kind]:
  """Of each key the last cell that was measured, or, where there is none, the last failure."""
  found: dict[Hashable, Kind] = {}
  for cell in cells:
    if cell.error is None or found.get(cell.key, cell).error is not None:
      found[cell.key] = cell
  return found


def conditions(cells: Iterable[Line], names: Sequence[str]) -> list[str]:
  """One note with what the figures depend on; where cells differ, all values; none without cells."""
  rows = [cell.conditions for cell in cells if cell.error is None]
  values = {name: dict.fromkeys(str(row[name]) for row in rows if row.get(name) is not None) for name in names}
  note = '; '.join(f'{name} {", ".join(found)}' for name, found in values.items() if found)
  return [f'Conditions: {note}.'] if note else []


def repeated(cells: Iterable[Measured]) -> list[str]:
  """One note on what greedy texts repeat, from model to model, by the cells that have them; none without."""
  shares = {cell.conditions.get('repeated_4grams') for cell in cells if cell.same_as_plain is not None} - {None}
  known = ' to '.join(dict.fromkeys(f'{100 * share:.1f}' for share in (min(shares), max(shares)))) if shares else ''
  return [f'Of the 4-grams of greedy texts, {known} % had stood before in the same text.'] if shares else []


def _fields(kind: type[Line]) -> list[str]:
  return [field.name for field in dataclasses.fields(kind) if field.name != 'conditions']
