"""Users' files: opened only if they are regular, written whole or not at all, and locked.

A pipe could keep a command waiting, a device has no end, and a folder has no content.
"""

import bz2
import contextlib
import errno
import fcntl
import glob
import gzip
import io
import json
import lzma
import math
import os
import pathlib
import platform
import re
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

from fastdec.errors import UserError
from fastdec.fields import quote

PathLike = str | os.PathLike[str]
MOST = 2**28  # bytes of a file that is read whole
MOST_JSON = 2**26  # parsed JSON takes thirty times as much memory
MOST_TIMES = 64  # as many bytes as its own a packed file may have, and some more
MARK = b'\xef\xbb\xbf'  # byte order mark, which begins some UTF-8 files
LONGEST, LONGEST_PART = 3840, 240  # bytes of a path and of a name; suffixes are added to them
POINTER = b'version https://git-lfs.github.com/spec/'  # Git LFS leaves such a file in a plain copy
PACKED = {  # packed files, by the ends of their names: how they begin, and what reads them
  '.gz': (re.compile(rb'\x1f\x8b\x08'), gzip.open),
  '.bz2': (re.compile(rb'BZh[1-9](1AY&SY|\x17rE8P\x90)'), bz2.open),
  '.xz': (re.compile(rb'\xfd7zXZ\0'), lzma.open),
}
# An absolute path in a command line; the group is its last part.
ABSOLUTE = re.compile(r"""(?<![^\s=,:'"(\[])~?/(?:[^\s,:'"()/]+/)*([^\s,:'"()/]+)/?""")
BROKEN = (EOFError, zlib.error, lzma.LZMAError)  # a packed file is cut short or damaged
UNREAD = (  # how other kinds of files begin, and what makes lines of them
  (b'\x28\xb5\x2f\xfd', 'it is packed by zstd: unpack it by zstd -d'),
  (b'PK\x03\x04', 'it is a zip archive, or a table of Excel: unpack or export it'),
  (b'PAR1', 'it is a table of Parquet: write its lines as JSON'),
)
SURROGATE = re.compile(r'\\u[dD][89a-fA-F]')  # an escape that may be half a character
ROOM = 'make room, or give another folder'
ELSEWHERE = 'give a name in a folder that can be written'


def without_folders(text: str) -> str:
  """Returns a command line in which file names replace absolute paths.

  Rows of measurements name the files that were used, but not where one machine keeps them.
  """
  return ABSOLUTE.sub(r'\1', text)


def open_file(path: PathLike) -> io.BufferedReader:
  """Opens a regular file to read.

  Raises:
    OSError: it is missing or not a regular file, or no file can have this name.
  """
  try:
    mode = os.stat(path).st_mode
    # Check before opening, because opening a pipe waits for its writer.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
      raise OSError(errno.EINVAL, 'a pipe or a device, not a regular file')
    return open(path, 'rb')
  except ValueError:  # a name with a NUL or a surrogate
    raise OSError(errno.EINVAL, 'no file can have this name') from None


def read_bytes(path: PathLike, most: int = MOST) -> bytes:
  """Reads a whole file; raises OSError as `open_file`, or if it has more than `most` bytes."""
  with open_file(path) as file:
    return file.read(_check_size(file, most))


def _check_size(file: io.BufferedReader, most: int) -> int:
  size = os.fstat(file.fileno()).st_size
  if size > most:
    raise OSError(errno.EFBIG, f'it has {size:,} bytes, more than {most:,}')
  return size


def unpack(file: io.BufferedReader) -> Any:
  """Returns a file that reads what gzip, bzip2 or xz has packed, by its name or its first bytes.

  A file that is not packed is returned as it is.

  Raises:
    OSError: a different packer or a program for tables wrote it. Reading may raise `BROKEN`.
  """
  head = file.peek(16)
  for beginning, reason in UNREAD:
    if head.startswith(beginning):
      raise OSError(errno.EINVAL, reason)
  for ending, (pattern, opened) in PACKED.items():
    if pattern.match(head) or str(file.name).endswith(ending):
      return opened(file)
  return file


def read_unpacked(path: PathLike, most: int = MOST) -> bytes:
  """Reads a whole file, unpacked; raises OSError as `read_bytes` and `unpack`."""
  with open_file(path) as file:
    size, content = _check_size(file, most), unpack(file)
    try:
      if content is not file:
        most = min(most, MOST_TIMES * size + 2**23)  # of the unpacked data
        size = most + 1
      data = content.read(size)
    except BROKEN as error:
      raise OSError(errno.EINVAL, f'it is cut short or damaged: {error}') from None
  if len(data) > most:
    raise OSError(errno.EFBIG, f'it has more than {most:,} bytes when unpacked, so unpack it first')
  return data


def read_stdin(most: int = MOST) -> bytes:
  """Reads standard input; raises UserError if it is closed, or has more than `most` bytes."""
  if sys.stdin is None:
    raise UserError('standard input is closed: give a file, or the text itself')
  data = sys.stdin.buffer.read(most + 1)
  if len(data) > most:
    raise UserError(f'standard input has more than {most:,} bytes: give less')
  return data


