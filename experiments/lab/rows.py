"""Rows: measurements as JSON lines, finished or failed, each with all its conditions.

  rows = Rows(root / 'results.jsonl', conditions)
  each(rows, [{'k': 2}, {'k': 4}], measure)        # measure(k=2), measure(k=4)

A row is a flat dict. Its key fields say what was measured, on which model; the others are figures
and conditions. A row that is there is not measured again. What fails is a row that says why, while
the rest goes on; several processes on one file share the work.
"""

import contextlib
import contextvars
import functools
import math
import pathlib
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.lab import stage
from fastdec.cli.show import plain_console
from fastdec.errors import UserError
from fastdec.evaluation.rows import Row, append
from fastdec.evaluation.wallclock import Timing
from fastdec.files import json_lines

LONGEST_REASON = 400  # characters


class Rows:
  """The rows of one file.

  Attributes:
    path: the file; beside it locks/, and failures/ with a traceback for each failed row.
    conditions: fields that every new row gets, such as the machine and the commit.
    failed: names of what failed in this process.
    is_complete: False once the budget has ended first.
    shown: the rows that `all` found last: those of the command's tables.
    before: lines of the file when the command began.
  """

  def __init__(self, path: pathlib.Path, conditions: Mapping[str, Any]) -> None:
    stage.check_folder(path.parent)
    self.path, self.conditions = path, conditions
    self.failed: list[str] = []
    self.is_complete = True
    self.shown: list[Row] = []
    self.console = plain_console()
    self.before = len(read(path))  # failures of earlier commands are not this one's

  def all(self, keys: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The finished rows of these keys, or else the failures; those that are there, each once."""
    rows, found = read(self.path), []
    for key in keys:
      row = find(rows, **key) or find(rows[self.before :], is_failed=True, **key)
      if row is not None and not any(row is other for other in found):
        found.append(row)
    self.shown = found
    return found

  def measure(self, key: Row, figures: Callable[[], Mapping[str, Any]]) -> Row:
    """The row with this key: the one that is there, or else measured now by one process."""
    return self.together([key], lambda _: [{**key, **figures()}])[0]

  def together(
    self, keys: Sequence[Row], measure: Callable[[list[Row]], Iterable[Mapping[str, Any]]]
  ) -> list[Row]:
    """The rows with these keys, of which one process measures now what is missing.

    Args:
      keys: of rows that are measured together.
      measure: rows of the keys that it is given, which are missing, or of all.
    """
    if self._missing(keys):
      with stage.exclusive(self.path.parent / 'locks' / f'row-{stage.digest({"keys": keys})}'):
        if missing := self._missing(keys):
          stage.seconds_left()
          for row in measure(missing):
            self.add(row)
    rows = read(self.path)
    return [row for key in keys if (row := find(rows, **key)) is not None]

  def _missing(self, keys: Sequence[Row]) -> list[Row]:
    rows = read(self.path)
    return [key for key in keys if find(rows, **key) is None]

  def add(self, given: Mapping[str, Any]) -> Row:
    """Adds a row, with the conditions; it is on the disk when this returns."""
    row: Row = json_of({**given, **self.conditions})
    append(self.path, row)
    return row

  def fail(self, key: Mapping[str, Any], error: Exception) -> None:
    """Adds a row that says why there are no figures."""
    name = name_of(key)
    reason = ' '.join(stage.reason_of(error).split())[:LONGEST_REASON]
    self.failed.append(name)
    log = self.path.parent / 'failures' / f'{name}.log'
    self.console.print(f'{name} failed: {reason} (see {log})', style='red')
    with contextlib.suppress(OSError):  # a full disk is no reason to stop
      log.parent.mkdir(parents=True, exist_ok=True)
      log.write_text(''.join(traceback.format_exception(error)))
      self.add({**key, 'error': reason})


class JobDone(Exception):
  """A job has done its keys: the command that submitted it draws the tables of its rows."""


def each(rows: Rows, keys: Sequence[Row], work: Callable[..., object]) -> None:
  """Calls work(**key) for each of the keys; what fails becomes a row, and the rest goes on.

  Work that another process is at is left for the end, and waited for then. Where the budget ends,
  the rest is left out. Within `as_jobs` each key is a job of its own. Keys that jobs have made, and
  in a job those that come before its own, are opened.

  Raises:
    JobDone: in a job, after its keys.
  """
  submit, asked = _submit.get(), _only.get()
  if asked == []:
    raise JobDone(rows)
  own = [key for key in keys if asked is None or json_of(key) in asked]
  if submit is None and own:
    with stage.without_retries():
      _each(rows, own, work)
    if asked is not None:
      raise JobDone(rows)
    return
  made = list(keys)
  if submit is not None:
    failed, rows.is_complete = submit(keys)
    for key, reason in failed:
      made.remove(key)
      if reason:
        rows.fail(key, UserError(reason))
      else:
        rows.failed.append(name_of(key))
  for key in made:
    with contextlib.suppress(Exception):  # it has failed elsewhere, and that is told
      stage.if_made(functools.partial(work, **key))


def _each(rows: Rows, left: Sequence[Row], work: Callable[..., object]) -> None:
  """Calls work(**key) for each of the keys, see `each`."""
  while left:
    busy = []
    for key in left:
      try:
        with stage.without_waiting():
          work(**key)
      except stage.Busy:
        busy.append(key)
      except stage.OutOfTime:
        rows.is_complete = False
        return
      except Exception as error:
        rows.fail(key, error)
    if len(busy) == len(left):
      time.sleep(stage.POLL_SECONDS)
    left = busy


# submit(keys) -> (key and reason of each job that failed; whether all were run)
Submit = Callable[[Sequence[Row]], tuple[list[tuple[Row, str]], bool]]
_submit: contextvars.ContextVar[Submit | None]
_submit = contextvars.ContextVar('submit', default=None)
_only: contextvars.ContextVar[list[Row] | None] = contextvars.ContextVar('only', default=None)


def as_jobs(submit: Submit) -> contextlib.AbstractContextManager[Any]:
  """Within it `each` submits its keys; `submit` returns those whose jobs failed, and why ('': a row
  says it)."""
  return stage.within(_submit, submit)


def only(keys: list[Row] | None) -> contextlib.AbstractContextManager[Any]:
  """Within it `each` does these keys alone, those of a job; [] is what all rows need; None: all."""
  return stage.within(_only, keys)


def name_of(key: Mapping[str, Any]) -> str:
  """A key in a word, for file names."""
  return '-'.join(f'{name}={value}' for name, value in key.items()).replace('/', '|')


def find(rows: Sequence[Row], is_failed: bool = False, **key: Any) -> Row | None:
  """The last of the rows with these fields, finished or failed; None where there is none.

  A failure may have fewer of the fields: it ended before more was known.
  """
  key = json_of(key)
  for row in reversed(rows):
    same = all(row.get(name, value if is_failed else ()) == value for name, value in key.items())
    if same and (row.get('error') is not None) == is_failed:
      return row
  return None


def latest(rows: Iterable[Row], *names: str) -> list[Row]:
  """The last finished row for each value of the fields of these names, or its last failure."""
  found: dict[str, Row] = {}
  for row in rows:
    key = repr([row.get(name) for name in names])
    if row.get('error') is None or found.get(key, row).get('error') is not None:
      found[key] = row
  return list(found.values())


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
  found = []
  for number, row in json_lines(path):
    if not isinstance(row, dict) or not isinstance(row.get('error', ''), str | None):
      raise UserError(f'line {number} of {path} is not a row: remove it, or use another workdir')
    found.append(row)
  return found


def json_of(value: Any) -> Any:
  """A value as JSON gives it back: tuples as lists, a number that is not finite as None."""
  if isinstance(value, Mapping):
    return {name: json_of(entry) for name, entry in value.items()}
  if isinstance(value, tuple | list):
    return [json_of(entry) for entry in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value
