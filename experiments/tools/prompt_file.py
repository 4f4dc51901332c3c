"""Many prompts: each ends as a JSON line, and a run that was stopped goes on where it was."""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import operator
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import jax
import numpy as np
from rich.console import Console

import fastdec as fd
from experiments.tools.accepted import counted
from experiments.tools.generation import Generator
from experiments.tools.generation_settings import Settings
from experiments.tools.tuned_file import figures_of, tuned_file
from fastdec.decoding.inputs import row_keys
from fastdec.decoding.pool import decode_each
from fastdec.decoding.protocol import finish_reason
from fastdec.errors import UserError
from fastdec.files import parse_json, read_json, whole_file, write_json
from fastdec.folders import Folder
from fastdec.folders.drafts import draft_content
from fastdec.training.progress import Progress
from fastdec.tuning.tuned import NAME

LOGGED = 30  # seconds between lines for those who have no bar


@dataclasses.dataclass(frozen=True)
class Output:
  """A file of JSON lines that grows by whole lines, and beside it the settings that it was made
  with."""

  path: pathlib.Path
  record: dict[str, Any]
  total: int

  @classmethod
  def of(
    cls,
    path: pathlib.Path,
    settings: Settings,
    prompts: Sequence[str],
    opened: Mapping[str, Folder],
  ) -> 'Output':
    """The file that these settings and prompts make; `opened` has the folders that the settings
    name.

    Raises:
      UserError: the file is there, of other settings or of none.
    """
    if path.is_dir():
      raise UserError(f'{path} is a folder: give --output a file, such as {path / "out.jsonl"}')
    record = {**dataclasses.asdict(settings), 'prompts': _hash('\n'.join(prompts))}
    for name in ('model', 'draft', 'heads', 'medusa'):
      if record[name] is not None:
        record[name] = opened[record[name]].content
    if settings.draft_head is not None:
      record['draft_head'] = draft_content(settings.draft_head)
    if settings.strategy is not None and not settings.describes:
      tuned = read_json(
        pathlib.Path(tuned_file(settings.strategy) or opened[settings.model].path / NAME)
      )
      dtype = figures_of(tuned).get('dtype')
      record['strategy'] = _hash(
        json.dumps([tuned.get('strategy'), tuned.get('part'), *([dtype] if dtype else [])])
      )
    if settings.pool is not None:
      record['pool'] = hashlib.sha256(pathlib.Path(settings.pool).read_bytes()).hexdigest()[:16]
    if settings.choices is not None:
      record['choices'] = _hash(repr(sorted(fd.medusa_choices(settings.choices))))
    output = cls(path, record, len(prompts))
    output._check()
    return output

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
      if not isinstance(index, int) or not 0 <= index < self.total or index in found:
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
      before = parse_json(self.settings_path.read_text())
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
  console: Console, output: Output, generator: Generator, prompts: Sequence[str], rows: int
) -> None:
  """Generates what is missing, sorted by length, `rows` prompts at once; a prompt draws the same
  whenever it comes."""
  with output.open() as file, Progress(len(prompts), 'prompt') as progress:
    done = output.done()
    todo = [index for index in range(len(prompts)) if index not in done]
    progress.reset(len(done))
    sources = [np.array(generator.ids(prompts[index]), np.int32) for index in todo]
    keys = (
      row_keys(jax.random.key(generator.settings.seed), len(prompts))[np.array(todo, int)]
      if todo
      else None
    )
    since = logged = time.monotonic()
    tokens = 0
    for finished in decode_each(
      generator.model,
      generator.params,
      sources,
      generator.strategy,
      generator.settings.max_len,
      rows,
      keys,
    ):
      ends = [
        (todo[int(i)], jax.tree.map(lambda x, row=row: x[row], finished.decoded.checked()))
        for row, i in enumerate(finished.indices)
      ]
      lines = [_line(generator, index, prompts[index], decoded) for index, decoded in ends]
      _append(output, file, b''.join(lines))
      progress.add(len(ends))
      tokens += sum(int(decoded.lengths) for _, decoded in ends)
      if time.monotonic() - logged > LOGGED:
        progress.show(str(output.path))
        logged = time.monotonic()
    output.sort()
    whole = output.done().values()
    blocks = map(sum, itertools.zip_longest(*map(blocks_of, whole), fillvalue=0))
    cut = sum(parse_json(line).get('finish_reason') == 'length' for line in whole)
  console.print(f'{output.path} holds {len(prompts):,} outputs, {len(todo):,} of them new')
  if count := counted(list(blocks), generator.strategy.most_accepted):
    console.print(count)
  if cut:
    limit = generator.settings.max_len
    console.print(f'{cut:,} of them were cut at --max_len={limit}: raise it for longer ones')
  if todo:
    console.print(f'{tokens / (time.monotonic() - since):,.1f} tokens per second with compilation')
  for line in generator.warnings:
    console.print(line)


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _line(generator: Generator, index: int, prompt: str, decoded: Any) -> bytes:
  ids = decoded.tokens[: int(decoded.lengths)].tolist()
  blocks = np.bincount(decoded.block_sizes[: int(decoded.calls)], minlength=1)[1:].tolist()
  record = {
    'index': index,
    'prompt': prompt,
    'text': generator.text(prompt, ids),
    'tokens': len(ids),
    'blocks': blocks,
    'finish_reason': finish_reason(generator.model, ids),
  }
  return json.dumps(record, ensure_ascii=False).encode() + b'\n'


def blocks_of(line: bytes) -> list[int]:
  """The histogram of a line's blocks: how many calls emitted one token, how many two, and so on.

  Raises:
    ValueError, KeyError, TypeError: it does not say.
  """
  return [operator.index(count) for count in parse_json(line)['blocks']]


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
