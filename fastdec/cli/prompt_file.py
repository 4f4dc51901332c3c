"""Many prompts: each ends as a JSON line, and a run that was stopped goes on where it was."""

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import math
import operator
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

import jax
import numpy as np

import fastdec as fd
from fastdec import folders
from fastdec.cli.opening import form_of, is_tuned, processors_of
from fastdec.cli.show import counted, plain_console
from fastdec.decoding.description import describe
from fastdec.decoding.inputs import row_keys
from fastdec.decoding.pool import decode_each
from fastdec.decoding.protocol import finish_reason
from fastdec.errors import UserError
from fastdec.files import parse_json, read_bytes, read_json, whole_file, write_json
from fastdec.folders import draft_content
from fastdec.text.load import is_draft, open_folder
from fastdec.text.reader import Reader
from fastdec.training.progress import Progress
from fastdec.tuning.tuned import NAME

LOGGED = 30  # seconds between lines for those who have no bar


def settings(
  given: argparse.Namespace, generator: fd.Generator, prompts: Sequence[str]
) -> dict[str, Any]:
  """Returns all that the lines depend on: settings, and hashes of folders' contents."""
  strategy, part = generator.strategy, None
  if getattr(strategy, 'pool', None) is not None:
    strategy = dataclasses.replace(strategy, pool=None)
  if given.draft or given.heads:
    place = given.draft or given.heads
    part = draft_content(place) if is_draft(place) and given.draft else folders.content(place)
  folder, dtype = open_folder(given.model), given.dtype
  if is_tuned(given.strategy):
    file = pathlib.Path(given.strategy)
    tuned = read_json(folder.path / NAME if given.strategy == 'tuned' else file)
    dtype = tuned['figures'].get('dtype')
  return {
    'model': folder.content,
    'strategy': describe(strategy),
    'part': part,
    'pool': None if given.pool is None else hashed(pathlib.Path(given.pool).read_bytes()),
    'dtype': dtype,
    'max_len': given.max_len,
    'seed': given.seed,
    'processors': processors_of(given),
    'form': form_of(given),
    'logprobs': given.logprobs,
    'prompts': hashed('\n'.join(prompts).encode()),
  }


@dataclasses.dataclass(frozen=True)
class Output:
  """A file of JSON lines that grows by whole lines, and its settings beside it.

  Attributes:
    path: the file.
    record: the settings (`settings`).
    total: the lines that there will be.

  Raises:
    UserError: the file is there, of other settings or of none.
  """

  path: pathlib.Path
  record: dict[str, Any]
  total: int

  def __post_init__(self) -> None:
    self._check()

  @property
  def settings_path(self) -> pathlib.Path:
    return self.path.with_name(f'{self.path.name}.settings.json')

  @contextlib.contextmanager
  def open(self) -> Iterator[IO[bytes]]:
    """The file to add to, for this process alone, its settings on the disk, a line that was cut
    short taken away."""
    try:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      file = open(self.path, 'a+b', buffering=0)  # noqa: SIM115
    except OSError as error:
      raise UserError(
        f'cannot write {self.path} ({error.strerror}): give another --output'
      ) from None
    with file:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise UserError(
          f'another process writes {self.path}: wait for it, or give another --output'
        ) from None
      self._check()  # again: another process may have been here
      write_json(self.settings_path, self.record)
      file.truncate(len(self._whole_lines()))
      yield file

  def done(self) -> dict[int, bytes]:
    """The lines that are there, by the index of their prompt."""
    found = {}
    for i, line in enumerate(self._whole_lines().splitlines(keepends=True)):
      try:
        index, _ = parse_json(line)['index'], blocks_of(line)
      except (ValueError, KeyError, TypeError):
        index = None
      if type(index) is not int or not 0 <= index < self.total or index in found:
        raise UserError(
          f'line {i + 1} of {self.path} is damaged: take it out to have it made again'
        )
      found[index] = line
    return found

  def sort(self) -> None:
    """Puts the lines in the order of the prompts."""
    found = self.done()
    if list(found) != sorted(found):
      with whole_file(self.path) as file:
        file.writelines(found[index] for index in sorted(found))

  def _whole_lines(self) -> bytes:
    data = self.path.read_bytes() if self.path.exists() else b''
    return data[: data.rfind(b'\n') + 1]

  def _check(self) -> None:
    if not self.path.exists() or not self.path.stat().st_size:
      return
    try:
      before = parse_json(read_bytes(self.settings_path))
    except (OSError, ValueError):
      before = None
    if not isinstance(before, dict):
      raise UserError(
        f'{self.path} is there, without its settings beside it: give another --output'
      )
    changed = [name for name in self.record | before if before.get(name) != self.record.get(name)]
    if changed:
      raise UserError(
        f'{self.path} was made with other settings ({", ".join(changed)}): give another --output'
      )


