"""Text that a model writes, as stages; training on it is `data.distilled` or `data.own`.

`translations`: the sources as a teacher translates them (sequence-level distillation, Kim and Rush
2016), or as the base itself does, greedily. `continuations`: what a language model writes after the
beginnings of text (self-distillation, Cai et al. 2024, section 2.3.2).

  folder/parts/00012.jsonl   outputs of part 12, while the text is being written
  folder/                    the text and its ids, see `lab/text.py`
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import jax
import numpy as np

import fastdec as fd
from experiments.lab.stage import by_the_first, seconds_left
from experiments.lab.text import (
  RECORDS,
  Split,
  Text,
  TextConfig,
  ended,
  listed,
  prompts_of,
  save_ids,
)
from experiments.lab.train import Count, Seed, Zero, author_of, seed_of
from fastdec import folders
from fastdec.data.text.corpus import TextData, open_text
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.decoding.pool import decode_each
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.fields import Between
from fastdec.files import parse_json, whole_file, write_json
from fastdec.tokenizers.sentencepiece import EOS_ID, Tokenizer, normalise
from fastdec.training.progress import Progress

ROWS = 64  # beginnings at once
PART = 2000  # beginnings between two points to resume from
Source = tuple[str, str | None]  # a line, and the translation that it keeps where there is no other
Written = tuple[str, list[int], str, list[int]]  # a source, its ids, a line, its ids
Parts = Iterator[tuple[list[Any], list[Any]]]  # inputs, and a record of each


@dataclasses.dataclass(frozen=True)
class DistillConfig:
  """Settings by which a model translates the sources: by a search, as Vaswani et al. 2017, greedily
  (beam=1), or by drawing (samples)."""

  beam: Count = 4
  length_penalty: float = 0.6
  min_len: Count = 2  # tokens; with 1 a search finds nothing at all best for some sources
  # (a, b): a * source + b tokens at most. The paper's b = 50 costs time where sentences are short.
  max_len: tuple[Annotated[float, Between(0, 1e6)], ...] = (1, 20)
  n_best: Count = 1  # outputs of a source
  samples: Zero = 0  # with beam=1: outputs drawn for each source; 0: none
  temperature: float = 1.0
  seed: Seed = 0  # of drawing
  sources: str = ''  # files of the source language, with commas between them; '': training sources
  shard_size: Count = 2000  # sources between two points to resume from
  rows: Count = 64  # sources decoded at once

  def __post_init__(self) -> None:
    if self.samples and self.beam > 1:
      raise UserError(
        f'config.distill.samples={self.samples} with beam={self.beam} is not possible:'
        ' give 0 to search, or 1 or more with beam=1 to draw as many outputs'
      )
    if self.samples:
      fd.Sample(self.temperature)
    if self.n_best > self.beam:
      raise UserError(
        f'config.distill.n_best={self.n_best} is not possible: beam={self.beam} is the most'
      )
    if len(self.max_len) != 2 or self.max_len == (0, 0):
      raise UserError(
        f'config.distill.max_len={self.max_len} is not possible: give (a, b), for a * source + b'
        ' tokens'
      )

  @property
  def key(self) -> dict[str, Any]:
    """All that decides what is written, files of sources by their content."""
    found = dataclasses.asdict(self)
    for path in listed(self.sources):
      if pathlib.Path(path).is_file():
        found[path] = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    return found

  @property
  def strategy(self) -> fd.Beam | fd.Greedy | fd.Sample:
    """The search, or what the model writes itself, at its best or at random."""
    if self.samples:
      return fd.Sample(self.temperature)
    if self.beam == 1:
      return fd.Greedy()
    sizes = {'n_best': self.n_best, 'min_len': self.min_len, 'max_len': self.max_len}
    return fd.Beam(self.beam, self.length_penalty, **sizes)


# --- a translator


@by_the_first
def translations(
  folder: pathlib.Path, *, model: pathlib.Path, data: TextConfig, distill: DistillConfig
) -> None:
  """Writes train.<source> and train.<target>, and, where the model writes greedily, dev too.

  A training source that the model has no words for, or that is too long for training, keeps its
  translation; lines of other files have none, and are left out.

  Args:
    folder: of the stage.
    model: the folder of a finished translator, over the pieces of the text.
    data: people's text.
    distill: how it is translated.
  """
  if _is_written(folder):
    return
  text = data.open()
  text.check_base(model)
  module, params = folders.load(model)
  teacher = author_of(module, params, text.tokenizer)
  for split, given, total in _sources(text, distill):
    make = functools.partial(_translated, module, params, text, distill, split)
    parts = _recorded(folder, split, given, distill.shard_size, total, 'sentence', make)
    counts = {'sources': 0, 'lines': 0, 'empty': 0, 'long': 0}
    record = {'teacher': teacher, 'distill': {'beam': distill.beam}, 'counts': counts}
    _save(folder, text, split, _translation_lines(parts, text.tokenizer, counts), record)
  shutil.rmtree(folder / 'parts')


def _sources(text: Text, distill: DistillConfig) -> Iterator[tuple[Split, Iterable[Source], int]]:
  """The splits that are translated: their sources, and how many there are."""
  files = [TextData('files', train=(path, path)) for path in listed(distill.sources)]
  others = [open_text(file, text.config.cache) for file in files]  # a mistake shows before any work
  if distill.beam == 1 and 'dev' in text.people.counts:
    dev = [(source, None) for source, _ in text.pairs('dev') if source.strip()]
    yield 'dev', dev, len(dev)
  if others:
    lines = ((line, None) for other in others for line, _ in other.pairs('train'))
    yield 'train', lines, sum(other.counts['train'] for other in others)
  else:
    yield 'train', text.people.pairs('train'), text.people.counts['train']


def _translated(
  model: Any,
  params: Any,
  text: Text,
  distill: DistillConfig,
  split: str,
  given: Sequence[Source],
  first: int,
) -> list[Any]:
  """Lines and ids of each source's outputs, best first; None where the source is too long.

  Args:
    model, params: the translator.
    text: whose pieces and length of rows it is.
    distill: how it is translated.
    split: 'train' or 'dev'.
    given: the sources.
    first: the place of the first of them in its split: with that, outputs are drawn anew.
  """
  tokenizer, positions = text.tokenizer, model.max_positions or np.inf
  longest = min(text.config.row_length, positions)  # longer pairs are left out of training
  a, b = distill.max_len
  max_len = max(int(min(a * longest + b, positions)), 1)
  ids = [np.array([*tokenizer.encode(line), EOS_ID], np.int32) for line, _ in given]
  short = [i for i, source in enumerate(ids) if len(source) <= longest]
  found: list[list[list[int]]] = [[] for _ in short]
  for draw in range(max(distill.samples, 1)):
    key = None
    if distill.samples:
      key = jax.random.key(seed_of(distill.seed, split))
      key = jax.random.fold_in(jax.random.fold_in(key, first), draw)
    inputs, strategy = [ids[i] for i in short], distill.strategy
    for finished in decode_each(model, params, inputs, strategy, max_len, distill.rows, key):
      for i, ranked in zip(finished.indices, _ranked(finished.decoded.checked()), strict=True):
        found[i] += ranked
  outputs: list[Any] = [None] * len(ids)
  for i, ranked in zip(short, found, strict=True):
    lines: dict[str, list[int]] = {}  # each line once, with the ids of the best that reads so
    for hypothesis in ranked:
      if line := tokenizer.decode(hypothesis):
        lines.setdefault(line, ended(hypothesis))
    outputs[i] = list(lines.items())
  return outputs


def _ranked(decoded: Decoded) -> list[list[list[int]]]:
  """The outputs of each row, best first: one, or those that a search has found."""
  if decoded.nbest_tokens is None or decoded.nbest_scores is None:
    return [[row] for row in decoded.tokens.tolist()]
  rows = zip(decoded.nbest_tokens, decoded.nbest_scores, strict=True)
  return [tokens[scores > -np.inf].tolist() for tokens, scores in rows]


def _translation_lines(
  parts: Parts, tokenizer: Tokenizer, counts: dict[str, int]
) -> Iterator[list[Written]]:
  """The lines of each part: a source's outputs, or else the translation that it keeps. Counts
  them."""
  for sources, records in parts:
    rows: list[Written] = []
    for (source, translation), outputs in zip(sources, records, strict=True):
      counts['empty'] += outputs == []
      counts['long'] += outputs is None
      if not outputs and translation is not None:
        line = normalise(translation)
        outputs = [(line, [*tokenizer.encode(line), EOS_ID])]
      ids = [*tokenizer.encode(source), EOS_ID]
      rows += [(normalise(source), ids, line, written) for line, written in outputs or ()]
    counts['sources'] += len(sources)
    counts['lines'] += len(rows)
    yield rows


# --- a language model


@by_the_first
def continuations(
  folder: pathlib.Path, *, model: pathlib.Path, data: TextConfig, prompt: int, max_len: int
) -> None:
  """Writes what the model adds greedily to the first tokens of each line: dev, and train.

  Args:
    folder: of the stage.
    model: the folder of a finished language model.
    data: people's text, whose beginnings are gone on from.
    prompt: tokens of a beginning.
    max_len: tokens that the model writes at most.
  """
  if _is_written(folder):
    return
  text, (module, params) = data.open(), folders.load(model)
  text.check_base(model)
  teacher = author_of(module, params, text.tokenizer)
  splits: tuple[Split, ...] = 'dev', 'train'
  for split in splits:
    given = prompts_of(text, split, prompt, module.config.bos_id)
    known: dict[tuple[int, ...], list[int]] = {}
    make = functools.partial(_continued, module, params, max_len, known)
    parts = _recorded(folder, split, given.tolist(), PART, len(given), 'beginning', make)
    _save(folder, text, split, _texts(parts, text.tokenizer, known), {'teacher': teacher})
  shutil.rmtree(folder / 'parts')


def _continued(
  model: Any,
  params: Any,
  max_len: int,
  known: dict[tuple[int, ...], list[int]],
  prompts: Sequence[list[int]],
  first: int,
) -> list[list[int]]:
  """The ids of each beginning and of what the model writes after it, once for each that is not
  known yet."""
  wanted = [list(prompt) for prompt in dict.fromkeys(map(tuple, prompts)) if prompt not in known]
  for finished in decode_each(model, params, wanted, fd.Greedy(), max_len, ROWS) if wanted else ():
    decoded = finished.decoded.checked()
    for i, tokens, length in zip(finished.indices, decoded.tokens, decoded.lengths, strict=True):
      written = [token for token in tokens[: int(length)].tolist() if token not in model.eos_ids]
      known[tuple(wanted[i])] = ended([*wanted[i][1:], *written])
  return [known[tuple(prompt)] for prompt in prompts]


def _texts(
  parts: Parts, tokenizer: Tokenizer, known: dict[tuple[int, ...], list[int]]
) -> Iterator[list[Written]]:
  """The lines of each part, which are known from then on."""
  for prompts, records in parts:
    known.update(zip(map(tuple, prompts), records, strict=True))
    lines = [(tokenizer.decode(ids), ids) for ids in records]
    yield [(line, ids, line, ids) for line, ids in lines]


# --- parts and files


def _is_written(folder: pathlib.Path) -> bool:
  """True if the text is whole; a kill may have left some of its parts."""
  if not (folder / RECORDS['train']).is_file():
    return False
  shutil.rmtree(folder / 'parts', ignore_errors=True)
  return True


def _recorded(
  folder: pathlib.Path,
  split: str,
  given: Iterable[Any],
  size: int,
  total: int,
  noun: str,
  make: Callable[[list[Any], int], list[Any]],
) -> Parts:
  """Parts of what is given, and their records: those in a part's file, or else made now, within the
  budget.

  Args:
    folder: of the stage.
    split: whose inputs they are.
    given: the inputs.
    size: of a part.
    total: how many inputs there are.
    noun: the name of one.
    make: records of a part, given the place of its first input.
  """
  rest, first = iter(given), 0
  with Progress(total, noun) as progress:
    for number in itertools.count():
      if not (part := list(itertools.islice(rest, size))):
        return
      file = folder / 'parts' / f'{split}-{number:05}.jsonl'
      if not file.is_file():
        seconds_left()
        made = make(part, first)
        with whole_file(file) as out:
          for record in made:
            out.write(json.dumps(record, ensure_ascii=False).encode() + b'\n')
      yield part, [parse_json(line) for line in file.read_bytes().splitlines()]
      first += len(part)
      progress.add(len(part))
      progress.show(f'{split}, part {number + 1}')


def _save(
  folder: pathlib.Path,
  text: Text,
  split: Split,
  made: Iterable[list[Written]],
  record: dict[str, Any],
) -> None:
  """Writes the lines of a split and their ids as they are made, then the record that says they are
  whole."""
  data, source_ids, target_ids = text.config, [Ragged.of([])], [Ragged.of([])]
  files = [folder / f'{split}.{language}' for language in (data.source, data.target)]
  with whole_file(files[0]) as sources, whole_file(files[1]) as targets:
    for rows in made:
      for source, _, line, _ in rows:
        sources.write(source.encode() + b'\n')
        targets.write(line.encode() + b'\n')
      source_ids.append(Ragged.of([ids for _, ids, _, _ in rows]))
      target_ids.append(Ragged.of([ids for _, _, _, ids in rows]))
    if not sum(map(len, source_ids)):
      raise UserError(f'the model has written nothing for all {split} sources: train it longer')
  key = open_text(data.lines_of(folder, split), data.cache).key
  pairs = TokenPairs(Ragged.joined(source_ids), Ragged.joined(target_ids))
  record['ids'] = save_ids(folder, pairs, text.tokenizer, key, split)
  write_json(folder / RECORDS[split], record)