@contextlib.contextmanager
def explained(action: str, path: pathlib.Path, remedy: str) -> Iterator[None]:
  """Turns the system's errors within the block into a UserError."""
  try:
    yield
  except OSError as error:
    reason = error.strerror or error
    raise UserError(f'cannot {action} {path} ({reason}): {remedy}') from error


def place(path: Any) -> pathlib.Path:
  """Returns a user's path; raises UserError if it is not a path or no file can have this name."""
  try:
    name = os.fsencode(path)
  except TypeError:
    raise UserError(f'{quote(path)} is not a path: give the name of a file or a folder') from None
  except ValueError:  # a surrogate
    name = b''
  longest_part = max(len(part) for part in name.split(b'/'))
  if not name or b'\0' in name or len(name) > LONGEST or longest_part > LONGEST_PART:
    raise UserError(f'no file can be called {quote(os.fspath(path))}: give another name')
  return pathlib.Path(os.fsdecode(name))


def place_to_write(path: Any) -> pathlib.Path:
  """Returns the path of a file to write; call it before the work whose result it will hold.

  Raises:
    UserError: it is a folder or a device, or it cannot be made. Nothing has been written.
  """
  path = place(path)
  if path.name in ('', '..') or os.path.isdir(path):
    raise UserError(f'{path} is a folder: give the name of a file')
  if os.path.exists(path) and not os.path.isfile(path):
    raise UserError(f'{path} is a device or a pipe, not a regular file: give another name')
  _check_folder_above(path)
  return path


def place_for_folder(path: Any) -> pathlib.Path:
  """Returns the path of a folder to write; call it before the work whose result it will hold.

  Raises:
    UserError: it is not a folder, or it cannot be made. Nothing has been written.
  """
  path = place(path)
  if path.name in ('', '..') or (os.path.exists(path) and not os.path.isdir(path)):
    raise UserError(f'{path} cannot become a folder: give the name of a new one')
  _check_folder_above(path)
  return path


def _check_folder_above(path: pathlib.Path) -> None:
  """Raises UserError if the folder above a path cannot be made or written."""
  above = path.parent
  while not os.path.exists(above):
    above = above.parent
  # A trial is needed: rights do not say that /proc, a full disk or a read-only one take no files.
  with explained('write', path, ELSEWHERE), tempfile.TemporaryDirectory(dir=above):
    pass


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[IO[bytes]]:
  """Opens a file to write, under a temporary name until it is on the disk; makes its folder.

  It removes temporary files that killed processes of this machine left there for the same file.

  Raises:
    UserError: it cannot be written; an existing file stays.
  """
  prefix = f'{path.name}.{platform.node()}'
  partial = path.with_name(f'{prefix}.{os.getpid()}.partial')
  with explained('write', path, ROOM):
    try:
      if path.exists() and not path.is_file():  # os.replace would replace a device
        raise OSError(errno.EINVAL, 'it exists and is not a regular file')
      path.parent.mkdir(parents=True, exist_ok=True)
      for other in path.parent.glob(f'{glob.escape(prefix)}.*.partial'):
        if _is_dead(other.name.split('.')[-2]):
          other.unlink(missing_ok=True)
      with open(partial, 'wb') as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      os.replace(partial, path)
      _sync(path.parent)  # it lists the new name
    finally:
      with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


def _is_dead(pid: str) -> bool:
  """True for the number of a process that has ended."""
  try:
    os.kill(int(pid), 0)
  except ProcessLookupError:
    return True
  except (ValueError, OverflowError, PermissionError):  # not a number, or another user's process
    pass
  return False


