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
from jaxtyping import Int

import fastdec as fd
from experiments.lab.settings import Count, Seed, Zero, seed_of
from experiments.lab.stage import by_the_first, seconds_left
from experiments.lab.text import (
  RECORDS,
  Split,
  Text,
  TextConfig,
  beginnings_of,
  ended,
  listed,
  prompts_of,
  save_ids,
)
from experiments.lab.train import author_of
from fastdec import folders
from fastdec.data.text.corpus import Corpus, TextData, open_text
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.decoding.pool import decode_each
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.fields import Between
from fastdec.files import parse_json, whole_file, write_json
from fastdec.tokenizers.sentencepiece import EOS_ID, normalise
from fastdec.training.progress import Progress

ROWS = 64  # beginnings at once
PART = 2000  # beginnings between two points to resume from
SPLITS: tuple[Split, ...] = ('dev', 'train')
Author = tuple[Any, Any, Any]  # model, parameters, tokenizer
Source = tuple[str, str | None]  # a line, and the translation that it keeps where there is no other
Written = tuple[str, list[int], str, list[int]]  # a source, its ids, a line, its ids


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
  people, text = data.open(), open_text(data.data, data.cache)
  people.check_base(model)
  writer = Translator(people, model, data.row_length, distill)
  if distill.beam == 1 and 'dev' in text.counts:
    given = [(source, None) for source, _ in text.pairs('dev') if source.strip()]
    writer.write(folder, 'dev', given, len(given))
  files = [
    open_text(TextData('files', train=(path, path)), data.cache) for path in listed(distill.sources)
  ]
  if files:
    total = sum(file.counts['train'] for file in files)
    writer.write(folder, 'train', _lines(files), total)
  else:
    writer.write(folder, 'train', text.pairs('train'), text.counts['train'])
  shutil.rmtree(folder / 'parts')


class Translator:
  """A model at work, see `translations`."""

  def __init__(
    self, people: Text, folder: pathlib.Path, row_length: int, distill: DistillConfig
  ) -> None:
    self._tokenizer, self._data, self._distill = people.tokenizer, people.config, distill
    self._model, self._params = folders.load(folder)
    positions = self._model.max_positions or np.inf
    self._longest = min(row_length, positions)  # longer pairs are left out of training
    a, b = distill.max_len
    self._max_len = max(int(min(a * self._longest + b, positions)), 1)

  def write(self, folder: pathlib.Path, split: Split, given: Iterable[Source], total: int) -> None:
    """Writes a split part by part."""
    counts = {'sources': 0, 'lines': 0, 'empty': 0, 'long': 0}
    record = {'distill': {'beam': self._distill.beam}, 'counts': counts}
    author = self._model, self._params, self._tokenizer
    with Progress(total, 'sentence') as progress:
      made = self._made(folder / 'parts', split, given, counts, progress)
      _save(folder, self._data, split, made, author, record)

  def _made(
    self,
    parts: pathlib.Path,
    split: Split,
    given: Iterable[Source],
    counts: dict[str, int],
    progress: Progress,
  ) -> Iterator[list[Written]]:
    """The lines of each part, and what is counted of them."""
    first = 0
    for number, sources in enumerate(_parts(given, self._distill.shard_size)):
      make = functools.partial(self._outputs, sources, first, split)
      outputs = _kept(parts, split, number, make)
      rows: list[Written] = []
      for source, found in zip(sources, outputs, strict=True):
        counts['empty'] += found == []
        counts['long'] += found is None
        rows += self._rows(source, found)
      first += len(sources)
      counts['sources'] += len(sources)
      counts['lines'] += len(rows)
      progress.add(len(sources))
      progress.show(f'{split}, part {number + 1}')
      yield rows

  def _outputs(self, given: Sequence[Source], first: int, split: str) -> list[Any]:
    """Lines and ids of each source's outputs, best first; None where the source is too long.

    Args:
      given: the sources.
      first: the place of the first of them in its split: with that, outputs are drawn anew.
      split: 'train' or 'dev'.
    """
    ids = [np.array([*self._tokenizer.encode(line), EOS_ID], np.int32) for line, _ in given]
    short = [i for i, source in enumerate(ids) if len(source) <= self._longest]
    found: list[list[list[int]]] = [[] for _ in short]
    settings, inputs = self._distill, [ids[i] for i in short]
    for draw in range(max(settings.samples, 1)):
      key = None
      if settings.samples:
        key = jax.random.key(seed_of(settings.seed, split))
        key = jax.random.fold_in(jax.random.fold_in(key, first), draw)
      pool = decode_each(
        self._model, self._params, inputs, settings.strategy, self._max_len, settings.rows, key
      )
      for finished in pool:
        for i, ranked in zip(finished.indices, _ranked(finished.decoded.checked()), strict=True):
          found[i] += ranked
    outputs: list[Any] = [None] * len(ids)
    for i, ranked in zip(short, found, strict=True):
      lines: dict[str, list[int]] = {}  # each line once, with the ids of the best that reads so
      for hypothesis in ranked:
        line = self._tokenizer.decode(hypothesis)
        if line:
          lines.setdefault(line, ended(hypothesis))
      outputs[i] = list(lines.items())
    return outputs

  def _rows(self, given: Source, outputs: Any) -> Iterator[Written]:
    """The lines of a source: its outputs, or else the translation that it keeps."""
    source, translation = given
    source_ids = [*self._tokenizer.encode(source), EOS_ID]
    if not outputs and translation is not None:
      line = normalise(translation)
      outputs = [(line, [*self._tokenizer.encode(line), EOS_ID])]
    for line, ids in outputs or ():
      yield normalise(source), source_ids, line, ids


