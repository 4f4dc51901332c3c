"""Many prompts: each ends as a JSON line, and the same command resumes a run that was stopped."""

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import hashlib
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
from fastdec.cli import opening
from fastdec.cli.opening import PROCESSORS, pick_flags, read_form, tuned_file
from fastdec.cli.prompts import Prompt, hash_prompts
from fastdec.cli.show import describe_blocks
from fastdec.decoding.description import describe
from fastdec.decoding.inputs import make_row_keys
from fastdec.decoding.pool import decode_list
from fastdec.decoding.protocol import finish_reason
from fastdec.decoding.request import Settings
from fastdec.decoding.sizes import LISTED
from fastdec.errors import UserError
from fastdec.files import parse_json, read_bytes, read_json, whole_file, write_json
from fastdec.folders import draft_content
from fastdec.terminal import plain_console
from fastdec.text.generator import blocks_by_calls, key_of
from fastdec.text.load import is_draft, is_tuned, open_folder
from fastdec.text.reader import Reader, StopReader
from fastdec.training.progress import Progress
from fastdec.training.stage import check_same

LOGGED = 30  # seconds between printed lines, if stdout is not a terminal


def settings(
  args: argparse.Namespace, generator: fd.Generator, prompts: Sequence[Prompt]
) -> dict[str, Any]:
  """Returns all that the lines depend on: settings, and hashes of folders' contents."""
  # A pool cannot be described in words, so the hash of its file is recorded.
  strategy, pool = generator.strategy, None
  if getattr(strategy, 'pool', None) is not None:
    strategy = dataclasses.replace(strategy, pool=None)
  if args.pool is not None:
    pool = hashed(pathlib.Path(args.pool).read_bytes())

  # The draft or the heads count by their content, and a tuned strategy by its dtype too.
  part = None
  if args.draft and is_draft(args.draft):
    part = draft_content(args.draft)
  elif args.draft or args.heads:
    part = folders.content(args.draft or args.heads)
  dtype = args.dtype
  if is_tuned(args.strategy):
    dtype = read_json(tuned_file(args))['figures'].get('dtype')
  return {
    'model': open_folder(args.model).content,
    'strategy': describe(strategy),
    'part': part,
    'pool': pool,
    'dtype': dtype,
    'max_len': args.max_len,
    'seed': args.seed,
    'processors': pick_flags(args, PROCESSORS),
    'form': read_form(args),
    'logprobs': args.logprobs,
    'stop': args.stop,
    'prompts': hash_prompts(prompts),
    **chat_settings(args),
  }


def chat_settings(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the settings that turn prompts into the model's input."""
  return {'chat': args.chat, 'system': args.system, 'template': opening.read_template(args)}


@dataclasses.dataclass(frozen=True)
class Output:
  """A file of JSON lines that grows by whole lines, and a file with its settings.

  Attributes:
    path: the file.
    record: the settings (`settings`).
    total: the number of lines when all are done.
    remedy: what the user can do instead of writing there.

  Raises:
    UserError: the file exists, and its settings are different or missing.
  """

  path: pathlib.Path
  record: dict[str, Any]
  total: int
  remedy: str = 'give another --output'

  def __post_init__(self) -> None:
    self._check()

  @property
  def settings_path(self) -> pathlib.Path:
    return self.path.with_name(f'{self.path.name}.settings.json')

  @contextlib.contextmanager
  def open(self) -> Iterator[IO[bytes]]:
    """Opens the file to add lines, and locks it for this process.

    It also writes the settings file, and drops a last line that was cut short.
    """
    try:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      file = open(self.path, 'a+b', buffering=0)  # noqa: SIM115
    except OSError as error:
      raise UserError(f'cannot write {self.path} ({error.strerror}): {self.remedy}') from None
    with file:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise UserError(
          f'another process writes {self.path}: wait for it, or {self.remedy}'
        ) from None
      self._check()  # again: another process may have been here
      write_json(self.settings_path, self.record)
      file.truncate(len(self._whole_lines()))
      yield file

  def done(self) -> dict[int, bytes]:
    """Returns the lines of the file, by the index of their prompt."""
    lines = {}
    for i, line in enumerate(self._whole_lines().splitlines(keepends=True)):
      try:
        index = parse_json(line)['index']
        blocks_of(line)
      except (ValueError, KeyError, TypeError):
        index = None
      if type(index) is not int or not 0 <= index < self.total or index in lines:
        raise UserError(
          f'line {i + 1} of {self.path} is damaged: remove it, and it will be generated again'
        )
      lines[index] = line
    return lines

  def sort(self) -> None:
    """Puts the lines in the order of the prompts."""
    lines = self.done()
    if list(lines) != sorted(lines):
      with whole_file(self.path) as file:
        file.writelines(lines[index] for index in sorted(lines))

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
        f'{self.path} is there, but {self.settings_path.name} is missing or damaged: {self.remedy}'
      )
    check_same(before, self.record, self.path, self.remedy)


