"""Texts for a draft to learn from: a model writes them itself, or they are taken as they are."""

import argparse
import contextlib
import dataclasses
import functools
import pathlib
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fastdec as fd
from fastdec.cli import opening
from fastdec.cli.prompts import Prompt
from fastdec.data.text.packing import PackedSource, packed_batches
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.decoding.inputs import make_row_keys
from fastdec.decoding.pool import decode_list
from fastdec.decoding.request import Settings
from fastdec.decoding.sizes import LISTED
from fastdec.evaluation.rows import append
from fastdec.files import json_lines, read_json, write_json
from fastdec.models.taps import Taps
from fastdec.struct import Bound
from fastdec.text.generator import key_of
from fastdec.training.drafts.kept import Kept, keep_states, number_tokens, open_states
from fastdec.training.progress import Progress
from fastdec.training.stage import OutOfTime, folder_of, stage

FIRST = 2  # poolfuls of prompts by which a budget finds out how fast texts are written
NAME = 'train-draft-text'  # of the stage with a model's texts
HELD_OUT = 20  # one of 20 texts is held out
PARTS = 'learnt', 'held-out'
DEV = 8  # held-out batches, at most, on which a draft is watched


class Text(NamedTuple):
  """A text, and the prompt after which it was written."""

  source: list[int]  # of a language model: the text itself
  target: list[int]
  prompt: list[int]
  category: str


def read_as_is(
  args: argparse.Namespace, generator: fd.Generator, texts: Sequence[Prompt]
) -> list[Text]:
  """Returns each text with the model's end."""
  read = []
  for ids in opening.encode_texts(args, generator.tokenizer, texts):
    ids = [*_drop_start(generator, ids), *generator.model.eos_ids[:1]]
    read.append(Text(ids, ids, ids[:1], 'text'))
  return read


def write_texts(
  root: pathlib.Path,
  generator: fd.Generator,
  prompts: Sequence[tuple[str, Any]],
  inputs: Mapping[str, Any],
  seconds: float | None,
) -> list[Text]:
  """Returns the texts that the model writes, or has written before, in a mixed order.

  They are a stage in `root`, which all trainings on these texts share.

  Args:
    root: gets the stage's folder.
    generator: the model.
    prompts: categories, and the prompts with the chat template applied.
    inputs: all that the texts depend on, `max_len` among it.
    seconds: the time for writing: as many texts as fit; None: all.
  """
  sources = []
  for _, prompt in prompts:
    ids, _ = generator.read(prompt)
    sources.append(ids)
  order = np.random.default_rng(0).permutation(len(prompts)).tolist()
  folder = folder_of(root, NAME, inputs)

  def make(folder: pathlib.Path, max_len: int, **_: Any) -> None:
    _write_all(folder, generator, sources, order, max_len, seconds)

  with contextlib.suppress(OutOfTime):  # the texts so far are enough
    stage(root, NAME, make, **inputs)

  # Take the texts in their order up to the first that is missing: later ones may follow any time.
  written, texts = _read_written(folder), []
  for index in order:
    if index not in written:
      break
    category, ids = prompts[index][0], sources[index]
    if generator.model.start_id is not None:
      texts.append(Text(ids, written[index], ids, category))
    else:
      whole = _drop_start(generator, ids) + written[index]
      texts.append(Text(whole, whole, ids, category))
  return texts


def _write_all(
  folder: pathlib.Path,
  generator: fd.Generator,
  sources: Sequence[list[int]],
  order: Sequence[int],
  max_len: int,
  seconds: float | None,
) -> None:
  """Makes the stage of texts; raises OutOfTime if the seconds do not suffice."""
  done, begin = _read_written(folder), time.monotonic()
  missing = [index for index in order if index not in done]
  print(f'texts of {len(order):,} prompts are kept in {folder}', flush=True)
  count, made = len(missing), 0
  if seconds is not None:
    count = FIRST * generator.rows
  with Progress(len(order), 'text') as progress:
    progress.reset(len(order) - len(missing))
    while missing:
      part, missing = missing[:count], missing[count:]
      _write_part(folder, generator, sources, part, max_len, progress)
      made += len(part)
      if missing and seconds is not None:
        # The speed so far says how many more there can be.
        spent = max(time.monotonic() - begin, 1e-3)
        count = int((seconds - spent) / spent * made)
        if count < generator.rows:
          raise OutOfTime


def _write_part(
  folder: pathlib.Path,
  generator: fd.Generator,
  sources: Sequence[list[int]],
  part: Sequence[int],
  max_len: int,
  progress: Progress,
) -> None:
  """Writes the texts of some prompts, each of which draws random numbers by its place."""
  keys = key_of(generator.strategy, 0)
  if keys is not None:
    keys = make_row_keys(keys, len(sources))[np.array(part, int)]
  settings = Settings(max_len, key=keys, processors=generator.processors)
  inputs = []
  for index in part:
    inputs.append(np.array(sources[index], np.int32))
  batches = decode_list(
    generator.model, generator.params, inputs, generator.strategy, generator.rows, settings, LISTED
  )
  for finished in batches:
    decoded, rows = finished.decoded.checked(), []
    for row, place in enumerate(finished.indices):
      ids = [int(token) for token in decoded.written(row)]
      rows.append({'index': part[int(place)], 'text': generator.tokenizer.decode(ids), 'ids': ids})
    append(folder / 'texts.jsonl', *rows)
    progress.add(len(rows))


