"""What a training run told TensorBoard: the numbers of its evaluations, and how long its steps
took."""

import itertools
import pathlib
import statistics
import struct
from collections.abc import Iterator
from typing import Any

from fastdec import extras

with extras.explained():
  from tensorboardX.proto import event_pb2

HEAD = struct.Struct('<QI')  # of a record: its length, and that length's checksum
TAIL = 4  # bytes of the checksum behind it


def evaluations(workdir: pathlib.Path) -> dict[int, dict[str, float]]:
  """By step: what `experiments.train` found out about the parameters after it, by names that have
  '_' for a blank.

  Empty where there is nothing to read.
  """
  found: dict[int, dict[str, float]] = {}
  for event in _events(workdir):
    for value in event.summary.value:
      if value.tag.startswith('eval/'):
        found.setdefault(event.step, {})[value.tag.removeprefix('eval/')] = value.simple_value
  return dict(sorted(found.items()))


def seconds_a_step(workdir: pathlib.Path) -> float | None:
  """The median over the intervals between two lines of the log, whatever lay between two calls;
  None without any."""
  times = {}
  for event in _events(workdir):
    if any(value.tag == 'train/loss' for value in event.summary.value):
      times[event.step] = event.wall_time
  steps = sorted(times)
  spans = [(times[b] - times[a]) / (b - a) for a, b in itertools.pairwise(steps)]
  return statistics.median(spans) if spans else None


def _events(workdir: pathlib.Path) -> Iterator[Any]:
  """All events, those of a later call behind an earlier one's; a record that was cut short ends its
  file."""
  messages: Any = event_pb2
  for path in sorted((workdir / 'tb').glob('events.*')):
    data, place = path.read_bytes(), 0
    while place + HEAD.size <= len(data):
      length, _ = HEAD.unpack_from(data, place)
      place += HEAD.size
      if place + length + TAIL > len(data):
        break
      yield messages.Event.FromString(data[place : place + length])
      place += length + TAIL
