"""Text that a model writes, as stages. `data.distilled` and `data.own` name it for training.

`translations`: a teacher translates the sources (sequence-level distillation, Kim and Rush 2016),
or the base itself does, greedily. `continuations`: a language model continues the beginnings of
text (self-distillation, Cai et al. 2024, section 2.3.2).

  folder/parts/train-00012.jsonl   outputs of part 12, while the text is being written
  folder/                          the text and its ids, see `lab/text.py`
"""

import array
import collections
import contextlib
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
from fastdec.decoding.pool import decode_each
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.fields import Between
from fastdec.files import parse_json, whole_file, write_json
from fastdec.training.progress import Progress
from fastdec.training.stage import seconds_left

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
        settings[path] = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
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
  folder: pathlib.Path, *, model: pathlib.Path, data: TextConfig, distill: DistillConfig
) -> None:
  """Writes train.<source> and train.<target>, and, if the model writes greedily, dev too.

  A training source for which the model writes nothing, or that is too long for training, keeps its
  translation by people; lines of other files have none and are left out.

  Args:
    folder: of the stage.
    model: the folder of a finished translator, over the vocabulary of the text.
    data: people's text.
    distill: how the model translates it.
  """
  if not record_of(folder):
    text, (module, params) = data.open(), folders.load(model)
    text.check_base(model)
    record = {'teacher': author_of(module, params, text.tokenizer), 'beam': distill.beam}
    for split, sources, total in _open_sources(text, distill):
      make = functools.partial(_translate, module, params, text, distill, split)
      outputs = _write_parts(folder, split, sources, distill.shard_size, total, 'sentence', make)
      record['counts'] = _save(folder, text, split, outputs)
    write_json(folder / RECORD, record)
  shutil.rmtree(folder / 'parts', ignore_errors=True)


def _open_sources(
  text: Text, distill: DistillConfig
) -> Iterator[tuple[Split, Iterable[Source], int]]:
  """The splits that are translated, each with its sources and their number."""
  # Open the files of other sources first: a mistake shows before any work.
  others = []
  for path in split_names(distill.sources):
    others.append(open_text(TextData('files', train=(path, path)), text.config.cache))

  # A greedy base's own dev text is what a draft guesses.
  if distill.beam == 1 and 'dev' in text.people.counts:
    dev: list[Source] = []
    for source, _ in text.pairs('dev'):
      if source.strip():
        dev.append((source, None))
    yield 'dev', dev, len(dev)

  if not others:
    yield 'train', text.people.pairs('train'), text.people.counts['train']
    return
  lines = ((line, None) for other in others for line, _ in other.pairs('train'))
  yield 'train', lines, sum(other.counts['train'] for other in others)


def _translate(
  model: Any,
  params: Any,
  text: Text,
  distill: DistillConfig,
  split: str,
  sources: Sequence[Source],
  first: int,
) -> list[list[Output]]:
  """Each source's outputs, best first, or else the translation that it keeps.

  Args:
    model, params: the translator.
    text: gives the tokenizer and the length of rows.
    distill: how the model translates.
    split: 'train' or 'dev'.
    sources: lines to translate.
    first: the place of the first line in its split. Random keys depend on it, so each part draws
      other numbers.
  """
  tokenizer, positions = text.tokenizer, model.max_positions or np.inf
  longest = min(text.config.row_length, positions)  # longer pairs are left out of training
  a, b = distill.max_len
  max_len = max(int(min(a * longest + b, positions)), 1)
  ids = tokenizer.encode_lines(line for line, _ in sources)

  # Translate the sources that are short enough, several times if outputs are drawn.
  short, inputs = [], []
  written: dict[int, list[list[int]]] = {}
  for i, source in enumerate(ids):
    if len(source) <= longest:
      short.append(i)
      inputs.append(np.array(source, np.int32))
      written[i] = []
  strategy, key = distill.strategy, None
  for draw in range(max(distill.samples, 1)):
    if distill.samples:
      key = jax.random.key(seed_of(distill.seed, split))
      key = jax.random.fold_in(jax.random.fold_in(key, first), draw)
    for finished in decode_each(model, params, inputs, strategy, max_len, distill.rows, key):
      ranked = _rank_outputs(finished.decoded.checked())
      for i, hypotheses in zip(finished.indices, ranked, strict=True):
        written[short[i]] += hypotheses

  # Pair each source with its outputs, or else with its translation by people.
  outputs = []
  for i, (source, translation) in enumerate(sources):
    lines: dict[str | None, list[int]] = {}  # each once, with the ids of the best output
    for hypothesis in written.get(i, ()):
      line = tokenizer.decode(hypothesis)
      if line:
        lines.setdefault(line, _cut_at_end(hypothesis))

    # The model wrote nothing here: say why.
    why = ''
    if not lines:
      why = 'empty' if i in written else 'long'
      if translation is None:
        lines[None] = []
      else:
        kept = normalise(translation)
        lines[kept] = [*tokenizer.encode(kept), EOS_ID]
    outputs.append([(normalise(source), ids[i], *line, why) for line in lines.items()])
  return outputs


