"""Files of users: the one place that opens them, and writes them whole or not at all; locks.

A file is read if it is a regular one, of a bounded size. A pipe could keep a command waiting, a
device has no end, and a folder is none.
"""

import contextlib
import errno
import fcntl
import glob
import io
import json
import os
import pathlib
import platform
import re
import shutil
import stat
from collections.abc import Iterator
from typing import IO, Any

from fastdec.errors import UserError
from fastdec.fields import shown

PathLike = str | os.PathLike[str]
MOST = 2**28  # bytes of a file that is read whole
MOST_JSON = 2**26  # which takes thirty times as much memory
MARK = b'\xef\xbb\xbf'  # of the byte order, at the beginning of some files of UTF-8
LONGEST, LONGEST_PART = 3840, 240  # bytes of a path and of a name, with room for what is added
POINTER = b'version https://git-lfs.github.com/spec/'  # the beginning of what copies instead
HALF = re.compile(r'\\u[dD][89a-fA-F]')  # perhaps half a character


def open_file(path: PathLike) -> io.BufferedReader:
  """Opens a regular file to read.

  Raises:
    OSError: there is none, or no file can have this name.
  """
  try:
    return open(path, 'rb', opener=_opened)
  except ValueError:  # a name with a NUL, or with half a character
    raise OSError(errno.EINVAL, 'no file can have this name') from None


def _opened(path: str, flags: int) -> int:
  """Opens without waiting, as a pipe without a writer would."""
  opened = os.open(path, flags | os.O_NONBLOCK)
  mode = os.fstat(opened).st_mode
  if stat.S_ISREG(mode):
    return opened
  os.close(opened)
  if stat.S_ISDIR(mode):
    raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
  raise OSError(errno.EINVAL, 'a pipe or a device, and no regular file')


def read_bytes(path: PathLike, most: int = MOST) -> bytes:
  """Reads a whole regular file.

  Raises:
    OSError: as `open_file`, or it has more than `most` bytes.
  """
  with open_file(path) as file:
    size = os.fstat(file.fileno()).st_size
    if size > most:
      raise OSError(errno.EFBIG, f'it has {size:,} bytes, and {most:,} are the most')
    return file.read(size)


def place(path: Any) -> pathlib.Path:
  """Returns a path that a user gives.

  Raises:
    UserError: it is none, or no file can have this name.
  """
  try:
    name = os.fsencode(path)
  except TypeError:
    raise UserError(f'{shown(path)} is no path: give the name of a file or a folder') from None
  except ValueError:
    name = b'\0'
  if (
    not name
    or b'\0' in name
    or len(name) > LONGEST
    or max(map(len, name.split(b'/'))) > LONGEST_PART
  ):
    raise UserError(f'no file can be called {shown(os.fspath(path))}: give another name')
  return pathlib.Path(os.fsdecode(name))


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
    if path.exists() and not path.is_file():  # a folder, or a device, which would be replaced
      raise OSError(errno.EINVAL, 'it is there, and no regular file')
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
  if path.name in ('', '..') or (path.exists() and not path.is_dir()):
    raise UserError(f'{path} cannot become a folder: give the name of a new one')
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
  """Parses JSON; a byte order mark may precede it, and of a repeated key the last counts.

  Raises:
    ValueError: the text is not JSON, nested too deep for Python's reader, or has half a character.
  """
  if isinstance(text, bytes):
    text = text.removeprefix(MARK).decode()
  try:
    value = json.loads(text)
    if HALF.search(text):
      json.dumps(value, ensure_ascii=False).encode()
  except RecursionError:
    raise ValueError('it is nested too deep') from None
  except UnicodeEncodeError:
    raise ValueError(r'it has half a character, such as \ud83d alone') from None
  return value


