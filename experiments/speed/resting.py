"""Timing beside engines whose threads spin on for milliseconds after a call (OpenMP's), at the next call's cost."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fastdec.evaluation.wallclock import Timing, measure

REST = 0.02  # seconds


def measure_resting(
  functions: Mapping[str, Callable[..., Any]], spinning: Collection[str], repeats: int, inputs: Sequence[tuple]
) -> dict[str, Timing]:
  """`wallclock.measure` with a rest, which is not counted, after each function that is named in `spinning`."""
  turns = {}
  for name, function in functions.items():
    turns[name] = function
    if name in spinning:
      turns[f'rest after {name}'] = lambda *_: time.sleep(REST)
  timings = measure(turns, repeats, inputs)
  return {name: timings[name] for name in functions}
