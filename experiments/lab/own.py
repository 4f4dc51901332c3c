"""Text that a model writes, as stages. `data.distilled` and `data.own` name it for training.

`translations`: a teacher translates the sources (sequence-level distillation, Kim and Rush 2016),
or the base itself does, greedily. `continuations`: a language model continues the beginnings of
text (self-distillation, Cai et al. 2024, section 2.3.2).

  folder/parts/    the outputs so far, while the text is being written (training/written.py)
  folder/          the text and its ids, see `lab/text.py`

Heads and drafts are evaluated on what a model writes for the dev set, without the sources that the
training text has too.
"""

import array
import collections
import contextlib
import dataclasses
import itertools
import pathlib
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Annotated, Any

import jax
import numpy as np

import fastdec as fd
from experiments.lab.text import (
  RECORD,
  Split,
  Text,
  TextConfig,
  ids_of,
  prompts_of,
  record_of,
  split_names,
)
from experiments.lab.train import WIDEST, Count, Seed, Tokens, author_of, seed_of
from fastdec import folders
from fastdec.data.text.corpus import TextData, open_text
from fastdec.data.text.sentencepiece import EOS_ID, PAD_ID, normalise
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError
from fastdec.fields import Between
from fastdec.files import whole_file, write_json
from fastdec.folders.folder import hash_file
from fastdec.kernels.sharding import MeshConfig, make_own_mesh, place_module
from fastdec.struct import Bound
from fastdec.training.processes import agreed, count, is_first
from fastdec.training.progress import Progress
from fastdec.training.written import Writing, read_content, write_parts

ROWS = 64  # beginnings at once
PART = 2000  # beginnings between two points to resume from
Source = tuple[str, str | None]  # a line, and its translation by people where there is one
# A source, its ids, its line (None: it has none), the ids of that line, and '' if the model wrote
# it; otherwise the reason why not, 'empty' or 'long'.
Output = tuple[str, list[int], str | None, list[int], str]


@dataclasses.dataclass(frozen=True)
class DistillConfig:
  """How a model translates the sources: by beam search as in Vaswani et al. 2017, greedily
  (beam=1), or at random (samples)."""

  beam: Tokens = 4
  length_penalty: float = 0.6
  min_len: Count = 2  # tokens. With 1, beam search returns an empty translation for some sources.
  # (a, b): a * source + b tokens at most. The paper's b = 50 costs time where sentences are short.
  max_len: tuple[Annotated[float, Between(0, 1e6)], ...] = (1, 20)
  n_best: Tokens = 1  # outputs of a source
  # With beam=1: outputs drawn for each source; 0: none.
  samples: Annotated[int, Between(0, WIDEST)] = 0
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
    """All that decides the text, files of sources by their content."""
    settings = dataclasses.asdict(self)
    for path in split_names(self.sources):
      if pathlib.Path(path).is_file():
        settings[path] = hash_file(pathlib.Path(path))
    return settings

  @property
  def strategy(self) -> fd.Beam | fd.Greedy | fd.Sample:
    """Beam search, greedy decoding or sampling."""
    if self.samples:
      return fd.Sample(self.temperature)
    if self.beam == 1:
      return fd.Greedy()
    sizes = {'n_best': self.n_best, 'min_len': self.min_len, 'max_len': self.max_len}
    return fd.Beam(self.beam, self.length_penalty, **sizes)


# --- a translator


def translations(
  folder: pathlib.Path, *, model: pathlib.Path, data: TextConfig, distill: DistillConfig,
  mesh: MeshConfig = MeshConfig(),
) -> None:  # fmt: skip
  """Writes train.<source> and train.<target>, and, if the model writes greedily, dev too.

  A training source for which the model writes nothing, or that is too long for training, keeps its
  translation by people; lines of other files have none and are left out. The model is a finished
  translator, over the vocabulary of the text; devices change nothing but rounding.
  """

  def write(text: Text, target: Bound) -> Iterator[tuple[Split, Iterator[list[Output]]]]:
    for split, sources, total in _open_sources(text, distill):
      parts = folder / 'parts' / split
      yield split, _translate(parts, target, text, distill, split, sources, total)

  _write(folder, model, data, distill.beam, mesh, write)


