"""Rows: measurements as JSON lines, finished or failed, each with all its conditions.

A row is a flat dict. Its key fields say what was measured, and on which model; the others are
figures and conditions. `Workdir.fill` measures those that are missing.
"""

import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.lab.stage import digest
from fastdec.errors import UserError
from fastdec.evaluation.rows import Row
from fastdec.evaluation.wallclock import Timing
from fastdec.files import json_lines

LONGEST_NAME = 60  # characters


def name_of(key: Mapping[str, Any]) -> str:
  """A key in a few words, for file names: its first fields, and a digest where it has more."""
  words: list[str] = []
  for field, value in key.items():
    word = f'{field}={value}'.replace('/', '|').replace(' ', '')
    if len('-'.join([*words, word])) > LONGEST_NAME:
      return '-'.join([*words, digest({'key': json_of(key)})])
    words.append(word)
  return '-'.join(words)


def find(rows: Sequence[Row], is_failed: bool = False, **key: Any) -> Row | None:
  """The last of the rows with these fields, finished or failed; None where there is none.

  A failure may have fewer of the fields: it ended before more was known.
  """
  wanted = json_of(key)
  for row in reversed(rows):
    if (row.get('error') is not None) != is_failed:
      continue
    if all(row.get(name, value if is_failed else ()) == value for name, value in wanted.items()):
      return row
  return None


def latest(rows: Iterable[Row], *names: str) -> list[Row]:
  """The last finished row for each value of the fields of these names, or its last failure."""
  last: dict[str, Row] = {}
  for row in rows:
    key = repr([row.get(name) for name in names])
    if row.get('error') is None or last.get(key, row).get('error') is not None:
      last[key] = row
  return list(last.values())


def beside_greedy(ours: Timing, greedy: Timing) -> Row:
  """The fields about time of a row of outputs one by one."""
  return {
    'ms_per_output': ours.milliseconds,
    'greedy_ms_per_output': greedy.milliseconds,
    'speedup': ours.speedup_over(greedy),
    'spread': ours.speedups_over(greedy),
    'compile_seconds': ours.compile_seconds,
  }


def read(path: pathlib.Path) -> list[Row]:
  """The rows of a file, in their order; none if there is no file.

  Raises:
    UserError: a line is JSON and no row, or the file cannot be read.
  """
  rows = []
  for number, row in json_lines(path):
    if not isinstance(row, dict) or not isinstance(row.get('error', ''), str | None):
      raise UserError(f'line {number} of {path} is not a row: remove it, or use another workdir')
    rows.append(row)
  return rows


def json_of(value: Any) -> Any:
  """A value as JSON gives it back: tuples as lists, a number that is not finite as None."""
  if isinstance(value, Mapping):
    return {name: json_of(entry) for name, entry in value.items()}
  if isinstance(value, tuple | list):
    return [json_of(entry) for entry in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value
