"""Many prompts: each ends as a JSON line, and the same command resumes a run that was stopped."""

import argparse
import collections
import dataclasses
import hashlib
import operator
import pathlib
from collections.abc import Sequence
from typing import Any

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
from fastdec.evaluation import wallclock
from fastdec.evaluation.rows import add
from fastdec.files import (
  explained,
  lock,
  open_file,
  parse_json,
  read_bytes,
  read_json,
  whole_file,
  write_json,
)
from fastdec.folders import draft_content
from fastdec.terminal import plain_console
from fastdec.text.generator import blocks_by_calls, key_of
from fastdec.text.load import is_draft, is_tuned, open_folder
from fastdec.text.reader import StopReader
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
    pool = hashlib.sha256(pathlib.Path(args.pool).read_bytes()).hexdigest()[:16]

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


def check_settings(path: pathlib.Path, record: dict[str, Any]) -> None:
  """Raises UserError if an output has lines that other settings than `settings` wrote."""
  if not path.exists() or not path.stat().st_size:
    return
  file, remedy = _settings_file(path), 'give another --output'
  try:
    before = parse_json(read_bytes(file))
  except (OSError, ValueError):
    before = None
  if not isinstance(before, dict):
    raise UserError(f'{path} is there, but {file.name} is missing or damaged: {remedy}')
  check_same(before, record, path, remedy)


def _settings_file(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f'{path.name}.settings.json')


def read_lines(path: pathlib.Path, total: int) -> dict[int, bytes]:
  """Returns the lines of an output by the index of their prompt, of which there are `total`.

  Lines that are damaged, or that a killed process cut short, are left out.
  """
  lines = {}
  with open_file(path) as file:
    for line in file:
      try:
        index = parse_json(line)['index']
        blocks_of(line)
      except (ValueError, KeyError, TypeError):
        continue
      if type(index) is int and 0 <= index < total:
        lines[index] = line.rstrip() + b'\n'
  return lines


def write(
  path: pathlib.Path,
  record: dict[str, Any],
  generator: fd.Generator,
  prompts: Sequence[Prompt],
  asked: Sequence[Prompt],
  max_len: int,
  seed: int = 0,
  logprobs: int = 0,
  stops: Sequence[str] = (),
) -> None:
  """Generates the missing lines of an output, longest prompts first, and prints a summary.

  A prompt draws by its place, so that a run that was stopped writes what it would have written.

  Args:
    path: of the output, of which this process holds the lock.
    record: `settings`, which are kept next to it.
    prompts: as in the file, for the lines.
    asked: with the chat template applied.
    max_len, seed, logprobs, stops: as of a call of the generator.

  Raises:
    UserError: another process writes the output, or other settings wrote it.
  """
  with lock(path, wait=False) as is_mine:
    if not is_mine:
      raise UserError(f'another process writes {path}: wait for it, or give another --output')
    check_settings(path, record)  # again: another process may have been here
    write_json(_settings_file(path), record)
    begin = wallclock.now()
    new, tokens = _write_missing(path, generator, prompts, asked, max_len, seed, logprobs, stops)
    seconds = wallclock.now() - begin

    # Put the lines into the order of the prompts, without those that were cut short.
    lines = read_lines(path, len(prompts))
    ordered = b''.join(lines[index] for index in sorted(lines))
    if ordered != path.read_bytes():
      with whole_file(path) as file:
        file.write(ordered)

  # Sum up all lines, those of earlier runs too.
  histogram, cut = collections.Counter(), 0
  for line in lines.values():
    histogram.update(dict(enumerate(blocks_of(line))))
    cut += parse_json(line).get('finish_reason') == 'length'
  console = plain_console()
  console.print(f'{path} holds {len(lines):,} outputs, {new:,} of them new')
  blocks = [histogram[size] for size in range(max(histogram, default=-1) + 1)]
  count = describe_blocks(blocks, generator.strategy.most_accepted)
  if count:
    console.print(count)
  if cut:
    console.print(f'{cut:,} of them were cut at --max-len={max_len}: raise it for longer ones')
  if new:
    console.print(f'{tokens / seconds:,.1f} tokens per second with compilation')


def _write_missing(
  path: pathlib.Path,
  generator: fd.Generator,
  prompts: Sequence[Prompt],
  asked: Sequence[Prompt],
  max_len: int,
  seed: int,
  logprobs: int,
  stops: Sequence[str],
) -> tuple[int, int]:
  """Adds the missing lines to an output, and returns their number and that of their tokens.

  Arguments as in `write`.
  """
  # Find the missing lines, and read their prompts.
  done = read_lines(path, len(prompts))
  todo, sources, contexts = [], [], []
  for index, prompt in enumerate(asked):
    if index not in done:
      ids, context = generator.read(prompt)
      todo.append(index)
      sources.append(np.array(ids, np.int32))
      contexts.append(context)
  keys = key_of(generator.strategy, seed)
  if todo and keys is not None:
    keys = make_row_keys(keys, len(prompts))[np.array(todo, int)]

  # Decode them. Each exchange of the pool adds its lines to the file.
  settings = Settings(
    max_len, key=keys, processors=generator.processors, constraint=generator.constraint,
    logprobs=logprobs,
  )  # fmt: skip
  parts = decode_list(
    generator.model, generator.params, sources, generator.strategy, generator.rows, settings, LISTED
  )
  logged, tokens = wallclock.now(), 0
  with Progress(len(prompts), 'prompt') as progress:
    progress.reset(len(done))
    for finished in parts:
      decoded, rows = jax.device_get(finished.decoded.checked()), []
      for row, place in enumerate(finished.indices):
        index, context = todo[int(place)], contexts[int(place)]
        reader = StopReader(generator.tokenizer, context, stops)
        rows.append(_describe(generator, index, prompts[index], decoded, row, reader))
      with explained('write', path, 'make room, and give the same command'):
        add(path, *rows)
      progress.add(len(rows))
      tokens += int(decoded.lengths.sum())
      if wallclock.now() - logged > LOGGED:
        progress.show(str(path))
        logged = wallclock.now()
  return len(todo), tokens


def _describe(
  generator: fd.Generator, index: int, prompt: Prompt, decoded: Any, row: int, reader: StopReader
) -> dict[str, Any]:
  """Returns what the JSON line of a decoded row holds."""
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
      logprobs.append(round(token.logprob, 6))
      top = {}
      for other, logprob in token.top_logprobs.items():
        top[other] = round(logprob, 6)
      top_logprobs.append(top)
    record |= {'ids': ids, 'logprobs': logprobs, 'top_logprobs': top_logprobs}
  return record


def blocks_of(line: bytes) -> list[int]:
  """Returns the histogram of a line: how many calls emitted one token, how many two, and so on.

  Raises:
    ValueError, KeyError, TypeError: the line has none.
  """
  counts = [operator.index(count) for count in parse_json(line)['blocks']]
  if counts and not 0 <= min(counts) <= max(counts) < 2**31:
    raise ValueError('a count is out of range')
  return counts
