"""Cells as JSON lines: one measurement a line, finished or failed, with all its conditions.

A cell is what an experiment measures at once: one model with one rule, one strategy against plain
decoding, ... Each paper has its own kind (papers/<name>/cells.py); all kinds are appended, read and
compared by what stands here.
"""

import dataclasses
import json
import math
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fastdec.errors import UserError
from fastdec.files import parse_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """One measurement. Subclasses add what it is (positional fields) and its figures; None is what
  was not measured."""

  # a hash of all models and heads that were measured; see `folders.content`
  models: str | None = None
  error: str | None = None  # why there are no figures
  # device, dtype, seed, commit, ...
  conditions: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def key(self) -> Hashable:
    """Says which cell it is, whatever came out; the fields before the figures, in their order."""
    raise NotImplementedError

  @property
  def place(self) -> Hashable:
    """The key, and what else tells cells apart in one file: the split, where several are
    measured."""
    return self.key

  @property
  def name(self) -> str:
    """A word for the key, as a part of file names."""
    raise NotImplementedError


Kind = TypeVar('Kind', bound=Cell)


def append(path: Path, cell: Cell) -> None:
  """Adds one line in one write; it is on the disk when this returns."""
  append_row(path, row_of(cell))


def append_row(path: Path, row: Mapping[str, Any]) -> None:
  """Adds the line of a measurement that is no cell, such as a benchmark's; as `append` does."""
  line = json.dumps(row, ensure_ascii=False) + '\n'
  path.parent.mkdir(parents=True, exist_ok=True)
  with open(path, 'a+b', buffering=0) as file:
    file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
    # by a write that was killed: the new line must not join its fragment
    is_cut = file.read(1) not in (b'', b'\n')
    file.write(('\n' * is_cut + line).encode())
    os.fsync(file.fileno())


def read(path: Path, kind: type[Kind]) -> list[Kind]:
  """The cells of one kind in a file, in their order; none if the file does not exist.

  A line that is not JSON is passed over: it is the fragment of a write that was killed.

  Raises:
    UserError: a line is JSON, and is not a cell of this kind.
  """
  cells = []
  for number, row in _rows(path):
    try:
      cells.append(_cell_of(row, kind))
    except (AttributeError, TypeError, UserError):
      remedy = 'remove the line, or use another workdir'
      raise UserError(f'line {number} of {path} is no cell of a table: {remedy}') from None
  return cells


def latest(cells: Iterable[Kind]) -> dict[Any, Kind]:
  """By key: the last cell that was measured, or the last failure if none was."""
  found: dict[Any, Kind] = {}
  for cell in cells:
    if cell.error is None or found.get(cell.key, cell).error is not None:
      found[cell.key] = cell
  return found


def row_of(cell: Cell) -> dict[str, Any]:
  """The JSON object of a cell: its fields, then its conditions, all on one level."""
  row = {name: getattr(cell, name) for name in field_names(type(cell))} | dict(cell.conditions)
  return {name: _plain(value) for name, value in row.items()}


def flat(cell: Cell) -> dict[str, Any]:
  """`row_of` for a line of a CSV file: the entries of a mapping become columns, such as
  milliseconds_host."""
  row = {}
  for name, value in row_of(cell).items():
    if isinstance(value, dict):
      row |= {f'{name}_{key}': entry for key, entry in value.items()}
    else:
      row[name] = value
  return row


def field_names(kind: type[Cell]) -> list[str]:
  """The fields of a kind without `conditions`: first what a cell is and its own figures, then the
  common ones."""
  fields = sorted(dataclasses.fields(kind), key=lambda field: field.kw_only is True)
  return [field.name for field in fields if field.name != 'conditions']


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
  """The JSON values in a file of lines, with the numbers of their lines."""
  try:
    lines = path.read_bytes().split(b'\n') if path.exists() else ()
  except OSError as error:
    raise UserError(f'cannot read {path} ({error.strerror}): use another workdir') from None
  for number, line in enumerate(lines, start=1):
    try:
      row = parse_json(line)
    except ValueError:
      continue
    yield number, row


def _cell_of(row: dict[str, Any], kind: type[Kind]) -> Kind:
  row = dict(row)
  fields: dict[str, Any] = {name: row.pop(name) for name in field_names(kind) if name in row}
  for name, value in fields.items():
    fields[name] = tuple(value) if isinstance(value, list) else value
  return kind(**fields, conditions=row)


def _plain(value: Any) -> Any:
  """A value as JSON has it: tuples as lists, a number that is not finite as None."""
  if isinstance(value, Mapping):
    return {name: _plain(entry) for name, entry in value.items()}
  if isinstance(value, tuple):
    return [_plain(entry) for entry in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value