@contextlib.contextmanager
def whole_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes a new folder to fill, under a temporary name until all files in it are on the disk.

  Then it replaces an existing folder. Until the new one is `path`, the existing one is always
  complete, as `path` or as `path`.old.

  Raises:
    UserError: it cannot be written; an existing folder stays.
  """
  path = place_for_folder(path)
  partial, old = path.with_name(f'{path.name}.partial'), path.with_name(f'{path.name}.old')

  def restore() -> None:
    if old.is_dir() and not path.exists():  # the process stopped between the two renames below
      old.rename(path)

  with explained('write', path, ROOM):
    try:
      restore()
      shutil.rmtree(partial, ignore_errors=True)
      partial.mkdir(parents=True)
      yield partial
      for file in (*partial.rglob('*'), partial):
        _sync(file)
      shutil.rmtree(old, ignore_errors=True)
      if path.exists():
        path.rename(old)
      partial.rename(path)
      _sync(path.parent)
      shutil.rmtree(old, ignore_errors=True)
    finally:
      restore()
      shutil.rmtree(partial, ignore_errors=True)


def _sync(path: pathlib.Path) -> None:
  """Waits until a file, or a folder's list of names, is on the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a whole file of text; see `whole_file`."""
  with whole_file(path) as file:
    file.write(text.encode())


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a whole file of JSON; see `whole_file` and `to_json`."""
  write_text(path, to_json(value, indent=2) + '\n')


def to_json(value: Any, **settings: Any) -> str:
  """Returns a value as JSON, for all files of ours; `settings` are those of `json.dumps`.

  A number that is not finite, which JSON lacks, is written as null.
  """
  return json.dumps(json_of(value), allow_nan=False, **settings)


def json_of(value: Any) -> Any:
  """Returns a value as it is after writing and reading JSON: tuples as lists, a number that is not
  finite as None."""
  if isinstance(value, Mapping):
    return {name: json_of(entry) for name, entry in value.items()}
  if isinstance(value, tuple | list):
    return [json_of(entry) for entry in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def lock(path: pathlib.Path, wait: bool = True) -> Iterator[bool]:
  """Holds a file's lock until the end of the block, or of the process (even if it is killed).

  Args:
    path: the file; it is made, with its folder, and stays.
    wait: waits for another process that has the lock; otherwise the block gets False at once.

  Raises:
    UserError: the file cannot be made or locked.
  """
  with explained('lock', path, ROOM):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, 'a')  # noqa: SIM115
  with file:
    is_mine, mode = True, fcntl.LOCK_EX
    if not wait:
      mode |= fcntl.LOCK_NB
    with explained('lock', path, ROOM):
      try:
        fcntl.flock(file, mode)
      except BlockingIOError:
        is_mine = False
    yield is_mine


def is_locked(path: pathlib.Path) -> bool:
  """Returns whether a process holds a file's lock; a missing file stays missing."""
  try:
    with open(path) as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  except OSError:
    pass
  return False


def parse_json(text: str | bytes) -> Any:
  """Parses JSON. A byte order mark may precede it, and the last of repeated keys counts.

  Raises:
    ValueError: it is not JSON, is nested too deep for Python's parser, has half a character, or has
      more lists and objects than fit into twenty times the memory of the text.
  """
  if isinstance(text, bytes):
    text = text.removeprefix(MARK).decode()
  if text.count('[') + text.count('{') > len(text) // 32 + 2**19:
    raise ValueError('it has too many lists and objects')
  try:
    value = json.loads(text)
    if SURROGATE.search(text):
      json.dumps(value, ensure_ascii=False).encode()
  except RecursionError:
    raise ValueError('it is nested too deep') from None
  except UnicodeEncodeError:
    raise ValueError(r'it has half a character, such as \ud83d by itself') from None
  return value


def read_json(file: pathlib.Path, remedy: str = '') -> dict[str, Any]:
  """Reads a JSON object.

  Args:
    file: of a model folder; or any, with a `remedy` for messages.

  Raises:
    UserError: the file is missing, unreadable, or something else.
  """
  with explained('read', file, remedy or 'restore the file'):
    try:
      data = read_bytes(file, MOST_JSON)
    except FileNotFoundError:
      if remedy:
        raise
      raise UserError(f'{file.parent} has no {file.name}: give a whole model folder') from None
  try:
    content = parse_json(data)
  except ValueError as error:
    raise damage(file, f'is not JSON ({error})', remedy or 'restore the file') from None
  if not isinstance(content, dict):
    raise damage(file, 'is not a JSON object', remedy or 'restore the file')
  return content


def json_lines(file: pathlib.Path) -> Iterator[tuple[int, Any]]:
  """Yields the numbers and values of a file's lines of JSON; nothing if the file is missing.

  Skips a line that is not JSON, since a killed process may have written a part of it. Raises
  UserError if the file cannot be read.
  """
  lines = []
  with explained('read', file, 'use another workdir'), contextlib.suppress(FileNotFoundError):
    lines = read_bytes(file).split(b'\n')
  for number, line in enumerate(lines, start=1):
    with contextlib.suppress(ValueError):
      yield number, parse_json(line)


def text_of(data: bytes, name: object) -> str:
  """Decodes UTF-8 without its byte order mark; raises UserError with the line that is not UTF-8."""
  try:
    return data.removeprefix(MARK).decode()
  except UnicodeDecodeError as error:
    line = error.object[: error.start].count(b'\n') + 1
    raise UserError(f'line {line} of {name} is not UTF-8: convert the text') from None


def check_text(text: Any) -> str:
  """Returns a text for a tokenizer; raises UserError if it is not a str or has half a character."""
  if not isinstance(text, str):
    raise UserError(f'{quote(text)} is not a text: give a str')
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise UserError(
      f'a text has half a character, {text[error.start]!r} at place {error.start}: fix it where it'
      ' was cut'
    ) from None
  return text


def damage(file: pathlib.Path, reason: str, advice: str = 'copy it again') -> UserError:
  """Returns the error for a file whose content does not fit its name."""
  with contextlib.suppress(OSError), open_file(file) as opened:
    if opened.read(len(POINTER)) == POINTER:
      return UserError(
        f'{file} is a pointer of Git LFS instead of the file itself: run git lfs pull in'
        f' {file.parent}, or download the file'
      )
  return UserError(f'{file} {reason}: {advice}')