def write(
  output: Output, generator: fd.Generator, prompts: Sequence[str], given: argparse.Namespace
) -> None:
  """Generates what is missing, sorted by length; a prompt draws the same whenever it comes."""
  model, strategy, console = generator.model, generator.strategy, plain_console()
  with output.open() as file, Progress(len(prompts), 'prompt') as progress:
    done = output.done()
    todo = [index for index in range(len(prompts)) if index not in done]
    progress.reset(len(done))
    sources = [np.array(generator.read(prompts[index])[0], np.int32) for index in todo]
    keys = None
    if todo:
      keys = row_keys(jax.random.key(given.seed), len(prompts))[np.array(todo, int)]
    since = logged = time.monotonic()
    tokens = 0
    how = {'max_len': given.max_len, 'rows': generator.rows, 'key': keys}
    how |= {'logprobs': given.logprobs}
    how |= {'processors': generator.processors, 'constraint': generator.constraint}
    for finished in decode_each(model, generator.params, sources, strategy, **how):
      decoded, lines = jax.device_get(finished.decoded.checked()), []
      for row, place in enumerate(finished.indices):
        index = todo[int(place)]
        lines.append(_line(generator, index, prompts[index], decoded, row))
      _append(output, file, b''.join(lines))
      progress.add(len(lines))
      tokens += int(decoded.lengths.sum())
      if time.monotonic() - logged > LOGGED:
        progress.show(str(output.path))
        logged = time.monotonic()
    output.sort()
    whole = output.done().values()
    blocks = map(sum, itertools.zip_longest(*map(blocks_of, whole), fillvalue=0))
    cut = sum(parse_json(line).get('finish_reason') == 'length' for line in whole)
  console.print(f'{output.path} holds {len(prompts):,} outputs, {len(todo):,} of them new')
  if count := counted(list(blocks), strategy.most_accepted):
    console.print(count)
  if cut:
    told = f'{cut:,} of them were cut at --max-len={given.max_len}'
    console.print(f'{told}: raise it for longer ones')
  if todo:
    console.print(f'{tokens / (time.monotonic() - since):,.1f} tokens per second with compilation')


def hashed(data: bytes) -> str:
  """Returns a hash of 16 hexadecimal digits."""
  return hashlib.sha256(data).hexdigest()[:16]


def _line(generator: fd.Generator, index: int, prompt: str, decoded: Any, row: int) -> bytes:
  ids = decoded.written(row)
  reader = Reader(generator.tokenizer, generator.read(prompt)[1])
  blocks = np.bincount(decoded.block_sizes[row, : decoded.calls[row]], minlength=1)[1:].tolist()
  record = {
    'index': index,
    'prompt': prompt,
    'text': reader.add(ids) + reader.finish(),
    'tokens': len(ids),
    'blocks': blocks,
    'finish_reason': finish_reason(generator.model, ids),
  }
  if decoded.logprobs is not None:
    told = [{i: _shown(x) for i, x in one.top_logprobs.items()} for one in ids]
    record |= {'ids': ids, 'logprobs': [_shown(one.logprob) for one in ids], 'top_logprobs': told}
  return json.dumps(record, ensure_ascii=False).encode() + b'\n'


def _shown(logprob: float) -> float | None:
  """Returns a number that JSON has; None in place of minus infinity."""
  return round(logprob, 6) if math.isfinite(logprob) else None


def blocks_of(line: bytes) -> list[int]:
  """The histogram of a line's blocks: how many calls emitted one token, how many two, and so on.

  Raises:
    ValueError, KeyError, TypeError: it does not say.
  """
  counts = [operator.index(count) for count in parse_json(line)['blocks']]
  if counts and not 0 <= min(counts) <= max(counts) < 2**31:
    raise ValueError('a count is out of range')
  return counts


def _append(output: Output, file: IO[bytes], lines: bytes) -> None:
  """Adds whole lines, and waits until they are on the disk."""
  try:
    while lines:
      lines = lines[file.write(lines) :]
    os.fsync(file.fileno())
  except OSError as error:
    raise UserError(
      f'cannot write {output.path} ({error.strerror}): make room, and give the same command'
    ) from None
