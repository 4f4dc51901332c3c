"""Wall clock on a machine that is never idle: functions are timed in turn and compared in pairs.

Only one process of a user takes times at a time (`alone`). Trainings and decodes run on.
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
from fastdec.files import locked

TOGETHER = 8  # inputs of one function in a row
SILENT = 1.0  # seconds of waiting before a message

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
    """Returns the median speed-up over `other`, of rounds that ran side by side."""
    return statistics.median(self._ratios(other))

  def speedups_over(self, other: 'Timing') -> tuple[float, float]:
    """Returns the least and the largest of the ratios whose median is `speedup_over`."""
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

  Every round calls each function once on each input. A function takes `TOGETHER` inputs in a row,
  with its own parameters in the processor's caches, as a user runs it. The next function follows
  soon enough to meet the machine in the same mood. Each round begins with another function, so that
  none always follows the same one. A round before the first compiles; only its excess is reported.
  Only the rounds after it are timed `alone`.

  Args:
    functions: what to time, by name; called with one entry of `inputs`, they return arrays or trees
      of them.
    repeats: rounds, at least 1.
    inputs: argument tuples, such as one sentence each; by default one empty tuple.
    rests: seconds to sleep after a call of these functions, which do not count.
  """
  # The first round compiles; only its excess over the others is kept.
  names = list(functions)
  first = _round(functions, names, inputs, rests)
  with alone():
    rounds = [_round(functions, _turned(names, number), inputs, rests) for number in range(repeats)]
  timings = {}
  for name in functions:
    seconds = [times[name] for times in rounds]
    excess = (first[name] - statistics.median(seconds)) * len(inputs)
    timings[name] = Timing(tuple(seconds), max(0.0, excess))
  return timings


@contextlib.contextmanager
def alone() -> Iterator[None]:
  """Holds this user's lock on taking times, and waits for the process that has it.

  Says so after a second. Where the lock cannot be made, times are taken without.
  """
  lock = pathlib.Path(tempfile.gettempdir()) / f'fastdec-times-{os.getuid()}.lock'
  words = f'Waiting until another process has taken its times ({lock})'
  waiting = threading.Timer(SILENT, print, [words], {'file': sys.stderr, 'flush': True})
  with contextlib.ExitStack() as held:
    waiting.start()
    try:
      with contextlib.suppress(UserError):
        held.enter_context(locked(lock))
    finally:
      waiting.cancel()
    yield


def _turned(names: list[Name], number: int) -> list[Name]:
  """Returns the order of a round."""
  begin = number % max(len(names), 1)
  return names[begin:] + names[:begin]


def _round(
  functions: Mapping[Name, Callable[..., Any]],
  order: Sequence[Name],
  inputs: Sequence[tuple],
  rests: Mapping[Name, float],
) -> dict[Name, float]:
  """Returns the mean seconds per input of each function."""
  total = dict.fromkeys(functions, 0.0)
  for begin in range(0, len(inputs), TOGETHER):
    for name in order:
      for arguments in inputs[begin : begin + TOGETHER]:
        start = time.perf_counter()
        jax.block_until_ready(functions[name](*arguments))
        total[name] += time.perf_counter() - start
        if name in rests:
          time.sleep(rests[name])
  return {name: seconds / len(inputs) for name, seconds in total.items()}
