"""A plan: the stages and rows of an experiment with what they cost, before any work.

A `Plan` takes the place of a `Workdir`, so the paper's own function lists its stages and rows; none
is made. Costs on a GPU are on paper (`machine.py`). On this machine, steps and calls are timed.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.lab.machine import Count, Machine
from experiments.lab.rows import Row, find, read
from fastdec.errors import UserError
from fastdec.training import stage as stages


@dataclasses.dataclass
class Cost:
  """What a stage, or the rows of a model, cost."""

  what: str  # says what is done
  steps: float = 0  # of the training, or calls of the model
  tokens: float = 0  # trained on, or written
  step: Count = dataclasses.field(default_factory=Count)  # for the rows of one device
  devices: int = 1  # that share the work
  seconds: float = 0
  disk: float = 0  # bytes that stay
  scratch: float = 0  # bytes that are free again afterwards

  def __str__(self) -> str:
    words = [f'{shorten(self.steps)} calls', f'{shorten(self.tokens)} tokens']
    if self.step.flops:
      words[0] = f'{shorten(self.steps)} steps'
      words.append(f'a step on each of {self.devices}: {shorten(self.step.flops, "FLOPs")}')
      words.append(f'{shorten(self.step.bytes, "B")}, {shorten(self.step.memory, "B")} of memory')
    words.append(f'{self.seconds / 3600:.3g} h')
    if self.disk:
      words.append(f'{shorten(self.disk, "B")} of disk')
    return f'{self.what}\n    {", ".join(words)}'


class Plan:
  """Takes the place of a `Workdir`: records stages and rows, and makes none."""

  def __init__(self, root: pathlib.Path, machine: Machine | None, costs: Mapping[Any, Any]) -> None:
    self.root, self.path = root, root / 'results.jsonl'  # they need not exist
    # what the stages run on, each being shown once its cost is known; None: only what they need is
    self.machine: Any = machine
    self.costs = costs  # functions that return them, by those that make stages
    self.timed: dict[Any, float] = {}  # seconds of programs of calls
    # Each stage, and the rows of each model, in order: the name; 'made', 'begun' or 'new', or how
    # many rows are there; the cost, None if nothing is left to do or it is not known.
    self.entries: list[tuple[str, str, Cost | None]] = []
    self.steps: dict[str, int] = {}  # of trainings, by names of all stages in order; else 0
    self.inputs: dict[pathlib.Path, Mapping[str, Any]] = {}  # of the stages, by their folders
    self.is_complete = True  # False when rows cannot be listed before their models are made

  def read(self, make: Callable[[Any, Any], None], c: Any) -> None:
    """Lists what a paper's function would make with these settings.

    Raises:
      UserError, OSError: it would fail before anything is made.
    """
    try:
      make(c, self)
    except (UserError, OSError):
      # The rows of many papers are named by what their models are.
      if all(state == 'made' for _, state, _ in self.entries):
        raise
      self.is_complete = False

  def _note(self, name: str, state: str, cost: Cost | None) -> None:
    """Adds an entry, and shows it."""
    self.entries.append((name, state, cost))
    if cost is not None:
      state += f'; {cost}'
    elif state in ('new', 'begun'):
      state += ', not estimated and not counted below'
    if self.machine is not None:
      print(f'{len(self.entries):3} {name}: {state}', flush=True)

  def stage(
    self, name: str, make: Callable[..., object], cost: Any = None, **inputs: Any
  ) -> pathlib.Path:
    """Notes a stage, and returns its folder."""
    folder = self.root / f'{name}-planned'
    is_made = False
    if self.root.is_dir():
      # A stage on one that is not made has no folder.
      with contextlib.suppress(UserError, OSError):
        folder = stages.folder_of(self.root, name, inputs)
        is_made = stages.is_made(folder)
    if folder not in self.inputs:
      self.inputs[folder] = inputs
      self.steps[name] = getattr(inputs.get('run'), 'steps', 0)
      cost = cost or self.costs.get(make)
      if is_made:
        self._note(name, 'made', None)
      else:
        state = 'begun' if folder.is_dir() else 'new'
        self._note(name, state, cost and cost(self, **inputs))
    return folder

  def fill(
    self, keys: Sequence[Row | list[Row]], figures: Any, summary: Any = None, cost: Any = None
  ) -> list[Row]:
    """Notes the rows that are missing, those of a group together; returns no row."""
    lines = read(self.path)
    for group in keys:
      listed = group if isinstance(group, list) else [group]
      missing = [key for key in listed if find(lines, **key) is None]
      names = ' '.join(f'{name}={listed[0][name]}' for name in list(listed[0])[:2])
      there = f'{len(listed) - len(missing)} of {len(listed)} rows are there'
      known = None
      if missing and cost is not None and self.machine is not None:
        known = cost(self, missing)
      self._note(names, there, known)
    return []

  def do(self, action: Callable[[], None]) -> None:
    """Does nothing."""

  def each(self, groups: Sequence[Any], do: Callable[[Any], Any]) -> list[Any]:
    """Returns do(group) for each group; None where it reads a model that is not made."""
    values: list[Any] = []
    for group in groups:
      try:
        values.append(do(group))
      except (UserError, OSError):
        values.append(None)
        self.is_complete = False
    return values

  def failures(self, keys: Any) -> list[Row]:
    """Nothing fails."""
    return []


def shorten(number: float, unit: str = '') -> str:
  """Returns a number in three digits: 1.23 G, or 1.23 GB."""
  for prefix, size in (('P', 1e15), ('T', 1e12), ('G', 1e9), ('M', 1e6), ('k', 1e3)):
    if number >= size:
      return f'{number / size:.3g} {prefix}{unit}'
  return f'{number:.0f} {unit}'.strip()
