"""The workdir of an experiment: its models, each a stage, and its rows, in results.jsonl.

  def table1(c: Settings, work: Workdir) -> None:
    base = work.stage('base', train.base, model=c.model, run=c.train, data=c.data, seed=c.seed)
    rows = work.fill([{'k': 2}, {'k': 4}], functools.partial(figures, c, base))
    report.write(work.root / 'table1', work.console, [TABLE.of(rows)])

  def figures(c: Settings, base: pathlib.Path, key: Row) -> Row: ...

A stage that is there is not made again, a row that is there is not measured again: the same command
continues where it was stopped. A key that fails becomes a row that says why, and the others are
measured all the same. Several processes on one workdir share the keys among them, by locks. With
an engine, stages and rows are jobs: `figures` is then called in another process, so it is a
function of a module, with plain arguments.
"""

import collections
import concurrent.futures
import contextlib
import contextvars
import pathlib
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.lab import stage as stages
from experiments.lab.engine import Engine
from experiments.lab.rows import Row, find, json_of, name_of, read
from experiments.lab.stage import OutOfTime, reason_of, seconds_left
from fastdec.cli.show import plain_console
from fastdec.errors import UserError
from fastdec.evaluation.rows import append
from fastdec.files import locked

LONGEST_REASON = 400  # characters


