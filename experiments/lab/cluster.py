"""A command line as a job of submitit, which hands it to a cluster (the extra `cluster`)."""

from typing import Any

from fastdec import extras
from fastdec.errors import UserError

with extras.explained():
  import submitit
  from submitit.core.utils import FailedJobError


class Job(submitit.helpers.CommandFunction):
  """A command line that may be stopped anywhere: started again, it goes on."""

  def __call__(self, *args: Any, **kwargs: Any) -> int:
    """Runs the command; its exit code."""
    try:
      super().__call__(*args, **kwargs)
    except FailedJobError as error:
      return getattr(error.__cause__, 'returncode', -1)
    return 0

  def checkpoint(self, *args: Any, **kwargs: Any) -> submitit.helpers.DelayedSubmission:
    """The job to queue when this one has to make room."""
    return submitit.helpers.DelayedSubmission(self, *args, **kwargs)


def slurm(folder: Any, partition: str, gpus: int, minutes: int) -> Any:
  """The executor of a SLURM cluster.

  Args:
    folder: of submitit's own files and the jobs' logs, where all nodes see it.
    partition: of the cluster; '': its default.
    gpus: of each node; 0: none.
    minutes: time limit of a job, after which it is queued again.
  """
  try:
    executor = submitit.AutoExecutor(folder=folder, cluster='slurm')
  except (RuntimeError, OSError) as error:
    raise UserError(
      f'there is no SLURM to submit to here ({error}): use another --engine'
    ) from None
  executor.update_parameters(timeout_min=minutes)
  if gpus:
    executor.update_parameters(gpus_per_node=gpus)
  if partition:
    executor.update_parameters(slurm_partition=partition)
  return executor