def read_json(file: pathlib.Path) -> dict[str, Any]:
  """Reads the JSON object in a file.

  Raises:
    UserError: the file is missing, unreadable, or not a JSON object.
  """
  try:
    content = parse_json(read_bytes(file, MOST_JSON))
  except FileNotFoundError:
    raise UserError(f'{file.parent} has no {file.name}: give a whole model folder') from None
  except OSError as error:
    raise UserError(f'cannot read {file} ({error.strerror}): restore the file') from None
  except ValueError as error:
    raise damaged(file, f'is not JSON ({error})', 'restore the file') from None
  if not isinstance(content, dict):
    raise damaged(file, 'is no JSON object', 'restore the file')
  return content


def json_lines(file: pathlib.Path) -> Iterator[tuple[int, Any]]:
  """Yields the lines of a file that are JSON, with their numbers; none if there is no file.

  A line that is not JSON is passed over: it is the fragment of a write that was killed.

  Raises:
    UserError: the file cannot be read.
  """
  try:
    lines = read_bytes(file).split(b'\n')
  except FileNotFoundError:
    return
  except OSError as error:
    raise UserError(f'cannot read {file} ({error.strerror}): use another workdir') from None
  for number, line in enumerate(lines, start=1):
    with contextlib.suppress(ValueError):
      yield number, parse_json(line)


def text_of(data: bytes, name: object) -> str:
  """Decodes the UTF-8 of a file, without a byte order mark; `name` is for messages.

  Raises:
    UserError: it is not UTF-8; the message names the line.
  """
  try:
    return data.removeprefix(MARK).decode()
  except UnicodeDecodeError as error:
    line = error.object[: error.start].count(b'\n') + 1
    raise UserError(f'line {line} of {name} is not UTF-8: convert the text') from None


def check_text(text: Any) -> str:
  """Returns a text that a tokenizer can read.

  Raises:
    UserError: it is no text, or half a character is in it.
  """
  try:
    text.encode()
  except (AttributeError, TypeError):
    raise UserError(f'{shown(text)} is no text: give a str') from None
  except UnicodeEncodeError as error:
    raise UserError(
      f'a text has half a character, {text[error.start]!r} at place {error.start}: mend it where'
      ' it was cut'
    ) from None
  return text


def damaged(file: pathlib.Path, reason: str, advice: str = 'copy it again') -> UserError:
  """Returns the error for a file that does not hold what its name says."""
  with contextlib.suppress(OSError), open_file(file) as opened:
    if opened.read(len(POINTER)) == POINTER:
      return UserError(
        f'{file} is a pointer of Git LFS, not the file that it stands for: run git lfs pull in'
        f' {file.parent}, or download the file'
      )
  return UserError(f'{file} {reason}: {advice}')


def read_lines(path: pathlib.Path, what: str = 'a prompt') -> list[str]:
  """Reads the lines of a text file; empty ones at its end do not count.

  Args:
    path: the file.
    what: each line's content, for messages.

  Raises:
    UserError: it cannot be read, is empty or not UTF-8, or has an empty line before others.
  """
  try:
    text = text_of(read_bytes(path), path)
  except OSError as error:
    raise UserError(
      f'cannot read {path} ({error.strerror}): give a text file with {what} on each line'
    ) from None
  if not text.strip():
    raise UserError(f'{path} is empty: give {what} on each line')
  lines = text.split('\n')  # only a newline ends a line, as for `wc -l`
  while not lines[-1].strip():
    lines.pop()
  for number, line in enumerate(lines, 1):
    if not line.strip():
      raise UserError(f'line {number} of {path} is empty: give {what} on each line')
  return [line.removesuffix('\r') for line in lines]


def read_prompts(path: pathlib.Path) -> list[str]:
  """Reads the prompts of a file: its lines, or "prompt" on each line of a .jsonl file.

  Raises:
    UserError: as `read_lines`, or a line that has no prompt.
  """
  lines = read_lines(path)
  if path.suffix != '.jsonl':
    return lines
  found = []
  for number, line in enumerate(lines, 1):
    reason = ''
    try:
      record = parse_json(line)
    except ValueError as error:
      record, reason = None, f' (no JSON: {error})'
    prompt = record.get('prompt') if isinstance(record, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
      raise UserError(
        f'line {number} of {path} has no prompt{reason}: give {{"prompt": "..."}} on each line, or'
        ' a .txt file'
      )
    found.append(prompt)
  return found
