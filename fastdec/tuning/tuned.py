"""What tuning has found: a strategy, the figures that chose it, and what they hold for; kept as
JSON beside the model.

tuned.json    the strategy's kind and settings, the folder of its heads or draft, the content of model and part when
              the figures were taken (a hash), the machine, and the table
"""

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from fastdec import folders
from fastdec.decoding.protocol import Promise
from fastdec.errors import UserError, UserNote
from fastdec.evaluation import machine
from fastdec.evaluation.machine import Machine
from fastdec.fields import read
from fastdec.files import read_json, write_json
from fastdec.folders.drafts import draft_content, load_draft
from fastdec.tuning.description import build, describe, part_kind

NAME = 'tuned.json'
COMMAND = 'python -m experiments.tune'
PathLike = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Figures:
  """One candidate. What was not measured is None, and `said` says why."""

  name: str
  promise: Promise
  tokens_per_call: float | None = None
  ms_per_call: float | None = None  # the whole time of the texts, prompts included, by their calls
  ms_per_token: float | None = None
  tokens_per_second: float | None = None  # of all rows together
  speedup: float | None = None  # over the plain strategy, with the interval
  low: float | None = None
  high: float | None = None
  # the share of texts that are the type's own greedy ones; None where tokens are drawn
  same: float | None = None
  rounds: int = 0
  compile_seconds: float | None = None
  said: str = ''
  dtype: str | None = None  # of `fd.load`; None: the model's own
  # decoded at once; None in files from before there were several in one race
  rows: int | None = None
  # of another type than the first: the share of texts that equal the first's greedy ones
  as_first: float | None = None


@dataclasses.dataclass(frozen=True)
class Tuned:
  """The fastest strategy here that keeps a promise, and the figures behind it.

  Attributes:
    name: the candidate that was chosen.
    why: a sentence.
    plain: the name of one token a call, which is kept where nothing else is faster beyond noise.
    promise: what was asked for; of the output of one token a call in the type that was chosen.
    rows: texts decoded at once, as was chosen.
    max_len: the most tokens of a text.
    prompts: of how many the figures are.
    seconds: that tuning took, of which compile_seconds were compiling.
    machine: where.
    table: all candidates, as they were given.
    dtype: what `fd.load` is to load the model in; None: its own type.
    strategy: what `decode` takes.
  """

  name: str
  why: str
  plain: str
  promise: Promise
  rows: int
  max_len: int
  prompts: int
  seconds: float
  compile_seconds: float
  machine: Machine
  table: tuple[Figures, ...]
  dtype: str | None = None
  strategy: Any = None

  def save(
    self, model: PathLike, part: PathLike | None = None, file: PathLike | None = None
  ) -> pathlib.Path:
    """Writes tuned.json.

    Args:
      model: the folder that the model was loaded from, or the workdir.
      part: the folder of the strategy's heads or draft (None: the model's own, or it has none).
      file: where to write (None: `tuned.json` in the model's folder).

    Returns:
      The file.

    Raises:
      UserError: a strategy that is not one of fastdec's, a draft model whose folder is not given,
        or a file that cannot be written.
    """
    folder = folders.open(model)
    file = folder.path / NAME if file is None else pathlib.Path(file)
    description = describe(self.strategy)
    kind, place = part_kind(description), None
    if kind == 'model' and part is None:
      raise UserError('this strategy drafts with a model of its own: give its folder as part')
    if kind is not None:
      there = model if part is None else part
      own = kind == 'heads' and (part is None or folders.open(part).path == folder.path)
      place = {
        'folder': None if own else str(pathlib.Path(there).resolve()),
        'content': _content(kind, there),
      }
    figures = dataclasses.asdict(dataclasses.replace(self, strategy=None))
    del figures['strategy']
    write_json(
      file, {'strategy': description, 'part': place, 'model': folder.content, 'figures': figures}
    )
    return file

  def __str__(self) -> str:
    figures = ['tokens/call', 'ms/call', 'ms/token', 'tokens/s', f'of {self.plain}', 'same %']
    others = any(one.as_first is not None for one in self.table)
    figures += [f'as {self.table[0].dtype or "own type"} %'] if others else []
    lines = [['', *figures, '']]
    lines += [_of_figures(one, one.name == self.name, others) for one in self.table]
    width = max(len(line[0]) for line in lines) + 2
    return '\n'.join(_line(width, line).rstrip() for line in lines)


