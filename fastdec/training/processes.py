"""Several processes that train together (`jax.distributed`): meeting, writing and agreeing.

All of them run the same program, and must make the same decisions, or they wait for each other for
ever. Parameters and losses are the same in all. Clocks and files may differ, so the first process
reads them for all.
"""

import contextvars
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fastdec.errors import UserError
from fastdec.files import parse_json, to_json


def connect(coordinator: str, processes: int, process: int) -> None:
  """Makes this process one of several; before anything is computed.

  Args:
    coordinator: 'host:port', where process 0 listens.
    processes: number of processes.
    process: number of this one, from 0.

  Raises:
    UserError: a number is out of range, or some process did not connect.
  """
  if not 0 <= process < processes:
    raise UserError(
      f'process={process} of processes={processes} is not possible: give 0 to {processes - 1}'
    )
  host, _, port = coordinator.rpartition(':')
  if not host or not port.isdecimal():
    raise UserError(
      f'coordinator={coordinator!r} is not an address: give host:port of process 0, such'
      ' as localhost:7001'
    )
  try:
    jax.distributed.initialize(
      coordinator, processes, process, cluster_detection_method='deactivate'
    )
  except RuntimeError as error:
    raise UserError(
      f'{processes} processes did not meet at {coordinator} ({error}): start them all'
    ) from None


def connect_by_cluster() -> None:
  """Makes this process one of those that a cluster has started, such as by SLURM's srun.

  JAX finds their number and the first one's address by itself.

  Raises:
    UserError: no cluster has started it, or some process did not connect.
  """
  try:
    jax.distributed.initialize()
  except (RuntimeError, ValueError) as error:
    reason = ' '.join(str(error).split())
    raise UserError(
      f'no cluster has started this process ({reason}): use srun, or give --coordinator=host:port'
    ) from None


_alone: contextvars.ContextVar[bool] = contextvars.ContextVar('alone', default=False)


def count() -> int:
  """Returns how many processes make the same decisions now. It does not look for devices."""
  if _alone.get() or not jax.distributed.is_initialized():
    return 1
  return jax.process_count()


def is_first() -> bool:
  """True in the process that prints, logs and writes for all."""
  return count() == 1 or jax.process_index() == 0


def by_first(work: Callable[[], Any]) -> Any:
  """Has the first process do some work by itself while the others wait; returns its value, which is
  JSON, in all of them."""
  value = None
  if is_first():
    token = _alone.set(True)
    try:
      value = work()
    finally:
      _alone.reset(token)
  return agreed(value)


def agreed(answer: Any) -> Any:
  """Returns the first process's answer, which is JSON, in all of them."""
  if count() == 1:
    return answer
  text = np.frombuffer(to_json(answer).encode(), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.array(len(text))))
  sent = multihost_utils.broadcast_one_to_all(np.resize(text, size))
  return parse_json(bytes(np.asarray(sent, np.uint8)))


def everywhere(fact: bool) -> bool:
  """True if the fact holds in all processes."""
  if count() == 1:
    return fact
  return bool(multihost_utils.process_allgather(np.array(fact)).all())


def wait(place: str) -> None:
  """Returns when all processes are at this place of the program."""
  if count() > 1:
    multihost_utils.sync_global_devices(place)