def _open_sources(
  text: Text, distill: DistillConfig
) -> Iterator[tuple[Split, Iterable[Source], int]]:
  """The splits that are translated, each with its sources and their number."""
  # Open the files of other sources first: a mistake shows before any work.
  others, total = [], 0
  for path in split_names(distill.sources):
    other = open_text(TextData('files', train=(path, path)), text.config.cache)
    others.append(other)
    total += other.counts['train']

  def read_train() -> Iterator[Source]:
    for other in others:
      for line, _ in other.pairs('train'):
        yield line, None
    if not others:
      yield from text.people.pairs('train')

  # A greedy base's own dev text is what a draft guesses.
  if distill.beam == 1 and 'dev' in text.people.counts:
    dev: list[Source] = []
    for source, _ in text.pairs('dev'):
      if source.strip():
        dev.append((source, None))
    dev = _hold_out(dev, read_train(), lambda pair: read_content(pair[0]))
    yield 'dev', dev, len(dev)
  yield 'train', read_train(), total or text.people.counts['train']


def _translate(
  folder: pathlib.Path, target: Bound, text: Text, distill: DistillConfig, split: str,
  sources: Iterable[Source], total: int,
) -> Iterator[list[Output]]:  # fmt: skip
  """The outputs of each of `total` sources of a split, best first, or else the translation that it
  keeps; parts are kept in a folder."""
  tokenizer, positions = text.tokenizer, target.module.max_positions or np.inf
  longest = min(text.config.row_length, positions)  # longer pairs are left out of training
  a, b = distill.max_len
  max_len, key = max(int(min(a * longest + b, positions)), 1), None
  if distill.samples:
    key = jax.random.key(seed_of(distill.seed, split))
  draws = max(distill.samples, 1)
  rows = distill.rows // count()
  writing = Writing(target, distill.strategy, max_len, rows, key, draws)

  def read_parts() -> Iterator[tuple[Any, ...]]:
    """Yields the sources that are short enough, as `write_parts` takes them, and all of a part."""
    for first, part in _in_parts(sources, distill.shard_size):
      ids, short = tokenizer.encode_lines(line for line, _ in part), {}
      for i, source in enumerate(ids):
        if len(source) <= longest:
          short[i] = source
      yield first, list(short.values()), list(short), ids, part

  parts = write_parts(folder, writing, read_parts())
  for (_, _, places, ids, part), written in _shown(parts, total, split, 'sentence'):
    by_source = dict(zip(places, written, strict=True))

    # Pair each source with its outputs, or else with its translation by people.
    for i, (source, translation) in enumerate(part):
      lines: dict[str | None, list[int]] = {}  # each once, with the ids of the best output
      for hypothesis in by_source.get(i, ()):
        line = tokenizer.decode(hypothesis)
        if line:
          lines.setdefault(line, _cut_at_end(hypothesis))

      # The model wrote nothing here: say why.
      why = ''
      if not lines:
        why = 'empty' if i in by_source else 'long'
        if translation is None:
          lines[None] = []
        else:
          kept = normalise(translation)
          lines[kept] = [*tokenizer.encode(kept), EOS_ID]
      yield [(normalise(source), ids[i], *line, why) for line in lines.items()]


def _cut_at_end(ids: list[int]) -> list[int]:
  """The ids of an output without padding, up to its end, which is added if the output was cut."""
  written = []
  for token in ids:
    if token == EOS_ID:
      break
    if token != PAD_ID:
      written.append(token)
  return [*written, EOS_ID]


# --- a language model


