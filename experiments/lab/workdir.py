"""The workdir of an experiment: its models, each a stage, and its rows, in results.jsonl.

  def table1(c: Settings, work: Workdir) -> None:
    base = work.stage('base', train.base, model=c.model, run=c.train, data=c.data, seed=c.seed)
    rows = work.fill([{'k': 2}, {'k': 4}], functools.partial(figures, c, base))
    report.write(work, 'table1', [TABLE.of(rows)])

  def figures(c: Settings, base: pathlib.Path, key: Row) -> Row: ...

A key, such as {'k': 2}, is a dict of all that decides a row's figures. Stages and rows that exist
are kept, so running the command again continues it. A key that fails becomes a row that says why,
and the others are measured all the same. Several processes on one workdir divide the keys by locks.
With an engine, stages and rows are jobs: `figures` is then called in another process, so it must be
a module-level function whose arguments can be pickled.
"""

import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import pathlib
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.lab.engine import Engine
from experiments.lab.rows import Row, find, find_failure, name_of, read
from fastdec.errors import UserError
from fastdec.evaluation.rows import append
from fastdec.files import json_of, lock, write_json
from fastdec.terminal import plain_console
from fastdec.training import stage as stages
from fastdec.training.processes import agreed, by_first, count, is_first
from fastdec.training.progress import named
from fastdec.training.stage import OutOfTime, check_budget, reason_of

PLAN = 'plan.json'  # the names of all stages, in order
LONGEST_REASON = 400  # characters


