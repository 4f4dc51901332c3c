"""Files and folders that appear whole or not at all, and locks between processes."""

import contextlib
import fcntl
import glob
import json
import os
import pathlib
import platform
import shutil
from collections.abc import Iterator
from typing import IO, Any

from fastdec.errors import UserError


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[IO[bytes]]:
  """Opens a file to write, under a temporary name until it is on the disk; makes its folder.

  What killed processes of this machine have left of it is removed.

  Raises:
    UserError: it cannot be written; an existing file stays.
  """
  mine = f'{path.name}.{platform.node()}'
  partial = path.with_name(f'{mine}.{os.getpid()}.partial')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f'{glob.escape(mine)}.*.partial'):
      if _is_dead(left.name.split('.')[-2]):
        left.unlink(missing_ok=True)
    with open(partial, 'wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
    _sync(path.parent)  # it lists the new name
  except OSError as error:
    raise UserError(
      f'cannot write {path} ({error.strerror or error}): make room, or give another folder'
    ) from error
  finally:
    with contextlib.suppress(OSError):
      partial.unlink(missing_ok=True)


def _is_dead(pid: str) -> bool:
  """True for the number of a process that does not run."""
  try:
    os.kill(int(pid), 0)
  except ProcessLookupError:
    return True
  except (ValueError, OverflowError, PermissionError):  # no number, or another user's process
    pass
  return False


@contextlib.contextmanager
def whole_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes a new folder to fill, under a temporary name until all in it is on the disk.

  Then it replaces an existing folder. Nothing is lost on the way: the existing one is `path` or
  `path`.old until the new one is `path`.

  Raises:
    UserError: it cannot be written; an existing folder stays.
  """
  partial, old = (path.with_name(f'{path.name}.{word}') for word in ('partial', 'old'))
  try:
    if old.is_dir() and not path.exists():  # a process was killed between the two renames below
      old.rename(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    for inside in (*partial.rglob('*'), partial):
      _sync(inside)
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
      path.rename(old)
    partial.rename(path)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)
  except OSError as error:
    if old.is_dir() and not path.exists():
      old.rename(path)
    raise UserError(
      f'cannot write {path} ({error.strerror or error}): make room, or name another folder'
    ) from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def _sync(path: pathlib.Path) -> None:
  """Waits until a file, or a folder's list, is on the disk."""
  opened = os.open(path, os.O_RDONLY)
  try:
    os.fsync(opened)
  finally:
    os.close(opened)


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a whole file of text; see `whole_file`."""
  with whole_file(path) as file:
    file.write(text.encode())


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a whole file of JSON; see `whole_file`."""
  write_text(path, json.dumps(value, indent=2) + '\n')


@contextlib.contextmanager
def locked(path: pathlib.Path, wait: bool = True) -> Iterator[bool]:
  """Holds the lock of a file until the end of the block, or of the process (even if it is killed).

  Args:
    path: the lock; it is made, with its folder, and stays.
    wait: waits for another process that has the lock. Otherwise the block then gets False at once.

  Raises:
    UserError: the file cannot be made.
  """
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, 'a')  # noqa: SIM115
  except OSError as error:
    raise UserError(
      f'cannot write {path} ({error.strerror}): make room, or give another folder'
    ) from None
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
      yield False
      return
    except OSError as error:
      raise UserError(f'cannot lock {path} ({error.strerror}): give a folder elsewhere') from None
    yield True


def parse_json(text: str | bytes) -> Any:
  """Parses JSON.

  Raises:
    ValueError: the text is not JSON, or nested too deep for Python's reader.
  """
  try:
    return json.loads(text)
  except RecursionError:
    raise ValueError('it is nested too deep') from None


def read_json(file: pathlib.Path) -> dict[str, Any]:
  """Reads the JSON object in a file.

  Raises:
    UserError: the file is missing, unreadable, or not a JSON object.
  """
  try:
    content = parse_json(file.read_text())
  except FileNotFoundError:
    raise UserError(f'{file.parent} has no {file.name}: give a whole model folder') from None
  except OSError as error:
    raise UserError(f'cannot read {file} ({error.strerror}): restore the file') from None
  except ValueError:
    raise UserError(f'{file} is not JSON: restore the file') from None
  if not isinstance(content, dict):
    raise UserError(f'{file} is no JSON object: restore the file')
  return content
