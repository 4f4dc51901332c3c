"""One gate for the whole machine: processes at work pass it, and whoever takes a wall clock shuts
it for a while.

Two processes that compute at once slow each other down, and not evenly: a ratio that is timed
beside a training is that of another machine. So all processes of a user meet at two locks, of which
the system lets go when a process dies:

  room   held shared by every process at work (it trains, or decodes a table), and alone by the one that times
  door   passed by whoever comes into the room; the one that times holds it from the moment it asks. So nobody
         comes in before it, and those at work, who look at the door after each step, make room and
         wait there

  with gate.at_work(budget):
    for batch in batches:
      state = step(state, batch)
      gate.pass_by(state)          # a timing waits for a step, and this process for the timing
  with gate.alone():
    ...                            # take times

Where no lock can be made, there is a note, and everything goes on without one. Of several processes
that compute together, the first alone holds the room: the others wait for it anyway.
"""

import contextlib
import fcntl
import functools
import math
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import IO, Any, TypeVar

import jax

from fastdec.errors import UserError

POLL = 0.1  # seconds between two looks at a lock that another process holds
SILENT = 1.0  # seconds that are waited without a word
TIMING = 'Waiting: another process on this machine takes times, and wants it for itself for a while'
WORKING = (
  'Waiting until other processes on this machine make room, so that times are taken while'
  ' nothing else computes'
)
Item = TypeVar('Item')


class OutOfTime(UserError):
  """The budget of this process has ended while it waited."""


class Gate:
  """The two locks, as one process sees them.

  Args:
    folder: where the locks are; it is made.
  """

  def __init__(self, folder: pathlib.Path) -> None:
    self._locks = _opened(folder)
    self._deadline = math.inf
    self._is_working = self._is_inside = self._is_alone = False

  @contextlib.contextmanager
  def at_work(self, budget: float | None = None) -> Iterator[None]:
    """In this block the process computes, and calls `pass_by` every now and then. A block within a
    block is the same.

    Args:
      budget: seconds after which nothing is waited for: work goes on, and `alone` raises OutOfTime.
    """
    if self._is_working or self._locks is None or jax.process_index() > 0:
      yield
      return
    self._deadline = math.inf if budget is None else time.monotonic() + budget
    self._is_working = True
    self._enter()
    try:
      yield
    finally:
      self._leave()
      self._is_working, self._deadline = False, math.inf

  def pass_by(self, arrays: Any = None) -> None:
    """Makes room for a process that asks to be alone, and waits for it; takes a microsecond where
    none does.

    Args:
      arrays: what the device may still be at; it is waited for before room is made.
    """
    if not self._is_working or (self._is_inside and not self._is_asked()):
      return
    jax.block_until_ready(arrays)
    self._leave()
    self._enter()

  @contextlib.contextmanager
  def alone(self) -> Iterator[None]:
    """In this block no process is at work, this one aside.

    Raises:
      OutOfTime: the budget of `at_work` ended before the others had made room.
    """
    if self._is_alone or self._locks is None:
      yield
      return
    door, room = self._locks
    self._leave()
    try:
      if not (self._wait(door, fcntl.LOCK_EX, TIMING) and self._wait(room, fcntl.LOCK_EX, WORKING)):
        raise OutOfTime(
          'the budget ended before other processes on this machine made room to take times'
        )
      self._is_alone = True
      yield
    finally:
      self._is_alone = False
      fcntl.flock(room, fcntl.LOCK_UN)
      fcntl.flock(door, fcntl.LOCK_UN)
      if self._is_working:
        self._enter()

  def _enter(self) -> None:
    """Comes into the room, through the door; stays outside where the budget ends before."""
    assert self._locks is not None
    door, room = self._locks
    if self._wait(door, fcntl.LOCK_SH, TIMING):
      fcntl.flock(room, fcntl.LOCK_SH)  # it is free: who has it alone has the door too
      fcntl.flock(door, fcntl.LOCK_UN)
      self._is_inside = True

  def _leave(self) -> None:
    assert self._locks is not None
    fcntl.flock(self._locks[1], fcntl.LOCK_UN)
    self._is_inside = False

  def _is_asked(self) -> bool:
    """Whether another process holds the door."""
    assert self._locks is not None
    is_free = _taken(self._locks[0], fcntl.LOCK_SH)
    if is_free:
      fcntl.flock(self._locks[0], fcntl.LOCK_UN)
    return not is_free

  def _wait(self, lock: IO[str], kind: int, reason: str) -> bool:
    """Takes a lock, and says why that takes long; false where the budget ends before."""
    begun, has_said = time.monotonic(), False
    while not _taken(lock, kind):
      now = time.monotonic()
      if now >= self._deadline:
        return False
      if now - begun >= SILENT and not has_said:
        _say(reason + _stopped(lock))
        has_said = True
      time.sleep(POLL)
    return True


@functools.cache
def machine() -> Gate:
  """The gate of this machine, for this user."""
  return Gate(users_folder())


def users_folder() -> pathlib.Path:
  """Where the locks are: below the user's runtime folder, or else below that of temporary files."""
  runtime = os.environ.get('XDG_RUNTIME_DIR', '')
  place = runtime if os.access(runtime, os.W_OK) else tempfile.gettempdir()
  return pathlib.Path(place) / f'fastdec-{os.getuid()}'


def at_work(budget: float | None = None) -> contextlib.AbstractContextManager[None]:
  """See `Gate.at_work`."""
  return machine().at_work(budget)


def pass_by(arrays: Any = None) -> None:
  """See `Gate.pass_by`."""
  machine().pass_by(arrays)


def passing(items: Iterable[Item]) -> Iterator[Item]:
  """The items, each of which is a piece of work: room is made between them."""
  for item in items:
    yield item
    pass_by()


def alone() -> contextlib.AbstractContextManager[None]:
  """See `Gate.alone`."""
  return machine().alone()


def _opened(folder: pathlib.Path) -> tuple[IO[str], IO[str]] | None:
  """The locks of door and room, free; None where the machine has none."""
  try:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # kept for good
    door, room = (open(folder / name, 'a') for name in ('door.lock', 'room.lock'))  # noqa: SIM115
    if _taken(room, fcntl.LOCK_SH):
      fcntl.flock(room, fcntl.LOCK_UN)
    return door, room
  except OSError as error:
    _say(
      f'Note: no lock can be made in {folder} ({error.strerror}), so times may be taken while'
      ' something else runs'
    )
    return None


def _taken(lock: IO[str], kind: int) -> bool:
  """Takes a lock, if that is possible now."""
  try:
    fcntl.flock(lock, kind | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _stopped(lock: IO[str]) -> str:
  """Words about those who hold a lock and are stopped (by Ctrl-Z or SIGSTOP), so that they never
  make room; where the system does not tell, none."""
  place = os.fstat(lock.fileno())
  file = f'{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}'
  try:
    held = [line.split() for line in pathlib.Path('/proc/locks').read_text().splitlines()]
  except OSError:
    return ''
  stopped = []
  for pid in sorted({words[4] for words in held if words[1] == 'FLOCK' and words[5] == file}):
    with contextlib.suppress(OSError):  # it has just ended
      if pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] == 'T':
        stopped.append(pid)
  if not stopped:
    return ''
  return (
    f'. Stopped, and keeping their place: {", ".join(stopped)}; kill -CONT'
    f' {" ".join(stopped)}'
    ' lets them make room'
  )


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)
