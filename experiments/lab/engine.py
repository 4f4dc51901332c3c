"""Engines: a function becomes a job, which a process here or a cluster runs, by submitit.

  engine = by_processes(root / 'jobs', at_once=2)
  engine.call('base', stage, root, 'base', train.base, model=..., run=...)

A job is a plain function with plain arguments: settings, folders, keys. What a killed job had made
is in the workdir, so the job is started again and continues from there.
"""

import dataclasses
import os
import pathlib
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from experiments.lab.stage import OutOfTime, budget, reason_of, seconds_left
from fastdec.errors import UserError

TRIES = 3  # of a job that is killed
FOREVER = 1_000_000  # minutes: submitit would end a local job after two


@dataclasses.dataclass(frozen=True)
class Job:
  """A function that continues when it is called again, wherever it was stopped.

  Attributes:
    function, args, inputs: what is called.
    seconds: the budget; None is endless.
    environment: variables that the job needs as they are here.
  """

  function: Callable[..., Any]
  args: tuple[Any, ...]
  inputs: Mapping[str, Any]
  seconds: float | None
  environment: Mapping[str, str]

  def __call__(self) -> tuple[Any, str]:
    """The function's value, None where the budget ended first, and '' or why it failed."""
    os.environ.update(self.environment)  # before JAX looks for devices
    try:
      with budget(self.seconds):
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


class Engine:
  """Runs functions as jobs of an executor of submitit's; several threads may call it.

  Attributes:
    folder: of the jobs' logs and of submitit's own files.
    at_once: the most jobs at a time; None: as many as there are.
  """

  def __init__(
    self,
    executor: Any,
    folder: pathlib.Path,
    at_once: int | None,
    environment: Mapping[str, str] | None = None,
  ) -> None:
    self.executor, self.folder, self.at_once = executor, folder, at_once
    self._environment = dict(environment or {})
    self._submitting = threading.Lock()  # executors are not made for threads
    self._running: set[Any] = set()
    self._is_cancelled = False

  def call(self, name: str, function: Callable[..., Any], *args: Any, **inputs: Any) -> Any:
    """The value of function(*args, **inputs), run as a job of this name within the budget; None
    where the budget ended first.

    Raises:
      OutOfTime: the budget was over before the job began, or all jobs were cancelled.
      UserError: the function failed, or its job was killed again and again.
    """
    from submitit.core.utils import UncompletedJobError

    for _ in range(TRIES):
      job = Job(function, args, inputs, seconds_left(), self._environment)
      with self._submitting:
        if self._is_cancelled:
          raise OutOfTime
        self.executor.update_parameters(name=name)
        running = self.executor.submit(job)
        self._running.add(running)
      try:
        value, reason = running.result()
      except UncompletedJobError:  # it was killed
        continue
      except BaseException:  # Ctrl-C, say
        running.cancel()
        raise
      finally:
        self._running.discard(running)
      if reason:
        raise UserError(f'{reason} (its job is {running.job_id} in {self.folder})')
      return value
    raise UserError(f'the job of {name} was killed: see {self.folder}')

  def cancel(self) -> None:
    """Ends all jobs, and starts no more."""
    with self._submitting:
      self._is_cancelled = True
      for job in list(self._running):
        job.cancel()


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
  return Engine(executor, folder, at_once, {name: os.environ.get(name, every)})


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
      f'there is no SLURM to submit to here ({error}): use another --engine'
    ) from None
  sizes = {'timeout_min': minutes, 'gpus_per_node': gpus, 'slurm_partition': partition}
  executor.update_parameters(**{name: value for name, value in sizes.items() if value})
  return Engine(executor, folder, None)
