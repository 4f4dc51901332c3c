"""Lines of text in files and archives; their hash and number, kept from one pass over them.

A pass over the text of WMT takes minutes. Its result is kept for a file's path, size and time of
change, so that the same file is not read again.
"""

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import os
import pathlib
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastdec.errors import UserError
from fastdec.fields import Size, read
from fastdec.files import BROKEN, MARK, open_file, read_json, unpack, write_json

Pair = tuple[str, str]
LONGEST = 2**24  # bytes of a line
# the ampersand last, because it could begin another entity
ENTITIES = {b'&quot;': b'"', b'&apos;': b"'", b'&lt;': b'<', b'&gt;': b'>', b'&amp;': b'&'}


@dataclasses.dataclass(frozen=True)
class Lines:
  """The lines of a file, or of one in an archive, without their ends.

  Only a newline ends a line, as for `wc -l`. A name in .sgm is a test set in WMT's format: its
  lines are the segments, without white space at the ends, and with entities decoded.

  Fields:
    path: the file; files packed by gzip, bzip2 or xz are unpacked.
    member: the name of a file in it, if it is a gzipped tar archive; else ''.
  """

  path: str
  member: str = ''

  def __str__(self) -> str:
    return f'{self.member} in {self.path}' if self.member else self.path

  def __iter__(self) -> Iterator[bytes]:
    """Reads the file, a line at a time.

    Raises:
      UserError: it is missing, or damaged.
    """
    try:
      for line in self._content():
        if not (self.member or self.path).endswith('.sgm'):
          yield line.removesuffix(b'\n').removesuffix(b'\r')
        elif segment := re.search(rb'<seg[^>]*>(.*)</seg>', line):
          text = segment[1].strip()
          for entity, character in ENTITIES.items():
            text = text.replace(entity, character)
          yield text
    except (OSError, *BROKEN, tarfile.TarError) as error:
      reason = getattr(error, 'strerror', None) or error
      wanted = 'the whole archive' if self.member else 'a text file, or one packed by gzip'
      raise UserError(f'cannot read {self} ({reason}): give {wanted}') from error

  def _content(self) -> Iterator[bytes]:
    """Reads the lines of the file, or of the member of the archive."""
    if not self.member:
      with open_file(self.path) as file, unpack(file) as content:
        yield from _lines_of(content)
      return
    with (
      open_file(self.path) as zipped,
      gzip.open(zipped) as file,
      tarfile.open(fileobj=file, mode='r|') as archive,
    ):
      for info in archive:
        if info.isfile() and posixpath.normpath(info.name) == self.member:
          yield from _lines_of(archive.extractfile(info))
          return
    raise UserError(
      f'{self.path} holds no file {self.member}: give the archive of that name from statmt.org'
    )


def _lines_of(file: Any) -> Iterator[bytes]:
  """Reads lines without a byte order mark before the first; each takes bounded memory."""
  is_first = True
  while line := file.readline(LONGEST):
    if len(line) == LONGEST:
      raise OSError(errno.EFBIG, f'a line has more than {LONGEST:,} bytes')
    yield line.removeprefix(MARK) if is_first else line
    is_first = False


LinePair = tuple[Lines, Lines]


class Content(NamedTuple):
  """A hash of all files of a text, and the number of lines of each split."""

  key: str
  counts: dict[str, int]


def read_pairs(files: Sequence[LinePair]) -> Iterator[Pair]:
  """Reads the pairs of several files of source and target, one file after the other."""
  for source_lines, target_lines in files:
    for source, target in zip(source_lines, target_lines, strict=True):
      yield source.decode(), target.decode()


def check_content(splits: Mapping[str, Sequence[LinePair]], memory: pathlib.Path) -> Content:
  """Reads and checks every file that has changed since the last time.

  Args:
    splits: for each split, its files of source and target.
    memory: the folder that keeps the number of lines and the hash of each file.

  Raises:
    UserError: a file is missing, damaged, empty or not UTF-8, or source and target differ in
      length.
  """
  digest, counts = hashlib.sha256(), dict.fromkeys(splits, 0)
  for split, files in splits.items():
    for source, target in files:
      ours, theirs = _recall(source, memory), _recall(target, memory)
      if ours.lines != theirs.lines:
        raise UserError(
          f'{source} has {ours.lines} lines and {target} has {theirs.lines} lines: give files whose'
          ' lines translate each other, one by one'
        )
      counts[split] += ours.lines
      digest.update(f'{split} {ours.digest} {theirs.digest}\n'.encode())
  return Content(digest.hexdigest(), counts)


@dataclasses.dataclass(frozen=True)
class _Scan:
  """The number of lines of a file, and the sha256 of its text."""

  lines: Size
  digest: str


def _recall(place: Lines, memory: pathlib.Path) -> _Scan:
  """Reads a file, or the note of an earlier pass over the same path, size and time of change."""
  path = os.path.abspath(place.path)
  state = os.stat(path) if os.path.exists(path) else None
  stamp = repr((path, place.member, state and (state.st_size, state.st_mtime_ns)))
  note = memory / f'{hashlib.sha256(stamp.encode()).hexdigest()[:16]}.json'
  with contextlib.suppress(UserError):  # no note, or a damaged one
    return read(_Scan, read_json(note), note.name)
  scan = _scan(place)
  with contextlib.suppress(UserError):  # without a note the next run only takes longer
    write_json(note, dataclasses.asdict(scan))
  return scan


def _scan(place: Lines) -> _Scan:
  """Reads a whole file once, so that its mistakes show before any work."""
  digest, lines, has_text = hashlib.sha256(), 0, False
  try:
    for line in place:
      lines += 1
      line.decode()
      digest.update(line + b'\n')
      has_text = has_text or bool(line.strip())
  except UnicodeDecodeError as error:
    raise UserError(
      f'line {lines} of {place} is not UTF-8 ({error.reason}): convert the file'
    ) from error
  if not has_text:
    raise UserError(f'the text file {place} is empty: give a file with a sentence on each line')
  return _Scan(lines, digest.hexdigest())