def write(
  output: Output,
  generator: fd.Generator,
  prompts: Sequence[Prompt],
  asked: Sequence[Prompt],
  max_len: int,
  seed: int = 0,
  logprobs: int = 0,
  stops: Sequence[str] = (),
) -> None:
  """Generates the missing lines, longest prompts first, and prints a summary.

  A prompt draws by its place, so that a run that was stopped writes what it would have written.

  Args:
    prompts: as in the file, for the lines.
    asked: with the chat template applied.
    max_len, seed, logprobs, stops: as of a call of the generator.
  """
  console = plain_console()
  with output.open() as file, Progress(len(prompts), 'prompt') as progress:
    # Find the missing lines, and read their prompts.
    done = output.done()
    todo, sources, contexts = [], [], []
    for index, prompt in enumerate(asked):
      if index not in done:
        ids, context = generator.read(prompt)
        todo.append(index)
        sources.append(np.array(ids, np.int32))
        contexts.append(context)
    progress.reset(len(prompts) - len(todo))
    keys = key_of(generator.strategy, seed)
    if todo and keys is not None:
      keys = make_row_keys(keys, len(prompts))[np.array(todo, int)]

    # Decode them. Each exchange of the pool adds its lines to the file.
    started = logged = time.monotonic()
    tokens = 0
    parts = decode_list(
      generator.model, generator.params, sources, generator.strategy, generator.rows,
      Settings(
        max_len, key=keys, processors=generator.processors, constraint=generator.constraint,
        logprobs=logprobs,
      ),
      LISTED,
    )  # fmt: skip
    for finished in parts:
      decoded, lines = jax.device_get(finished.decoded.checked()), []
      for row, place in enumerate(finished.indices):
        index, context = todo[int(place)], contexts[int(place)]
        reader = StopReader(Reader(generator.tokenizer, context), stops, with_special=True)
        lines.append(_line(generator, index, prompts[index], decoded, row, reader))
      _append(output, file, b''.join(lines))
      progress.add(len(lines))
      tokens += int(decoded.lengths.sum())
      if time.monotonic() - logged > LOGGED:
        progress.show(str(output.path))
        logged = time.monotonic()
    output.sort()

    # Sum up all lines, those of earlier runs too.
    histogram, cut = collections.Counter(), 0
    for line in output.done().values():
      histogram.update(dict(enumerate(blocks_of(line))))
      cut += parse_json(line).get('finish_reason') == 'length'

  held = len(done) + len(todo)
  console.print(f'{output.path} holds {held:,} outputs, {len(todo):,} of them new')
  blocks = [histogram[size] for size in range(max(histogram, default=-1) + 1)]
  count = describe_blocks(blocks, generator.strategy.most_accepted)
  if count:
    console.print(count)
  if cut:
    console.print(f'{cut:,} of them were cut at --max-len={max_len}: raise it for longer ones')
  if todo:
    speed = tokens / (time.monotonic() - started)
    console.print(f'{speed:,.1f} tokens per second with compilation')


def hashed(data: bytes) -> str:
  """Returns a hash of 16 hexadecimal digits."""
  return hashlib.sha256(data).hexdigest()[:16]


def _line(
  generator: fd.Generator, index: int, prompt: Prompt, decoded: Any, row: int, reader: StopReader
) -> bytes:
  """Writes the JSON line of a decoded row."""
  ids: list[Any] = decoded.written(row)
  text = reader.add(ids) + reader.finish()
  ids = ids[: reader.count]
  blocks = blocks_by_calls(ids, decoded.block_sizes[row, : decoded.calls[row]].tolist())
  record = {
    'index': index,
    'prompt' if isinstance(prompt, str) else 'messages': prompt,
    'text': text,
    'tokens': len(ids),
    'blocks': np.bincount([len(block) for block in blocks[1:]], minlength=1)[1:].tolist(),
    'finish_reason': 'stop' if reader.stop is not None else finish_reason(generator.model, ids),
  }
  if decoded.logprobs is not None:
    logprobs, top_logprobs = [], []
    for token in ids:
      logprobs.append(_finite(token.logprob))
      top = {}
      for other, logprob in token.top_logprobs.items():
        top[other] = _finite(logprob)
      top_logprobs.append(top)
    record |= {'ids': ids, 'logprobs': logprobs, 'top_logprobs': top_logprobs}
  return json.dumps(record, ensure_ascii=False).encode() + b'\n'


def _finite(logprob: float) -> float | None:
  """Rounds a log-probability; returns None for minus infinity, which JSON lacks."""
  if not math.isfinite(logprob):
    return None
  return round(logprob, 6)


def blocks_of(line: bytes) -> list[int]:
  """Returns the histogram of a line: how many calls emitted one token, how many two, and so on.

  Raises:
    ValueError, KeyError, TypeError: the line has none.
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
