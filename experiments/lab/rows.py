"""Rows: measurements as JSON lines, finished or failed, each with all its conditions.

A row is a flat dict. Its key fields say what was measured, and on which model; the others are
figures and conditions. `Workdir.fill` measures the rows that are missing.
"""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.evaluation.rows import Row
from fastdec.files import json_lines, json_of
from fastdec.training.stage import digest

LONGEST_NAME = 60  # characters


def name_of(key: Mapping[str, Any]) -> str:
  """Returns a file name for a key: its first fields and, if they do not all fit, a digest."""
  words: list[str] = []
  for field, value in key.items():
    word = f'{field}={value}'.replace('/', '|').replace(' ', '')
    if len('-'.join([*words, word])) > LONGEST_NAME:
      return '-'.join([*words, digest({'key': json_of(key)})])
    words.append(word)
  return '-'.join(words)


def find(rows: Sequence[Row], **key: Any) -> Row | None:
  """Returns the last finished row with these fields; None if there is none."""
  wanted = json_of(key)
  for row in reversed(rows):
    # JSON has no tuples, so () differs from every value: it marks a missing field
    if not is_failure(row) and all(row.get(name, ()) == value for name, value in wanted.items()):
      return row
  return None


def find_failure(rows: Sequence[Row], **key: Any) -> Row | None:
  """Returns the last failure that matches a key; None if there is none.

  A failure matches where none of its fields has another value: it may lack fields that were not yet
  known.
  """
  wanted = json_of(key)
  for row in reversed(rows):
    if is_failure(row) and all(row.get(name, value) == value for name, value in wanted.items()):
      return row
  return None


def is_failure(row: Mapping[str, Any]) -> bool:
  """Returns whether a row holds a failure, not figures."""
  return row.get('error') is not None


def latest(rows: Iterable[Row], *names: str) -> list[Row]:
  """Returns, for each combination of these fields, the last finished row, or the last failure if
  none finished."""
  last: dict[str, Row] = {}
  for row in rows:
    key = repr([row.get(name) for name in names])
    if not is_failure(row) or is_failure(last.get(key, row)):
      last[key] = row
  return list(last.values())


def read(path: pathlib.Path) -> list[Row]:
  """Returns the rows of a file, in their order; [] if the file does not exist.

  Raises:
    UserError: a line is JSON but not a row, or the file cannot be read.
  """
  rows = []
  for number, row in json_lines(path):
    if not isinstance(row, dict) or not isinstance(row.get('error', ''), str | None):
      raise UserError(f'line {number} of {path} is not a row: remove it, or use another workdir')
    rows.append(row)
  return rows
