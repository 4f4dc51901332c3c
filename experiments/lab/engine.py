"""Engines of a command's jobs: a job is a command line, run by a process here or on a cluster.

A job that is killed is started again: what it had made is there, and it goes on from that.
"""

import asyncio
import dataclasses
import pathlib
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastdec.errors import UserError

# Runs a job of this name and command line to its end; its exit code, negative if it was killed.
Start = Callable[[str, list[str]], Awaitable[int]]

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
    start: runs one.
    at_once: the most that run at a time; None: as many as there are.
    more: words to add when a job starts, such as its budget; None: no further job is to start.
  """
  codes: dict[str, int] = {}

  async def one(name: str, free: asyncio.Semaphore) -> None:
    async with free:
      for _ in range(TRIES):
        words = more()
        if words is None:
          return
        codes[name] = await start(name, [*jobs[name], *words])
        if codes[name] >= 0:
          return

  async def every() -> None:
    free = asyncio.Semaphore(at_once or len(jobs))
    await asyncio.gather(*(one(name, free) for name in jobs))

  asyncio.run(every())
  return codes


def by_processes(folder: pathlib.Path) -> Start:
  """Runs processes on this machine; <folder>/<name>.log has what each prints."""

  async def start(name: str, command: list[str]) -> int:
    try:
      folder.mkdir(parents=True, exist_ok=True)
      with open(folder / f'{name}.log', 'ab') as log:
        job = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    except OSError as error:
      raise UserError(f'cannot write {folder} ({error.strerror}): choose another workdir') from None
    return await job.wait()

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
  asked = {'timeout_min': minutes, 'gpus_per_node': gpus, 'slurm_partition': partition}
  executor.update_parameters(**{name: value for name, value in asked.items() if value})

  async def start(name: str, command: list[str]) -> int:
    executor.update_parameters(name=name)
    job = executor.submit(Job(command))
    await job.awaitable().wait()
    return job.result() if job.exception() is None else -1

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