def _read_written(folder: pathlib.Path) -> dict[int, list[int]]:
  """Returns the ids of the texts so far, by the index of their prompt."""
  written = {}
  for _, row in json_lines(folder / 'texts.jsonl'):
    written.setdefault(row['index'], row['ids'])
  return written


def _drop_start(generator: fd.Generator, ids: list[int]) -> list[int]:
  """Returns the ids of a text without its first token if the model itself puts it there."""
  if ids[:1] == [generator.model.config.bos_id]:
    return ids[1:]
  return ids


# --- the data of a training


def save_texts(folder: pathlib.Path, texts: Sequence[Text]) -> None:
  """Divides texts into those that a draft learns and those that are held out, and writes them."""
  count = max(len(texts) // HELD_OUT, 1)
  parts = {'learnt': texts[count:], 'held-out': texts[:count]}
  for part, texts_of_part in parts.items():
    sources, targets = [], []
    for text in texts_of_part:
      sources.append(text.source)
      targets.append(text.target)
    TokenPairs(Ragged.of(sources), Ragged.of(targets)).save(folder / f'{part}.npy')

  # The held-out prompts are decoded at the end of the training.
  prompts = []
  for text in parts['held-out']:
    prompts.append([text.category, text.prompt])
  write_json(folder / 'asked.json', {'held-out': prompts})


def read_held_out(folder: pathlib.Path) -> list[tuple[str, list[int]]]:
  """Returns the categories and the ids of the held-out prompts."""
  return [(category, ids) for category, ids in read_json(folder / 'asked.json')['held-out']]


@dataclasses.dataclass(frozen=True)
class OwnText:
  """A model's own texts, as data of `training.drafts.trainer`.

  Attributes:
    folder: of `save_texts`.
    target: the model and its parameters.
    path: the model's folder.
    rows: of a batch.
    is_watched: held-out batches are there for evaluations.
    states: the model's states of the texts, of each part, if they are kept.
  """

  folder: pathlib.Path
  target: Bound
  path: str
  rows: int = 0
  is_watched: bool = True
  states: Mapping[str, Kept | None] = dataclasses.field(default_factory=dict)

  def open(self) -> 'OwnText':
    """Returns itself: it is material to train on."""
    return self

  @functools.cached_property
  def pairs(self) -> dict[str, TokenPairs]:
    """The ids of both parts."""
    pairs = {}
    for part in PARTS:
      loaded = TokenPairs.load(self.folder / f'{part}.npy')
      assert loaded is not None  # the stage is finished
      pairs[part] = loaded
    return pairs

  @property
  def longest(self) -> int:
    """Tokens of the longest side of all texts, which is the length of a row."""
    return max(int(pairs.lengths.max()) for pairs in self.pairs.values())

  def read_base(self, base: Any) -> Bound:
    """Returns the model."""
    return self.target

  def written_words(self) -> np.ndarray:
    """Returns all tokens that the model has written for training."""
    return self.pairs['learnt'].target.tokens

  def train_batches(self, rows: int, order: int) -> Any:
    """Returns endless packed batches."""
    pairs = self.pairs['learnt']
    return packed_batches(pairs, rows or self.rows, self.longest, order, self.states.get('learnt'))

  def draft_batches(self) -> list[Any]:
    """Returns held-out batches on which a draft is watched."""
    if not self.is_watched:
      return []
    states = self.states.get('held-out') or {}
    batches = PackedSource(self.pairs['held-out'], self.rows, self.longest, 0, states)
    return [batches[index] for index in range(min(batches.batches_per_epoch, DEV))]

  dev_batches = draft_batches

  def with_states(self, folder: pathlib.Path, target: Bound, taps: Taps) -> 'OwnText':
    """Runs the model once over all texts, and keeps its states in two stages in the folder."""
    states = {}
    for part, pairs in self.pairs.items():
      numbers = number_tokens(pairs)
      batches = PackedSource(pairs, self.rows, self.longest, 0, numbers)
      make = functools.partial(keep_states, target=target, batches=batches, numbers=numbers)
      states[part] = open_states(stage(folder, f'states-{part}', make, taps=taps))
    return dataclasses.replace(self, states=states)

  def save(self, folder: pathlib.Path, base: Bound, heads: Any) -> None:
    """Writes the heads, without their model."""
    shutil.rmtree(folder / 'heads', ignore_errors=True)  # of a process that was killed
    fd.save_heads(folder / 'heads', heads, self.path)
