"""The values, the table and the picture of a sweep; see experiments/sweep.py."""

import contextlib
import dataclasses
import difflib
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from experiments.lab.command import Paper
from experiments.lab.report import Column, Table
from experiments.lab.report import write as write_tables
from experiments.lab.rows import Row, Rows
from fastdec.errors import UserError
from fastdec.evaluation import drawing


@dataclasses.dataclass(frozen=True)
class Swept:
  """A name and its values.

  Attributes:
    name: of a row's field.
    setting: with dots, of the config.
    values: typed as the config has them.
    is_listed: whether the setting is a list, which takes them all at once.
  """

  name: str
  setting: str
  values: tuple[Any, ...]
  is_listed: bool


def parse(words: Sequence[str], config: ConfigDict, paper: Paper | None) -> list[Swept]:
  """The values that --sweep=NAME=A,B gives.

  Raises:
    UserError: no such name, no values, a value of another type, or a page without a paper.
  """
  if paper is None:
    raise UserError('this config names no PAPER to sweep: give a page of configs/, or define one')
  found: list[Swept] = []
  for word in words:
    name, equals, text = word.partition('=')
    values = [value.strip() for value in text.split(',') if value.strip()]
    if not equals or not values or len(set(values)) < len(values):
      raise UserError(f"--sweep='{word}' is not possible: give NAME=A,B, each value once")
    leaves = _leaves(config)
    setting = paper.axes.get(name, name)
    if setting not in leaves:
      known = [*paper.axes, *leaves]
      near = difflib.get_close_matches(name, known, 1)
      advice = f'did you mean {near[0]}?' if near else f'known are {", ".join(paper.axes)}'
      raise UserError(f"--sweep='{word}' is not possible: there is no setting '{name}', {advice}")
    if any(one.setting == setting for one in found):
      raise UserError(f"--sweep='{word}' is not possible: {name} is swept already")
    there: Any = leaves[setting]
    is_listed = isinstance(there, tuple)
    like = next(iter(there), None) if is_listed else there
    found.append(
      Swept(name, setting, tuple(_typed(like, value, word) for value in values), is_listed)
    )
  return found


def put(config: ConfigDict, setting: str, value: Any) -> None:
  """Sets a leaf of a config by its dotted name."""
  *parts, leaf = setting.split('.')
  place: Any = config
  for part in parts:
    place = place[part]
  with place.unlocked():
    place[leaf] = value


def write(
  path: pathlib.Path,
  found: Sequence[tuple[Mapping[str, Any], Rows | None]],
  swept: Sequence[Swept],
  paper: Paper,
) -> None:
  """Writes <path>.md and <path>.png of the rows at all points of a sweep."""
  rows: list[Row] = []
  for point, at_point in found:
    for row in at_point.shown if at_point is not None else ():
      if all(row.get(one.name, one.values[0]) in one.values for one in swept if one.is_listed):
        rows.append({**row, **point})
  if not rows:
    return
  settings = [one.setting for one in swept if not one.is_listed]
  names = [*paper.axes, *settings]
  columns = [Column(name, name, names_row=True) for name in names]
  columns += [Column(heading, field, form) for heading, field, form in paper.figures]
  table = Table('Sweep', columns).of(rows)
  draw = functools.partial(_draw, rows, [one.name for one in swept], names, paper.figures[0])
  console = next(at_point.console for _, at_point in found if at_point is not None)
  write_tables(path, console, [table], draw)


def _draw(
  rows: Sequence[Row],
  swept: Sequence[str],
  names: Sequence[str],
  figure: tuple[str, str, str],
  path: pathlib.Path,
) -> None:
  """Draws the first figure against the first swept number, a curve for each of the other values."""
  heading, field, _ = figure
  measured = [row for row in rows if row.get(field) is not None]
  numbers = [name for name in swept if all(type(row.get(name)) in (int, float) for row in measured)]
  across = numbers[0] if numbers else 'row'
  curves: dict[str, list[tuple[float, float]]] = {}
  for i, row in enumerate(measured):
    others = (
      f'{name} {row[name]}' for name in names if name != across and row.get(name) is not None
    )
    point = float(row[across] if numbers else i), float(row[field])
    curves.setdefault(', '.join(others) if numbers else '', []).append(point)
  picture, (panel,) = drawing.panels(1)
  drawing.dress(panel, 'Sweep', heading, across)
  for i, (label, points) in enumerate(curves.items()):
    turn = i % len(drawing.COLOURS)
    style = drawing.Style(drawing.COLOURS[turn], drawing.MARKERS[turn], '-')
    drawing.curve(panel, sorted(points), style, label)
  drawing.legend(picture, 2)
  drawing.save(picture, path)


def _leaves(config: ConfigDict, path: str = '') -> dict[str, Any]:
  """The settings of a config by their dotted names."""
  found: dict[str, Any] = {}
  for name, value in config.items():
    found |= (
      _leaves(value, f'{path}{name}.') if isinstance(value, ConfigDict) else {path + name: value}
    )
  return found


def _typed(like: Any, text: str, word: str) -> Any:
  """A value of the type that another has; like None, as an entry of an empty list is, a number or
  else text."""
  kind = type(like)
  if kind is bool and text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  kinds = (int, float, str) if like is None else [kind] * (kind is not bool)
  for one in kinds:
    with contextlib.suppress(ValueError):
      return one(text)
  raise UserError(f"--sweep='{word}' is not possible: {text} is not of type {kind.__name__}")