def load_tuned(
  model: PathLike,
  part: PathLike | None = None,
  file: PathLike | None = None,
  mesh: Mesh | None = None,
  prepare: Callable[[Any, Any], tuple[Any, Any]] | None = None,
) -> Tuned:
  """What `Tuned.save` wrote, with the strategy, its heads or draft loaded.

  Args:
    model: the folder of the model, or the workdir.
    part: the folder of the heads or the draft, if they are no longer where they were.
    file: where it was written (None: `tuned.json` in the model's folder).
    mesh: devices over which heads or draft lie, as of `load`.
    prepare: makes (module, params) of heads or draft into what decodes, such as with `fd.pack`;
      None: as they are.

  Raises:
    UserError: there is no such file, it is damaged, or it was made with another model, other heads
      or another draft.
  """
  folder = folders.open(model)
  file = folder.path / NAME if file is None else pathlib.Path(file)
  if not file.is_file():
    raise UserError(
      f'{file} is not there: make it by {COMMAND} --model={model} --prompts=lines.txt'
    )
  content = read_json(file)
  again = f'make it again by {COMMAND} --model={model} --prompts=lines.txt'
  if content.get('model') != folder.content:
    raise UserError(f'{file} was made with another model than is in {model} now: {again}')
  try:
    tuned = read(Tuned, content['figures'], str(file), mark=': ')
    kind = part_kind(content['strategy'])
    place, hashed = (
      (None, None) if kind is None else (content['part']['folder'], content['part']['content'])
    )
  except (UserError, LookupError, TypeError) as error:
    raise UserError(f'{file} is damaged ({error}): {again}') from None
  found = None
  if kind is not None:
    place = pathlib.Path(part or place or model)
    if not place.is_dir():
      raise UserError(
        f'{file} uses the {_called(kind)} in {place}, which is no folder now: {again}'
      )
    if hashed != _content(kind, place):
      raise UserError(
        f'{file} was made with another {_called(kind)} than is in {place} now: {again}'
      )
    found = _loaded(kind, place, tuned.dtype, mesh)
    found = found if prepare is None else prepare(*found)
  try:
    strategy = build(content['strategy'], found)
  except (UserError, TypeError) as error:
    raise UserError(f'{file} is damaged ({error}): {again}') from None
  if tuned.machine != machine.here():
    warnings.warn(
      f'{file} has figures of another machine ({tuned.machine}), and another strategy may be faster'
      f' here: {again}',
      UserNote,
      stacklevel=2,
    )
  return dataclasses.replace(tuned, strategy=strategy)


def _loaded(
  kind: str, place: pathlib.Path, dtype: str | None, mesh: Mesh | None
) -> tuple[Any, Any]:
  load = {'heads': folders.load_heads, 'model': folders.load, 'draft': load_draft}[kind]
  return load(place, dtype=dtype, mesh=mesh)


def _content(kind: str, place: PathLike) -> str:
  return draft_content(place) if kind == 'draft' else folders.content(place)


def _called(kind: str) -> str:
  return {'heads': 'set of heads', 'model': 'draft model', 'draft': 'draft network'}[kind]


def _of_figures(one: Figures, is_chosen: bool, others: bool) -> list[str]:
  """One line of the table; `others`: with a column that compares types."""
  ratio = '-'
  if one.speedup is not None and one.low is not None and one.high is not None:
    ratio = f'{one.speedup:.2f}x ({one.low:.2f}-{one.high:.2f})'
  same, as_first = (
    _number(None if x is None else 100 * x, '.1f') for x in (one.same, one.as_first)
  )
  figures = [
    _number(one.tokens_per_call, '.2f'), _number(one.ms_per_call, '.3f'), _number(one.ms_per_token, '.3f'),
    _number(one.tokens_per_second, '.0f'), ratio, same, *([as_first] if others else []),
  ]  # fmt: skip
  return [('> ' if is_chosen else '  ') + one.name, *figures, one.said]


def _line(width: int, cells: list[str]) -> str:
  """Cells in columns: the name, figures, and what is said."""
  name, *figures, said = cells
  widths = (12, 9, 10, 10, 18, 8, 14)
  right = ''.join(f'{cell:>{width}}' for cell, width in zip(figures, widths, strict=False))
  return f'{name:<{width}}{right}  {said}'


def _number(value: float | None, form: str) -> str:
  return '-' if value is None else f'{value:{form}}'
