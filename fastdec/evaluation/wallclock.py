"""Takes times on a machine that is never idle: functions run in turn and are compared in pairs.

All times of fastdec that are compared with others come from here: those of tables, those of
`fd.tune` and those of product forms. Budgets and progress follow its clock, `now`, too. Only one
process of a user takes times at once (`alone`); trainings and decodes of other processes run on.
"""

import contextlib
import dataclasses
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax

from fastdec.errors import UserError
from fastdec.files import lock

TOGETHER = 8  # inputs of one function in a row
SILENT = 1.0  # seconds of waiting before a message
now = time.perf_counter  # the clock, in seconds; tests replace it

Name = TypeVar('Name', bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Timing:
  """Seconds per input of one function, one entry a round."""

  seconds: tuple[float, ...]
  compile_seconds: float  # excess of the first round, not among `seconds`, over the median one

  @property
  def median(self) -> float:
    """The median of the rounds, in seconds per input."""
    return statistics.median(self.seconds)

  @property
  def milliseconds(self) -> float:
    """The median in milliseconds per input."""
    return 1e3 * self.median

  @property
  def spread(self) -> tuple[float, float]:
    """The fastest and the slowest round, in seconds per input."""
    return min(self.seconds), max(self.seconds)

  def speedup_over(self, other: 'Timing') -> float:
    """Returns the median speed-up over `other`, round by round."""
    return statistics.median(self._ratios(other))

  def speedups_over(self, other: 'Timing') -> tuple[float, float]:
    """Returns the smallest and the largest of the ratios whose median is `speedup_over`."""
    ratios = self._ratios(other)
    return min(ratios), max(ratios)

  def _ratios(self, other: 'Timing') -> list[float]:
    return [slow / fast for slow, fast in zip(other.seconds, self.seconds, strict=True)]


def measure(
  functions: Mapping[Name, Callable[..., Any]],
  repeats: int,
  inputs: Sequence[tuple] = ((),),
  rests: Mapping[Name, float] = types.MappingProxyType({}),
) -> dict[Name, Timing]:
  """Times functions against each other: A B C, B C A, C A B, waiting for the arrays they return.

  Each round is one of `time_round`. A round before the first compiles; only its excess is reported.
  Only the rounds after it are timed `alone`.

  Args:
    functions: what to time, by name; called with one entry of `inputs`, they return arrays or trees
      of them.
    repeats: rounds, at least 1.
    inputs: argument tuples, such as one sentence each; by default one empty tuple.
    rests: seconds to sleep after a call of these functions, which do not count.
  """
  first = time_round(functions, 0, inputs, rests)
  rounds = []
  with alone():
    for number in range(repeats):
      rounds.append(time_round(functions, number, inputs, rests))

  timings = {}
  for name in functions:
    seconds = [times[name] for times in rounds]
    excess = (first[name] - statistics.median(seconds)) * len(inputs)
    timings[name] = Timing(tuple(seconds), max(0.0, excess))
  return timings


def time_round(
  functions: Mapping[Name, Callable[..., Any]],
  number: int,
  inputs: Sequence[tuple] = ((),),
  rests: Mapping[Name, float] = types.MappingProxyType({}),
) -> dict[Name, float]:
  """Calls each function once on each input, and returns its mean seconds per input.

  A function takes `TOGETHER` inputs in a row, with its own parameters in the processor's caches, as
  a user runs it. The next function follows soon enough to find the machine in the same state.

  Args:
    functions, inputs, rests: as in `measure`.
    number: the round's number. Each round begins with another function, so that none always follows
      the same one.
  """
  names = list(functions)
  begin = number % max(len(names), 1)
  order = names[begin:] + names[:begin]
  total = dict.fromkeys(names, 0.0)
  for start in range(0, len(inputs), TOGETHER):
    for name in order:
      for arguments in inputs[start : start + TOGETHER]:
        started = now()
        jax.block_until_ready(functions[name](*arguments))
        total[name] += now() - started
        if name in rests:
          time.sleep(rests[name])
  return {name: seconds / len(inputs) for name, seconds in total.items()}


@contextlib.contextmanager
def alone() -> Iterator[None]:
  """Holds this user's lock on taking times, and waits for the process that has it.

  After a second of waiting it says so. If the lock cannot be made, times are taken without it.
  """
  path = pathlib.Path(tempfile.gettempdir()) / f'fastdec-times-{os.getuid()}.lock'
  words = f'Waiting until another process has taken its times ({path})'
  waiting = threading.Timer(SILENT, print, [words], {'file': sys.stderr, 'flush': True})
  with contextlib.ExitStack() as stack:
    waiting.start()
    try:
      with contextlib.suppress(UserError):
        stack.enter_context(lock(path))
    finally:
      waiting.cancel()
    yield