def continuations(
  folder: pathlib.Path, *, model: pathlib.Path, data: TextConfig, prompt: int, max_len: int,
  mesh: MeshConfig = MeshConfig(),
) -> None:  # fmt: skip
  """Writes dev and train: the first `prompt` tokens of each line of people's text, as a finished
  language model continues them greedily, by `max_len` tokens at most."""

  def write(text: Text, target: Bound) -> Iterator[tuple[Split, Iterator[list[Output]]]]:
    rows = -(-ROWS // mesh.data) * mesh.data
    writing = Writing(target, fd.Greedy(), max_len, rows // count())
    by_split: dict[Split, list[Any]] = {}
    for split in ('dev', 'train'):
      prompts = prompts_of(text, split, prompt, target.module.config.bos_id)
      by_split[split] = list(map(tuple, prompts.tolist()))
    by_split['dev'] = _hold_out(by_split['dev'], by_split['train'])
    for split, beginnings in by_split.items():
      once, written = list(dict.fromkeys(beginnings)), {}  # many lines begin alike
      parts = write_parts(folder / 'parts' / split, writing, _in_parts(once, PART))
      for (_, part), outputs in _shown(parts, len(once), split, 'beginning'):
        for ids, texts in zip(part, outputs, strict=True):
          (tokens,) = texts or [[]]  # only the first process has any
          own = [token for token in tokens if token not in target.module.eos_ids]
          whole = _cut_at_end([*ids[1:], *own])
          line = text.tokenizer.decode(whole)
          written[ids] = [(line, whole, line, whole, '')]
      yield split, (written[ids] for ids in beginnings)

  _write(folder, model, data, 1, mesh, write)


# --- parts and files


def _write(
  folder: pathlib.Path, author: pathlib.Path, data: TextConfig, beam: int, mesh: MeshConfig,
  write: Callable[[Text, Bound], Iterator[tuple[Split, Iterator[list[Output]]]]],
) -> None:  # fmt: skip
  """Saves the outputs of each split, which `write` makes by the model in the folder `author`, on
  this process's devices; then their record."""
  if not agreed(bool(record_of(folder))):
    text, (model, params) = data.open(), folders.load(author)
    text.check_base(author)
    record: Any = {'teacher': author_of(model, params, text.tokenizer), 'beam': beam}
    target = Bound(model, place_module(model, params, make_own_mesh(mesh)))
    for split, outputs in write(text, target):
      record['counts'] = _save(folder, text, split, outputs)
    if is_first():
      write_json(folder / RECORD, record)
  if is_first():
    shutil.rmtree(folder / 'parts', ignore_errors=True)


def _hold_out(
  dev: list[Any], train: Iterable[Any], read: Callable[[Any], Hashable] = lambda source: source
) -> list[Any]:
  """Returns the sources of the dev set whose content training lacks, and says how many it has."""
  learnt = set(map(read, dev)).intersection(map(read, train))
  kept = [source for source in dev if read(source) not in learnt]
  if len(kept) < len(dev) and is_first():
    print(f'{len(dev) - len(kept):,} of {len(dev):,} dev sources are left out: training has them')
  return kept


def _in_parts(inputs: Iterable[Any], size: int) -> Iterator[tuple[int, list[Any]]]:
  """Yields inputs in parts, each with the place of its first one."""
  rest, first = iter(inputs), 0
  while part := list(itertools.islice(rest, size)):
    yield first, part
    first += len(part)


def _shown(
  parts: Iterator[tuple[tuple[Any, ...], Any]], total: int, split: str, noun: str
) -> Iterator[tuple[tuple[Any, ...], Any]]:
  """Yields what `write_parts` does, and shows how many inputs are done; the last entry of a part
  has them."""
  with Progress(total, noun, quiet=not is_first()) as progress:
    for number, (part, outputs) in enumerate(parts, 1):
      yield part, outputs
      progress.add(len(part[-1]))
      progress.show(f'{split}, part {number}')


def _save(
  folder: pathlib.Path, text: Text, split: Split, made: Iterable[list[Output]]
) -> dict[str, int]:
  """Writes the lines of a split and their ids; returns their counts. Only the first of several
  processes has the outputs."""
  data, counts = text.config, collections.Counter(sources=0, lines=0, empty=0, long=0)
  if not is_first():
    collections.deque(made, 0)  # it takes its turns
    return counts
  source_ids, line_ids = [], []
  with contextlib.ExitStack() as files:
    targets = files.enter_context(whole_file(folder / f'{split}.{data.target}'))
    sources = None
    if data.source != data.target:  # they are the same where a language model reads one side
      sources = files.enter_context(whole_file(folder / f'{split}.{data.source}'))
    for outputs in made:
      counts['sources'] += 1
      for source, read, line, written, why in outputs:
        counts.update([why] * bool(why))
        if line is not None:
          counts['lines'] += 1
          if sources is not None:
            sources.write(source.encode() + b'\n')
          targets.write(line.encode() + b'\n')
          source_ids.append(array.array('i', read))  # takes less memory than a list
          line_ids.append(array.array('i', written))
    if not source_ids:
      raise UserError(f'the model has written nothing for all {split} sources: train it longer')
  key = open_text(data.lines_of(folder, split), data.cache).key
  pairs = TokenPairs(Ragged.of(source_ids), Ragged.of(line_ids))
  pairs.save(ids_of(folder, split, key, text.tokenizer))
  return counts