class Workdir:
  """A folder with stages, rows, locks/ and, of what failed, failures/ with tracebacks.

  Attributes:
    root: the folder.
    path: the file of the rows.
    conditions: fields that every new row gets, such as the machine and the commit.
    engine: runs stages and rows as jobs; None: they are made here, in order.
    failed: names of the keys that failed.
    is_complete: False once the budget has ended first.
    shown: the rows that `fill` and `failures` returned: those of the command's tables.
  """

  def __init__(
    self,
    root: pathlib.Path,
    conditions: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    file: str = 'results.jsonl',
  ) -> None:
    stages.check_folder(root)
    self.root, self.path = root, root / file
    self.conditions, self.engine = dict(conditions or {}), engine
    self.failed: list[str] = []
    self.is_complete = True
    self.shown: list[Row] = []
    self.console = plain_console()
    self._before = len(read(self.path))  # failures of earlier commands are not this one's
    self._broken: dict[pathlib.Path, str] = {}
    self._making: dict[pathlib.Path, Any] = collections.defaultdict(threading.Lock)

  def __reduce__(self) -> Any:
    """In a job it is the same folder, without an engine."""
    return Workdir, (self.root, self.conditions, None, self.path.name)

  # --- stages

  def stage(self, name: str, make: Callable[..., object], **inputs: Any) -> pathlib.Path:
    """A folder made once, by `make(folder, **inputs)`, see `stage.stage`; with an engine by a job.

    Raises:
      OutOfTime: the budget ended first.
      UserError: making it has failed before, in this command.
    """
    folder = stages.folder_of(self.root, name, inputs)
    with self._making[folder]:  # of two threads that need it one makes it
      if folder in self._broken:
        raise UserError(self._broken[folder])
      try:
        if self.engine is not None and not stages.is_made(folder):
          self.engine.call(name, stages.stage, self.root, name, make, **inputs)
        return stages.stage(self.root, name, make, **inputs)
      except OutOfTime:
        raise
      except Exception as error:
        self._broken[folder] = f'{name}: {reason_of(error)}'
        raise

  def each(self, keys: Sequence[Row], make: Callable[[Row], Any]) -> list[Any]:
    """make(key) for each key, such as the folder of a trained model; None where it failed, which is
    then a row, or where the budget ended first.

    Where an engine runs the stages that `make` asks for, all keys are worked at together.
    """
    return self._share(keys, make)

  # --- rows

  def fill(
    self,
    keys: Sequence[Row | list[Row]],
    figures: Callable[[Any], Any],
    summary: Callable[[Row], str] | None = None,
  ) -> list[Row]:
    """Measures the keys that have no finished row yet; returns the rows of all keys, in order.

    Args:
      keys: dicts with all that decides a figure: what is measured, on which model, on which texts.
        Lists of dicts are keys that are measured together.
      figures: figures(key) returns the figures of one key. Of keys that are measured together,
        figures(those that are missing) yields the figures of each, in order.
      summary: a new row in one line, which is printed.

    Returns:
      One row per key: the finished one, else its failure. Keys for which the budget left no time
      are skipped.
    """
    every = [key for group in keys for key in _listed(group)]
    there = len(every) - len(self._missing(every))
    if there:
      self.console.print(f'{there} of {len(every)} rows are there')
    self._share(keys, lambda group: self._measure(group, figures, summary))
    return self.rows(every)

  def _measure(
    self,
    group: Row | list[Row],
    figures: Callable[[Any], Any],
    summary: Callable[[Row], str] | None,
  ) -> None:
    """Adds the rows of one key, or of keys that are measured together, that are missing."""
    missing = self._missing(_listed(group))
    if not missing:
      return
    seconds_left()
    if self.engine is not None:
      name = name_of(missing[0])
      outcome = self.engine.call(name, _fill_in_job, self, group, figures, summary)
      failed, is_complete = outcome or ([], False)
      for name in failed:
        self.console.print(f'{name} failed: see {self.root}/failures', style='red')
      self.failed += failed
      self.is_complete &= is_complete
      return
    try:
      measured = figures(missing) if isinstance(group, list) else [figures(group)]
      for key, values in zip(missing, measured, strict=True):
        row = self.add({**key, **values})
        if summary is not None:
          self.console.print(summary(row))
        if key is not missing[-1]:
          seconds_left()
    except OutOfTime:
      raise
    except Exception as error:
      for key in self._missing(missing):
        self.fail(key, error)

  def rows(self, keys: Iterable[Row]) -> list[Row]:
    """The finished rows of the keys, else their failures in this command; each once."""
    lines = read(self.path)
    rows: list[Row] = []
    for key in keys:
      row = find(lines, **key) or find(lines[self._before :], is_failed=True, **key)
      if row is not None and not any(row is other for other in rows):
        rows.append(row)
    self.shown += rows
    return rows

  def failures(self, keys: Iterable[Row]) -> list[Row]:
    """The failures of the keys in this command; each once."""
    lines = read(self.path)[self._before :]
    rows = [row for key in keys if (row := find(lines, is_failed=True, **key)) is not None]
    self.shown += rows
    return rows

  def add(self, row: Mapping[str, Any]) -> Row:
    """Adds a row, with the conditions; it is on the disk when this returns."""
    line: Row = json_of({**row, **self.conditions})
    append(self.path, line)
    return line

  def fail(self, key: Row, error: Exception) -> None:
    """Adds a row that says why there are no figures."""
    name = name_of(key)
    reason = ' '.join(reason_of(error).split())[:LONGEST_REASON]
    self.failed.append(name)
    log = self.root / 'failures' / f'{name}.log'
    self.console.print(f'{name} failed: {reason} (see {log})', style='red')
    with contextlib.suppress(OSError):  # a full disk must not stop the other rows
      log.parent.mkdir(parents=True, exist_ok=True)
      log.write_text(''.join(traceback.format_exception(error)))
      self.add({**key, 'error': reason})

  def _missing(self, keys: Sequence[Row]) -> list[Row]:
    lines = read(self.path)
    return [key for key in keys if find(lines, **key) is None]

  # --- several processes, or jobs

  def _share(self, groups: Sequence[Any], do: Callable[[Any], Any]) -> list[Any]:
    """do(group) for each group of keys; None where it failed, or where the budget ended first."""
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
    """The same, one after the other. Groups that another process works at come last."""
    values: list[Any] = [None] * len(groups)
    left = list(range(len(groups)))
    while left:
      busy = []
      for i in left:
        lock = contextlib.nullcontext(True)
        if self.engine is None:  # else the job locks
          name = stages.digest({'keys': _listed(groups[i])})
          lock = locked(self.root / 'locks' / name, wait=False)
        try:
          with lock as is_mine:
            if is_mine:
              values[i] = do(groups[i])
            else:
              busy.append(i)
        except OutOfTime:  # what is there already can still be opened
          self.is_complete = False
        except Exception as error:
          for key in _listed(groups[i]):
            self.fail(key, error)
      if busy and len(busy) == len(left):
        try:
          seconds_left()
        except OutOfTime:
          self.is_complete = False
          break
        time.sleep(stages.POLL_SECONDS)
      left = busy
    return values


def _listed(group: Row | list[Row]) -> list[Row]:
  return group if isinstance(group, list) else [group]


def _fill_in_job(
  work: Workdir, group: Any, figures: Callable[[Any], Any], summary: Callable[[Row], str] | None
) -> tuple[list[str], bool]:
  """Measures a group of keys in a job; what failed, and whether the budget sufficed."""
  work.fill([group], figures, summary)
  return work.failed, work.is_complete