def _ranked(decoded: Decoded) -> list[list[list[int]]]:
  """The outputs of each row, best first: one, or those that a search has found."""
  if decoded.nbest_tokens is None or decoded.nbest_scores is None:
    return [[row] for row in decoded.tokens.tolist()]
  rows = zip(decoded.nbest_tokens, decoded.nbest_scores, strict=True)
  return [tokens[scores > -np.inf].tolist() for tokens, scores in rows]


def _lines(files: Iterable[Corpus]) -> Iterator[Source]:
  """Lines of files, one file behind the other, without blank ones."""
  for file in files:
    for line, _ in file.pairs('train'):
      if line.strip():
        yield line, None


# --- a language model


@by_the_first
def continuations(
  folder: pathlib.Path,
  *,
  model: pathlib.Path,
  data: TextConfig,
  prompt: int,
  max_len: int,
  files: str = '',
) -> None:
  """Writes what the model adds greedily to the first tokens of each line: train, and dev.

  A beginning that comes more than once is gone on from once, and stays as often as it came.

  Args:
    folder: of the stage.
    model: the folder of a finished language model.
    data: people's text, whose beginnings are gone on from.
    prompt: tokens of a beginning.
    max_len: tokens that the model writes at most.
    files: text to begin from in place of the training text, with commas between them.
  """
  if _is_written(folder):
    return
  text, (module, params) = data.open(), folders.load(model)
  text.check_base(model)
  first = module.config.bos_id
  given = {'dev': prompts_of(text, 'dev', prompt, first)}
  if files:
    corpora = [open_text(TextData('files', train=(p, p)), data.cache) for p in listed(files)]
    lines = [line for line, _ in _lines(corpora)]
    tokens = Ragged.of(text.tokenizer.encode_lines(lines))
    given['train'] = beginnings_of(tokens, prompt, first, files)
  else:
    given['train'] = prompts_of(text, 'train', prompt, first)
  author = module, params, text.tokenizer
  for split in SPLITS:
    with Progress(len(given[split]), 'beginning') as progress:
      made = _gone_on_with(folder / 'parts', split, given[split], max_len, author, progress)
      _save(folder, data, split, made, author, {})
  shutil.rmtree(folder / 'parts')


def _gone_on_with(
  parts: pathlib.Path,
  split: Split,
  given: Int[np.ndarray, 'n s'],
  max_len: int,
  author: Author,
  progress: Progress,
) -> Iterator[list[Written]]:
  """The lines of each part; each different beginning is gone on from once."""
  model, params, tokenizer = author
  prompts, back = np.unique(given, axis=0, return_inverse=True)
  made: list[list[int]] = []
  for number, some in enumerate(_parts(prompts, PART)):
    make = functools.partial(_continued, model, params, some, max_len)
    made += _kept(parts, split, number, make)
    progress.add(len(some))
    progress.show(f'{split}, part {number + 1}')
  for some in _parts(back.ravel(), PART):
    lines = [(tokenizer.decode(made[i]), made[i]) for i in some]
    yield [(line, ids, line, ids) for line, ids in lines]


def _continued(
  model: Any, params: Any, prompts: Sequence[Int[np.ndarray, ' s']], max_len: int
) -> list[list[int]]:
  """The ids of each beginning and of what the model writes after it."""
  ids: list[list[int]] = [[] for _ in prompts]
  for finished in decode_each(model, params, list(prompts), fd.Greedy(), max_len, ROWS):
    decoded = finished.decoded.checked()
    for i, tokens, length in zip(finished.indices, decoded.tokens, decoded.lengths, strict=True):
      written = [token for token in tokens[: int(length)].tolist() if token not in model.eos_ids]
      ids[i] = ended([*prompts[i][1:].tolist(), *written])
  return ids


# --- parts and files


def _is_written(folder: pathlib.Path) -> bool:
  """True if the text is whole; a kill may have left some of its parts."""
  if not (folder / RECORDS['train']).is_file():
    return False
  shutil.rmtree(folder / 'parts', ignore_errors=True)
  return True


def _parts(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
  """The items, `size` at a time."""
  rest = iter(items)
  while part := list(itertools.islice(rest, size)):
    yield part


def _kept(parts: pathlib.Path, split: str, number: int, make: Callable[[], list[Any]]) -> list[Any]:
  """The records of a part: those in its file, or else made now, within the budget."""
  file = parts / f'{split}-{number:05}.jsonl'
  if file.is_file():
    return [parse_json(line) for line in file.read_bytes().splitlines()]
  seconds_left()
  records = make()
  with whole_file(file) as out:
    for record in records:
      out.write(json.dumps(record, ensure_ascii=False).encode() + b'\n')
  return records


def _save(
  folder: pathlib.Path,
  data: TextConfig,
  split: Split,
  made: Iterable[list[Written]],
  author: Author,
  record: dict[str, Any],
) -> None:
  """Writes the lines of a split and their ids as they are made, then the record that says they are
  whole."""
  source_ids, target_ids = [Ragged.of([])], [Ragged.of([])]
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
  model, params, tokenizer = author
  key = open_text(data.lines_of(folder, split), data.cache).key
  pairs = TokenPairs(Ragged.joined(source_ids), Ragged.joined(target_ids))
  ids = save_ids(folder, pairs, tokenizer, key, split)
  record = {'teacher': author_of(model, params, tokenizer), **record, 'ids': ids}
  write_json(folder / RECORDS[split], record)
