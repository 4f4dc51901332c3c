"""Engines of a command's jobs: a job is a command line, run by a process here or on a cluster.

A job that is killed is started again: what it had made is there, and it goes on from that.
"""

import dataclasses
import pathlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastdec.errors import UserError

Poll = Callable[[], int | None]  # exit code of a job, negative if it was killed; None: it runs
Start = Callable[[str, list[str]], Poll]  # of a name and a command line

POLL_SECONDS = 0.5
TRIES = 3  # of a job that is killed


def run(
  jobs: Mapping[str, list[str]],
  start: Start,
  at_once: int | None = None,
  more: Callable[[], list[str] | None] = list,
) -> dict[str, int]:
  """Runs jobs to their ends; exit codes by name, of those that were started.

  Args:
    jobs: command lines by name.
    start: starts one.
    at_once: the most that run at a time; None: as many as there are.
    more: words to add when a job starts, such as its budget; None: no further job is to start.
  """
  waiting, codes = list(jobs), {}
  running: dict[str, Poll] = {}
  tries = dict.fromkeys(jobs, 0)
  while waiting or running:
    while waiting and (at_once is None or len(running) < at_once):
      words = more()
      if words is None:
        waiting.clear()
        break
      name = waiting.pop(0)
      tries[name] += 1
      running[name] = start(name, [*jobs[name], *words])
    time.sleep(POLL_SECONDS)
    for name, poll in list(running.items()):
      code = poll()
      if code is not None:
        del running[name]
        if code < 0 and tries[name] < TRIES:
          waiting.append(name)
        else:
          codes[name] = code
  return codes


def by_processes(folder: pathlib.Path) -> Start:
  """Starts processes on this machine; <folder>/<name>.log has what each prints."""

  def start(name: str, command: Sequence[str]) -> Poll:
    try:
      folder.mkdir(parents=True, exist_ok=True)
      with open(folder / f'{name}.log', 'ab') as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT).poll
    except OSError as error:
      raise UserError(f'cannot write {folder} ({error.strerror}): choose another workdir') from None

  return start


def by_slurm(folder: pathlib.Path, partition: str, gpus: int, minutes: int) -> Start:
  """Submits jobs to a SLURM cluster, by submitit (the extra `cluster`).

  A job that meets its time limit, or has to make room, is queued again and goes on.

  Args:
    folder: of submitit's own files and the jobs' logs, where all nodes see it.
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
  executor.update_parameters(timeout_min=minutes)
  if gpus:
    executor.update_parameters(gpus_per_node=gpus)
  if partition:
    executor.update_parameters(slurm_partition=partition)

  def start(name: str, command: list[str]) -> Poll:
    executor.update_parameters(name=name)
    job = executor.submit(Job(command))

    def poll() -> int | None:
      if not job.done():
        return None
      return job.result() if job.exception() is None else -1

    return poll

  return start


@dataclasses.dataclass(frozen=True)
class Job:
  """A command line that may be stopped anywhere: started again, it goes on."""

  command: list[str]

  def __call__(self) -> int:
    """Runs the command; its exit code."""
    return subprocess.run(self.command).returncode

  def checkpoint(self) -> Any:
    """The job to queue when this one has to make room."""
    from submitit.helpers import DelayedSubmission

    return DelayedSubmission(self)
