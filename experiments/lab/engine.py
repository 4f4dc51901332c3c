"""Engines: a function becomes a job, which a process here or a cluster runs, by submitit.

  engine = by_processes(root / 'jobs', at_once=2)
  engine.call('base', stage, root, 'base', train.base, model=..., run=...)

A job is a plain function with plain arguments: settings, folders, keys. What a killed job had made
is in the workdir, so the job is started again and continues from there.

Jobs end with the process that called them, their launcher. A process here ends when its launcher
has let go of a lock, as it does even when it is killed. Jobs of a cluster are cancelled.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.files import lock
from fastdec.training.progress import named
from fastdec.training.stage import POLL_SECONDS, OutOfTime, budget, reason_of, seconds_left

TRIES = 3  # of a job that is killed
FOREVER = 1_000_000  # minutes: submitit would end a local job after two


@dataclasses.dataclass(frozen=True)
class Job:
  """A function that continues when it is called again, wherever it was stopped."""

  name: str  # which its progress shows
  function: Callable[..., Any]
  args: tuple[Any, ...]
  inputs: Mapping[str, Any]
  seconds: float | None  # the budget; None is endless
  environment: Mapping[str, str]  # variables that the job needs as they are here
  launcher: pathlib.Path | None  # a file that is locked as long as the job is wanted

  def __call__(self) -> tuple[Any, str]:
    """The function's value, None where the budget ended first, and '' or why it failed."""
    if self.launcher is not None:
      threading.Thread(target=_end_with, args=[self.launcher], daemon=True).start()
    os.environ.update(self.environment)  # before JAX looks for devices
    try:
      with budget(self.seconds), named(self.name):
        return self.function(*self.args, **self.inputs), ''
    except OutOfTime:
      return None, ''
    except Exception as error:
      traceback.print_exc()
      return None, reason_of(error)

  def checkpoint(self) -> Any:
    """The job to queue when this one has to make room, or has met its time limit."""
    from submitit.helpers import DelayedSubmission

    return DelayedSubmission(self)


def _end_with(launcher: pathlib.Path) -> None:
  """Ends this process, as if it were killed, when the launcher has let go of its lock."""
  with lock(launcher):
    launcher.unlink(missing_ok=True)
    os._exit(1)


class Engine:
  """Runs functions as jobs of an executor of submitit's; several threads may call it."""

  def __init__(
    self,
    executor: Any,
    folder: pathlib.Path,
    at_once: int | None,
    environment: Mapping[str, str] | None = None,
    is_here: bool = False,
  ) -> None:
    self.executor, self.folder = executor, folder  # of the jobs' logs and of submitit's own files
    self.at_once = at_once  # the most jobs at a time; None: as many as there are
    self._environment, self._is_here = dict(environment or {}), is_here
    self._submitting = threading.Lock()  # executors are not made for threads
    self._cancelled = threading.Event()

  def call(self, name: str, function: Callable[..., Any], *args: Any, **inputs: Any) -> Any:
    """The value of function(*args, **inputs), run as a job of this name within the budget; None
    where the budget ended first.

    Raises:
      OutOfTime: the budget was over before the job began, or all jobs were cancelled.
      UserError: the function failed, or its job was killed again and again.
    """
    from submitit.core.utils import UncompletedJobError

    for _ in range(TRIES):
      with self._launcher() as launcher:
        job = Job(name, function, args, inputs, seconds_left(), self._environment, launcher)
        running = self._submit(name, job)
        try:
          while not running.done():
            if self._cancelled.wait(POLL_SECONDS):
              raise OutOfTime
          value, reason = running.result()
        except UncompletedJobError:  # it was killed
          continue
        except BaseException:  # Ctrl-C, say
          running.cancel(check=False)
          raise
      if reason:
        raise UserError(f'{reason} (its job is {running.job_id} in {self.folder})')
      return value
    raise UserError(f'the job of {name} was killed: see {self.folder}')

  def cancel(self) -> None:
    """Ends all jobs, and starts no more."""
    self._cancelled.set()

  @contextlib.contextmanager
  def _launcher(self) -> Iterator[pathlib.Path | None]:
    """Holds the lock of a job here during the block."""
    if not self._is_here:
      yield None
      return
    path = self.folder / f'launcher-{uuid.uuid4().hex}.lock'
    try:
      with lock(path):
        yield path
    finally:
      path.unlink(missing_ok=True)

  def _submit(self, name: str, job: Job) -> Any:
    """Submits a job that knows nothing of an allocation which this process may be in."""
    from submitit.helpers import clean_env

    with self._submitting, _without_ctrl_c():
      if self._cancelled.is_set():
        raise OutOfTime
      self.executor.update_parameters(name=name)
      users = {}  # variables by which users set up sbatch: no allocation sets them
      for variable, value in os.environ.items():
        if variable == 'SLURM_CONF' or variable.startswith('SBATCH_'):
          users[variable] = value
      with clean_env():
        os.environ.update(users)
        return self.executor.submit(job)


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
  """Keeps Ctrl-C from processes that are started in the block: a terminal sends it to all of them,
  and each would print a traceback. The launcher ends them."""
  before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
  """Lets SIGTERM, and SIGHUP unless `nohup` ignores it, raise SystemExit in the block, so that jobs
  are cancelled."""

  def end(number: int, _: Any) -> None:
    sys.exit(128 + number)

  both = signal.SIGTERM, signal.SIGHUP
  wanted = [number for number in both if signal.getsignal(number) == signal.SIG_DFL]
  for number in wanted:
    signal.signal(number, end)
  try:
    yield
  finally:
    for number in wanted:
      signal.signal(number, signal.SIG_DFL)


def by_processes(folder: pathlib.Path, at_once: int) -> Engine:
  """Runs jobs as processes on this machine, at most `at_once` at a time."""
  import submitit

  try:
    executor = submitit.LocalExecutor(folder)
  except OSError as error:
    raise UserError(f'cannot write {folder} ({error.strerror}): choose another workdir') from None
  executor.update_parameters(timeout_min=FOREVER)
  # submitit's local jobs see no GPU unless it hands them out
  name = 'CUDA_VISIBLE_DEVICES'
  every = ','.join(map(str, range(64)))
  return Engine(executor, folder, at_once, {name: os.environ.get(name, every)}, is_here=True)


def by_slurm(folder: pathlib.Path, partition: str, gpus: int, minutes: int) -> Engine:
  """Submits jobs to a SLURM cluster. A job that meets its time limit, or has to make room, is
  queued again and continues.

  Args:
    folder: where all nodes see it.
    partition: of the cluster; '': its default.
    gpus: of each node; 0: none.
    minutes: time limit of a job.
  """
  import submitit

  try:
    executor: Any = submitit.AutoExecutor(folder=folder, cluster='slurm')
  except (RuntimeError, OSError) as error:
    raise UserError(
      f'this machine has no SLURM to submit to ({error}): use --engine=processes'
    ) from None
  sizes = {'timeout_min': minutes, 'gpus_per_node': gpus, 'slurm_partition': partition}
  executor.update_parameters(**{name: value for name, value in sizes.items() if value})
  return Engine(executor, folder, None)
