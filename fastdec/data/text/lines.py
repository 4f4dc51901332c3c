"""Lines of text, wherever they are, and what one pass over them finds.

A pass over the text of WMT takes minutes, so what it found is kept beside the size and the times of
the file: a file that has not changed since is not read again.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import json
import os
import pathlib
import posixpath
import re
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fastdec.errors import UserError
from fastdec.files import parse_json, whole_file

Pair = tuple[str, str]
RACY = 2.0  # seconds in which a second change of a file may leave its times as they are
# the ampersand last
ENTITIES = {b'&quot;': b'"', b'&apos;': b"'", b'&lt;': b'<', b'&gt;': b'>', b'&amp;': b'&'}


@dataclasses.dataclass(frozen=True)
class Lines:
  """The lines of a file, or of one in an archive, without their ends; only a newline ends a line,
  as for `wc -l`.

  Of a name in .sgm, the format of WMT's test sets, they are the segments, white space at the ends
  and entities undone.

  Fields:
    path: the file, gzipped where the name ends in .gz.
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
      for line in self._member() if self.member else self._file():
        if not (self.member or self.path).endswith('.sgm'):
          yield line.removesuffix(b'\n').removesuffix(b'\r')
        elif found := re.search(rb'<seg[^>]*>(.*)</seg>', line):
          yield _plain(found[1].strip())
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
      reason = getattr(error, 'strerror', None) or error
      wanted = 'the whole archive' if self.member else 'a text file, or a gzipped one named .gz'
      raise UserError(f'cannot read {self} ({reason}): give {wanted}') from error

  def _file(self) -> Iterator[bytes]:
    opener = gzip.open if self.path.endswith('.gz') else open
    with opener(self.path, 'rb') as file:
      yield from file

  def _member(self) -> Iterator[bytes]:
    with gzip.open(self.path) as file, tarfile.open(fileobj=file, mode='r|') as archive:
      for info in archive:
        if info.isfile() and posixpath.normpath(info.name) == self.member:
          yield from archive.extractfile(info) or ()
          return
    raise UserError(
      f'{self.path} holds no file {self.member}: give the archive of that name from statmt.org'
    )


LinePair = tuple[Lines, Lines]


class Content(NamedTuple):
  """What all files of a text hold: a hash of it, and the number of lines of each split."""

  key: str
  counts: dict[str, int]


def read_pairs(files: Sequence[LinePair]) -> Iterator[Pair]:
  """The pairs of several files of source and target, one file behind the other."""
  for source_lines, target_lines in files:
    for source, target in zip(source_lines, target_lines, strict=True):
      yield source.decode(), target.decode()


def content_of(splits: Mapping[str, Sequence[LinePair]], memory: pathlib.Path) -> Content:
  """Reads and checks every file that has changed since the last time.

  Args:
    splits: for each split, its files of source and target.
    memory: the folder that keeps what a pass over a file found.

  Raises:
    UserError: a file that is missing, damaged, empty or not UTF-8; a source and a target of
      different lengths.
  """
  digest, counts, found = hashlib.sha256(), {}, {}
  for split, files in splits.items():
    counts[split] = 0
    for pair in files:
      for place in pair:
        found[place] = found.get(place) or _recall(place, memory) or _scan(place)
      if found[pair[0]].lines != found[pair[1]].lines:
        both = ' and '.join(f'{place} has {found[place].lines} lines' for place in pair)
        raise UserError(f'{both}: give files whose lines translate each other, one by one')
      counts[split] += found[pair[0]].lines
      digest.update(f'{split} {found[pair[0]].digest} {found[pair[1]].digest}\n'.encode())
  for place, scan in found.items():
    _remember(place, scan, memory)
  return Content(digest.hexdigest(), counts)


class _Scan(NamedTuple):
  """What one pass over a file finds: number of lines, sha256 of its text; and of which state of the
  file."""

  lines: int
  digest: str
  stamp: str


def _scan(place: Lines) -> _Scan:
  """Reads a whole file once, so that what is wrong with it shows before any work."""
  digest, lines, content, stamp = hashlib.sha256(), 0, False, _stamp(place.path)
  try:
    for line in place:
      lines += 1
      line.decode()
      digest.update(line + b'\n')
      content = content or bool(line.strip())
  except UnicodeDecodeError as error:
    raise UserError(
      f'line {lines} of {place} is not UTF-8 ({error.reason}): convert the file'
    ) from error
  if not content:
    raise UserError(f'the text file {place} is empty: give a file with a sentence on each line')
  return _Scan(lines, digest.hexdigest(), stamp)


def _stamp(path: str) -> str:
  """Size and times of a file; '' where there is none, or one changed just now that may change again
  unseen."""
  try:
    status = os.stat(path)
  except OSError:
    return ''
  is_settled = time.time_ns() - status.st_ctime_ns > RACY * 1e9
  return f'{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}' if is_settled else ''


def _recall(place: Lines, memory: pathlib.Path) -> _Scan | None:
  """What an earlier pass over the same state of the file found."""
  try:
    scan = _Scan(**parse_json(_note(place, memory).read_text()))
    return scan if scan.stamp == _stamp(place.path) else None
  except (OSError, ValueError, TypeError):
    return None


def _remember(place: Lines, scan: _Scan, memory: pathlib.Path) -> None:
  """Where nothing can be written, nothing but time is lost."""
  if scan.stamp and _recall(place, memory) != scan:
    with contextlib.suppress(UserError), whole_file(_note(place, memory)) as file:
      file.write(json.dumps(scan._asdict()).encode())


def _note(place: Lines, memory: pathlib.Path) -> pathlib.Path:
  name = f'{os.path.abspath(place.path)}\n{place.member}'
  return memory / f'{hashlib.sha256(name.encode()).hexdigest()[:16]}.json'


def _plain(text: bytes) -> bytes:
  for entity, character in ENTITIES.items():
    text = text.replace(entity, character)
  return text