class Workdir:
  """A folder with stages, rows, locks/ and failures/ (tracebacks)."""

  def __init__(
    self,
    root: pathlib.Path,
    conditions: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    file: str = 'results.jsonl',
  ) -> None:
    stages.check_folder(root)
    self.root, self.path = root, root / file  # of the rows
    self.conditions = dict(conditions or {})  # that every new row gets, such as the commit
    self.engine = engine  # runs stages and rows as jobs; None: they are made here, in order
    self.failed: list[str] = []  # names of keys
    self.is_complete = True  # False when the budget ended before all was made
    self.shown: list[Row] = []  # all that this command has returned; experiments.sweep draws them
    # gets the rows so far of the keys that `fill` is measuring, after each one or each job
    self.on_rows: Callable[[list[Row]], None] | None = None
    self.planned: Mapping[str, int] = {}  # `Plan.steps`, once known; plan.json keeps the names
    self.console = plain_console()
    self.console.quiet = not is_first()
    # rows above this line are of earlier commands, whose failures are tried again
    self._lines_at_start = len(self._lines())
    self._reason_of_failed: dict[pathlib.Path, str] = {}
    self._lock_of_folder: dict[pathlib.Path, Any] = collections.defaultdict(threading.Lock)
    self._lock = threading.Lock()  # held while a thread changes the attributes
    self._telling = threading.Lock()  # held while a thread calls `on_rows`

  def __reduce__(self) -> Any:
    """A job, or a copy, has the same folder, without an engine."""
    return Workdir, (self.root, self.conditions, None, self.path.name)

  # --- stages

  def stage(
    self, name: str, make: Callable[..., object], cost: Any = None, **inputs: Any
  ) -> pathlib.Path:
    """Returns the folder of a stage, which `make(folder, **inputs)` fills once, see `stage.stage`.
    With an engine, a job fills it. A plan asks `cost`, if it does not know the stage.

    Raises:
      OutOfTime: the budget ended first.
      Exception: what `make` raised.
      UserError: it raised before, in this command; a stage is tried once.
    """
    folder = stages.folder_of(self.root, name, inputs)
    with self._lock:
      lock = self._lock_of_folder[folder]
    with lock:  # of several threads that need the stage one makes it
      if folder in self._reason_of_failed:
        raise UserError(self._reason_of_failed[folder])
      try:
        is_made = stages.is_made(folder)
        place, later = self._place_of(name)
        if not is_made:
          self.console.print(f'Making {place}, in {folder}')
          if self.planned and is_first():
            write_json(self.root / PLAN, {'stages': list(self.planned)})
        if self.engine is not None and not is_made:
          self.engine.call(name, stages.stage, self.root, name, make, **inputs)
        # The job has made the folder, or its budget ended: this call links it, or raises OutOfTime.
        with named(place, later):
          return stages.stage(self.root, name, make, **inputs)
      except OutOfTime:
        raise  # not a failure: the caller notes that the budget ended
      except Exception as error:
        self._reason_of_failed[folder] = f'{name}: {reason_of(error)}'
        raise

  def _place_of(self, name: str) -> tuple[str, int]:
    """Returns a stage's name with its place among the planned ones, and the steps of the trainings
    after it that are not made."""
    if name not in self.planned:
      return name, 0
    names = list(self.planned)
    number, later = names.index(name) + 1, 0
    for other in names[number:]:
      if not (self.root / other / 'DONE').is_file():
        later += self.planned[other]
    return f'stage {number} of {len(names)}, {name}', later

  # --- rows

  def do(self, action: Callable[[], None]) -> None:
    """Does what only a command does: a plan does not read the text, and writes no file."""
    action()

  def fill(
    self,
    keys: Sequence[Row | list[Row]],
    figures: Callable[[Any], Any],
    summary: Callable[[Row], str] | None = None,
    cost: Any = None,
  ) -> list[Row]:
    """Measures the keys that have no finished row yet; returns the rows of all keys, in order.

    With an engine each group is a job, which measures it on the same folder, without an engine. Of
    several processes the first one measures.

    Args:
      keys: keys, and groups of keys. A key is a dict of all that decides a row's figures: what is
        measured, on which model, on which texts. Keys in one list are a group, which is measured
        together; a key by itself is a group too.
      figures: for a key by itself, `figures(key)` returns its figures. For keys in one list,
        `figures` gets those without a row and yields one dict of figures for each, in their order.
      summary: returns a new row in one line, which is printed.
      cost: returns what a plan's missing rows of one group cost, see `plan.Plan`.

    Returns:
      One row per key: the finished one, else its failure. Keys for which the budget left no time
      are skipped.
    """
    every: list[Row] = []
    for group in keys:
      every += _listed(group)
    finished = len(every) - len(self._missing(every))
    if finished:
      self.console.print(f'{finished} of {len(every)} rows are there')
    self.each(keys, lambda group: self.measure(group, figures, summary, every))
    return self.rows(every)

  def measure(
    self,
    group: Row | list[Row],
    figures: Callable[[Any], Any],
    summary: Callable[[Row], str] | None,
    every: Sequence[Row],
  ) -> None:
    """Adds each missing row of a group as soon as it is measured, and shows `on_rows` those of
    every key. Where measuring raises, keys that are still without a row get one that says why."""
    missing = self._missing(_listed(group))
    if not missing:
      return
    check_budget()
    if self.engine is not None or count() > 1:
      job: Any = group, figures, summary, every
      if self.engine is None:  # several processes: the first one measures
        outcome = by_first(lambda: _measure_in_job(copy.copy(self), *job))
      else:
        outcome = self.engine.call(name_of(missing[0]), _measure_in_job, self, *job)
      failed, is_complete = outcome or ([], False)  # None: the job's budget ended
      for name in failed:
        self.console.print(f'{name} failed: see {self.root}/failures', style='red')
      with self._lock:
        self.failed += failed
        self.is_complete &= is_complete
      self._tell(every)
      return

    try:
      measured = figures(missing) if isinstance(group, list) else [figures(group)]
      for key, values in zip(missing, measured, strict=True):
        row = self.add({**key, **values})
        if summary is not None:
          place = f'row {len(every) - len(self._missing(every))} of {len(every)}'
          self.console.print(f'{place}, {summary(row)}')
        self._tell(every)
        if key is not missing[-1]:
          check_budget()
    except OutOfTime:
      raise  # not a failure: the caller notes that the budget ended
    except Exception as error:
      for key in self._missing(missing):
        self.fail(key, error)

  def _tell(self, every: Sequence[Row]) -> None:
    """Shows the rows so far of these keys to `on_rows`."""
    if self.on_rows is not None:
      with self._telling:
        self.on_rows(self._found(every))

  def rows(self, keys: Iterable[Row]) -> list[Row]:
    """Returns the finished row of each key, else its failure in this command; each row once."""
    rows = self._found(keys)
    self.shown += rows
    return rows

  def _found(self, keys: Iterable[Row]) -> list[Row]:
    """Returns what `rows` does, and notes nothing."""
    lines = self._lines()
    rows: list[Row] = []
    for key in keys:
      row = find(lines, **key) or find_failure(lines[self._lines_at_start :], **key)
      if row is not None and not any(row is other for other in rows):
        rows.append(row)
    return rows

  def failures(self, keys: Iterable[Row]) -> list[Row]:
    """Returns the failure of each key in this command, if it has one."""
    lines = self._lines()[self._lines_at_start :]
    rows = []
    for key in keys:
      row = find_failure(lines, **key)
      if row is not None:
        rows.append(row)
    self.shown += rows
    return rows

  def add(self, row: Mapping[str, Any]) -> Row:
    """Adds a row, with the conditions, and returns it once it is on the disk."""
    line: Row = json_of({**row, **self.conditions})
    if is_first():
      append(self.path, line)
    return line

  def fail(self, key: Row, error: Exception) -> None:
    """Adds a row that says why a key failed."""
    name = name_of(key)
    reason = ' '.join(reason_of(error).split())[:LONGEST_REASON]
    with self._lock:
      self.failed.append(name)
    log = self.root / 'failures' / f'{name}.log'
    self.console.print(f'{name} failed: {reason} (see {log})', style='red')
    with contextlib.suppress(OSError):  # a full disk must not stop the other rows
      if is_first():
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(''.join(traceback.format_exception(error)))
      self.add({**key, 'error': reason})

  def _lines(self) -> list[Row]:
    """Returns all rows of the file."""
    return agreed(read(self.path) if is_first() else None)

  def _missing(self, keys: Sequence[Row]) -> list[Row]:
    """Returns the keys that have no finished row."""
    lines = self._lines()
    return [key for key in keys if find(lines, **key) is None]

  # --- several processes, or jobs

  def each(self, groups: Sequence[Any], do: Callable[[Any], Any]) -> list[Any]:
    """Returns do(group) for each key, or group of keys. Where it failed the value is None and a row
    says why; where the budget ended it is None.

    With an engine, groups are worked at in parallel, in a thread each; their stages are the jobs.
    """
    if self.engine is None:
      return self._in_order(groups, do)
    if not groups:
      return []
    with concurrent.futures.ThreadPoolExecutor(self.engine.at_once or len(groups)) as pool:
      # each thread has the budget of this one
      threads = [
        pool.submit(contextvars.copy_context().run, self._in_order, [group], do) for group in groups
      ]
      try:
        return [thread.result()[0] for thread in threads]
      except BaseException:  # Ctrl-C, say
        self.engine.cancel()
        raise

  def _in_order(self, groups: Sequence[Any], do: Callable[[Any], Any]) -> list[Any]:
    """Calls do(group) for each group, one after the other, under the group's lock. A group that
    another process holds is tried again after the others, until the budget ends."""
    values: list[Any] = [None] * len(groups)
    left = list(range(len(groups)))
    while left:
      held = []
      for i in left:
        is_free, values[i] = self._attempt(groups[i], do)
        if not is_free:
          held.append(i)
      if held == left:
        try:
          check_budget()
        except OutOfTime:
          with self._lock:
            self.is_complete = False
          break
        time.sleep(stages.POLL_SECONDS)
      left = held
    return values

  def _attempt(self, group: Any, do: Callable[[Any], Any]) -> tuple[bool, Any]:
    """Calls do(group) if no other process holds the group's lock. Returns whether that was so, and
    the value: None where it failed, which becomes a row for each key, or where the budget ended."""
    turn = contextlib.nullcontext(True)  # jobs, and the first of several processes, take the lock
    if self.engine is None and count() == 1:
      turn = lock(self.root / 'locks' / stages.digest({'keys': _listed(group)}), wait=False)
    try:
      with turn as is_free:
        return is_free, do(group) if is_free else None
    except OutOfTime:
      # Go on: a later group may need only stages that are already made.
      with self._lock:
        self.is_complete = False
    except Exception as error:
      for key in _listed(group):
        self.fail(key, error)
    return True, None


def train_each(
  work: Any, field: str, names: Iterable[str], make: Callable[[str], Any]
) -> tuple[dict[str, Any], list[Row]]:
  """Returns make(name) by name, without those that failed; and a row that says why for each of
  these. `field` is what rows call the names."""
  keys: list[Row] = [{field: name} for name in names]
  made, failed = {}, []
  for key, value in zip(keys, work.each(keys, lambda key: make(key[field])), strict=True):
    if value is None:
      failed.append(key)
    else:
      made[key[field]] = value
  return made, work.failures(failed)


def _listed(group: Row | list[Row]) -> list[Row]:
  """Returns the keys of a group."""
  return group if isinstance(group, list) else [group]


def _measure_in_job(
  work: Workdir,
  group: Any,
  figures: Callable[[Any], Any],
  summary: Callable[[Row], str] | None,
  every: Sequence[Row],
) -> tuple[list[str], bool]:
  """Measures a group of keys in a job. Returns the names of those that failed, and whether the
  budget sufficed."""
  work.each([group], lambda group: work.measure(group, figures, summary, every))
  return work.failed, work.is_complete