def _rank_outputs(decoded: Decoded) -> list[list[list[int]]]:
  """The outputs of each row, best first: one, or the n best of a search."""
  if decoded.nbest_tokens is None or decoded.nbest_scores is None:
    return [[row] for row in decoded.tokens.tolist()]
  ranked = []
  for tokens, scores in zip(decoded.nbest_tokens, decoded.nbest_scores, strict=True):
    ranked.append(tokens[scores > -np.inf].tolist())  # a search may have fewer outputs
  return ranked


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
  folder: pathlib.Path, *, model: pathlib.Path, data: TextConfig, prompt: int, max_len: int
) -> None:
  """Writes dev and train: the first tokens of each line, as the model continues them greedily.

  Args:
    folder: of the stage.
    model: the folder of a finished language model.
    data: people's text, whose beginnings the model continues.
    prompt: tokens of a beginning.
    max_len: tokens that the model writes at most.
  """
  if not record_of(folder):
    text, (module, params) = data.open(), folders.load(model)
    text.check_base(model)
    record = {'teacher': author_of(module, params, text.tokenizer), 'beam': 1}
    make = functools.partial(_continue, module, params, text, max_len)
    splits: tuple[Split, ...] = 'dev', 'train'
    for split in splits:
      beginnings = prompts_of(text, split, prompt, module.config.bos_id).tolist()
      once = list(dict.fromkeys(map(tuple, beginnings)))  # many lines begin alike
      outputs = _write_parts(folder, split, once, PART, len(once), 'beginning', make)
      written = dict(zip(once, outputs, strict=True))
      in_order = [written[tuple(beginning)] for beginning in beginnings]
      record['counts'] = _save(folder, text, split, in_order)
    write_json(folder / RECORD, record)
  shutil.rmtree(folder / 'parts', ignore_errors=True)


def _continue(
  model: Any, params: Any, text: Text, max_len: int, prompts: Sequence[tuple[int, ...]], _: int
) -> list[list[Output]]:
  """Each beginning with its continuation, which is both source and line."""
  outputs: list[list[Output]] = [[] for _ in prompts]
  for finished in decode_each(model, params, list(map(list, prompts)), fd.Greedy(), max_len, ROWS):
    decoded = finished.decoded.checked()
    for i, tokens, length in zip(finished.indices, decoded.tokens, decoded.lengths, strict=True):
      ids = list(prompts[i][1:])
      for token in tokens[: int(length)].tolist():
        if token not in model.eos_ids:
          ids.append(token)
      ids = _cut_at_end(ids)
      line = text.tokenizer.decode(ids)
      outputs[i] = [(line, ids, line, ids, '')]
  return outputs


# --- parts and files


def _write_parts(
  folder: pathlib.Path,
  split: str,
  inputs: Iterable[Any],
  size: int,
  total: int,
  noun: str,
  make: Callable[[list[Any], int], list[list[Output]]],
) -> Iterator[list[Output]]:
  """Yields the outputs of each input, from the file of its part. A part without a file is made
  first, within the budget.

  Args:
    folder: of the stage.
    split: whose inputs they are.
    inputs: what the model reads, in order.
    size: of a part.
    total: the number of inputs.
    noun: what the progress bar counts.
    make: returns the outputs of a part, from its inputs and the place of the first one.
  """
  rest = iter(inputs)
  with Progress(total, noun) as progress:
    for number in itertools.count():
      part = list(itertools.islice(rest, size))
      if not part:
        return
      file = folder / 'parts' / f'{split}-{number:05}.jsonl'
      if not file.is_file():
        seconds_left()
        made = make(part, number * size)
        with whole_file(file) as out:
          for outputs in made:
            out.write(json.dumps(outputs, ensure_ascii=False).encode() + b'\n')
      yield from map(parse_json, file.read_bytes().splitlines())
      progress.add(len(part))
      progress.show(f'{split}, part {number + 1}')


def _save(
  folder: pathlib.Path, text: Text, split: Split, made: Iterable[list[Output]]
) -> dict[str, int]:
  """Writes the lines of a split and their ids; returns their counts."""
  data, counts = text.config, collections.Counter(sources=0, lines=0, empty=0, long=0)
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
