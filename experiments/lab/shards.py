"""A long list made shard by shard, by as many processes as like, each shard once; killed at any
moment, it goes on.

folder/00012.jsonl   the records of shard 12, one a line as JSON; the last line says that they are whole
folder/00012.lock    locked by the process that makes it; the system lets go of it when that process dies
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from fastdec.files import locked, whole_file
from fastdec.training.progress import Progress

WAIT = 0.5  # seconds, while other processes have all that is left


@dataclasses.dataclass(frozen=True)
class Shards:
  """Where `total` records are kept, `size` in a shard."""

  folder: pathlib.Path
  size: int
  total: int
  _whole: dict[int, tuple[int, ...]] = dataclasses.field(
    default_factory=dict, repr=False, compare=False
  )

  def __len__(self) -> int:
    return -(-self.total // self.size)

  def span(self, shard: int) -> range:
    """Which records a shard holds."""
    return range(shard * self.size, min((shard + 1) * self.size, self.total))

  def exists(self, shard: int) -> bool:
    """Whether there is a file, whole or damaged."""
    return self._path(shard).exists()

  def is_whole(self, shard: int) -> bool:
    """Whether the records of a shard can be read; a file that has been read is not read again while
    it is the same."""
    try:
      status = os.stat(self._path(shard))
    except OSError:
      return False
    state = status.st_ino, status.st_size, status.st_mtime_ns
    if self._whole.get(shard) != state:
      if self.read(shard) is None:
        return False
      self._whole[shard] = state
    return True

  def read(self, shard: int) -> list[Any] | None:
    """The records of a shard; None where it is not there, cut short or damaged."""
    try:
      content, end = self._path(shard).read_bytes().removesuffix(b'\n').rsplit(b'\n', 1)
      if json.loads(end) != _end(content, len(self.span(shard))):
        return None
      return [json.loads(line) for line in content.split(b'\n')]
    except (OSError, ValueError):
      return None

  def write(self, shard: int, records: Sequence[Any]) -> None:
    """Puts a claimed shard on the disk, whole.

    Raises:
      UserError: it cannot be written.
    """
    content = '\n'.join(json.dumps(record, ensure_ascii=False) for record in records).encode()
    with whole_file(self._path(shard)) as file:
      file.write(content + b'\n' + json.dumps(_end(content, len(records))).encode() + b'\n')

  def claim(self, shard: int) -> contextlib.AbstractContextManager[bool]:
    """Within it no other process has the shard; false at once where one has it now."""
    return locked(self._path(shard).with_suffix('.lock'), wait=False)

  def _path(self, shard: int) -> pathlib.Path:
    return self.folder / f'{shard:05}.jsonl'


def _end(content: bytes, records: int) -> dict[str, int]:
  return {'records': records, 'crc32': zlib.crc32(content)}


def make_all(
  shards: Shards,
  make: Callable[[range], Sequence[Any]],
  progress: Progress,
  start: float,
  budget: float | None,
) -> bool:
  """Makes the shards that no other process makes; false where the budget ends first.

  Args:
    shards: those of the list.
    make: the records of a span.
    progress: told what is whole already and what is made.
    start: when the work began (`time.monotonic`).
    budget: seconds from then after which no further shard is begun; at least one is.
  """
  budget = math.inf if budget is None else budget
  longest, made = 0.0, 0
  while missing := _missing(shards, progress):
    before = made
    for shard in missing:
      since = time.monotonic()
      if made and since - start + longest > budget:
        return False
      with shards.claim(shard) as is_ours:
        if is_ours and not shards.is_whole(shard):
          shards.write(shard, make(shards.span(shard)))
          longest, made = max(longest, time.monotonic() - since), made + 1
          progress.show(f'shard {shard + 1}/{len(shards)}')
    if made == before:  # others have all that is left
      if time.monotonic() - start > budget:
        return False
      time.sleep(WAIT)
  return True


def _missing(shards: Shards, progress: Progress) -> list[int]:
  """Shards that are not there, or not whole, which is said."""
  missing = [shard for shard in range(len(shards)) if not shards.is_whole(shard)]
  for shard in missing:
    if shards.exists(shard):
      progress.note(f'shard {shard + 1} is cut short or damaged: it is made again')
  progress.reset(shards.total - sum(len(shards.span(shard)) for shard in missing))
  return missing
