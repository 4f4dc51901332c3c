"""Wall clock on a machine that is never quite idle: functions are timed in turn and compared pair by pair."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax

Name = TypeVar('Name', bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Timing:
  """Seconds per input of one function, one entry a round."""

  seconds: tuple[float, ...]
  compile_seconds: float  # by how much the first round, not among `seconds`, exceeded the median one

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
    """How many times faster than `other` this is: the median of the ratios of rounds that ran side by side."""
    return statistics.median(slow / fast for slow, fast in zip(other.seconds, self.seconds, strict=True))


def measure(
  functions: Mapping[Name, Callable[..., Any]],
  repeats: int,
  inputs: Sequence[tuple] = ((),),
) -> dict[Name, Timing]:
  """Times functions against each other: A B A B, waiting for what they return.

  Every round calls each function once on each input, one input after the other. A round before the first, of which
  only the excess is reported, compiles.

  Args:
    functions: what to time, by name; called with one entry of `inputs`, they return arrays or trees of them.
    repeats: rounds, at least 1.
    inputs: argument tuples, such as one sentence each; by default one empty tuple.
  """
  first = _round(functions, inputs)
  rounds = [_round(functions, inputs) for _ in range(repeats)]
  timings = {}
  for name in functions:
    seconds = [times[name] for times in rounds]
    excess = (first[name] - statistics.median(seconds)) * len(inputs)
    timings[name] = Timing(tuple(seconds), max(0.0, excess))
  return timings


def _round(functions: Mapping[Name, Callable[..., Any]], inputs: Sequence[tuple]) -> dict[Name, float]:
  """Mean seconds per input of each function."""
  total = dict.fromkeys(functions, 0.0)
  for arguments in inputs:
    for name, function in functions.items():
      start = time.perf_counter()
      jax.block_until_ready(function(*arguments))
      total[name] += time.perf_counter() - start
  return {name: seconds / len(inputs) for name, seconds in total.items()}
