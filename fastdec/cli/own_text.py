"""A model's own texts, as data that a draft or heads are trained on (`training.drafts.trainer`)."""

import dataclasses
import functools
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

import fastdec as fd
from fastdec import folders
from fastdec.data.text.packing import PackedSource, packed_batches
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.files import json_lines
from fastdec.folders.folder import hash_file
from fastdec.models.taps import Taps
from fastdec.struct import Bound
from fastdec.training.drafts.kept import Kept, keep_states, number_tokens, open_states
from fastdec.training.stage import stage

PARTS = 'learnt', 'held-out'
DEV = 8  # held-out batches, at most, on which a draft is watched
Pair = tuple[Sequence[int], Sequence[int]]  # source and target, which a language model has alike


def save_texts(folder: pathlib.Path, learnt: Sequence[Pair], held_out: Sequence[Pair]) -> None:
  """Writes the texts that a draft learns, and those that are held out."""
  for part, pairs in zip(PARTS, (learnt, held_out), strict=True):
    sources, targets = zip(*pairs, strict=True)
    TokenPairs(Ragged.of(sources), Ragged.of(targets)).save(folder / f'{part}.npy')


@dataclasses.dataclass(frozen=True, eq=False)
class OwnText:
  """A model's own texts.

  Attributes:
    folder: of `save_texts`.
    target: the model and its parameters.
    path: the model's folder.
    rows: of a batch.
    length: tokens of a row.
    is_watched: held-out batches are there for evaluations.
    states: the model's states of the texts, of each part, if they are kept.
  """

  folder: pathlib.Path
  target: Bound
  path: str
  rows: int
  length: int
  is_watched: bool = True
  states: Mapping[str, Kept | None] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def key(self) -> dict[str, Any]:
    """All that a training reads: the content of texts and model, and the sizes of batches."""
    key = {'model': folders.content(self.path), 'rows': self.rows, 'length': self.length}
    for part in PARTS:
      key[part] = hash_file(self.folder / f'{part}.npy')
    return key

  def open(self) -> 'OwnText':
    """Returns itself: it is material to train on."""
    return self

  @functools.cached_property
  def pairs(self) -> dict[str, TokenPairs]:
    """The ids of both parts."""
    pairs = {}
    for part in PARTS:
      loaded = TokenPairs.load(self.folder / f'{part}.npy')
      assert loaded is not None  # `save_texts` has written it
      pairs[part] = loaded
    return pairs

  @property
  def content(self) -> str:
    """A hash of both parts."""
    return ' '.join(self.key[part] for part in PARTS)

  def held_out_prompts(self, pad_id: int) -> Int[np.ndarray, 'n s']:
    """Returns the prompts of the texts that are held out, padded."""
    prompts = [record['ids'] for _, record in json_lines(self.folder / 'held-out.jsonl')]
    padded = np.full((len(prompts), max(map(len, prompts))), pad_id, np.int32)
    for row, ids in zip(padded, prompts, strict=True):
      row[: len(ids)] = ids
    return padded

  def read_base(self, base: Any) -> Bound:
    """Returns the model."""
    return self.target

  def written_words(self) -> np.ndarray:
    """Returns all tokens that the model has written for training."""
    return self.pairs['learnt'].target.tokens

  def train_batches(self, rows: int, order: int) -> Any:
    """Returns endless packed batches."""
    pairs = self.pairs['learnt']
    return packed_batches(pairs, rows or self.rows, self.length, order, self.states.get('learnt'))

  def draft_batches(self) -> list[Any]:
    """Returns held-out batches on which a draft is watched."""
    if not self.is_watched:
      return []
    states = self.states.get('held-out') or {}
    batches = PackedSource(self.pairs['held-out'], self.rows, self.length, 0, states)
    return [batches[index] for index in range(min(batches.batches_per_epoch, DEV))]

  dev_batches = draft_batches

  def with_states(self, target: Bound, taps: Taps) -> 'OwnText':
    """Runs the model once over all texts; its states are two stages next to the texts."""
    states = {}
    for part, pairs in self.pairs.items():
      numbers = number_tokens(pairs)
      batches = PackedSource(pairs, self.rows, self.length, 0, numbers)

      def make(folder: pathlib.Path, batches=batches, numbers=numbers, **_: Any) -> None:
        keep_states(folder, target=target, taps=taps, batches=batches, numbers=numbers)

      folder = stage(self.folder.parent, f'states-{part}', make, taps=taps, data=self)
      states[part] = open_states(folder)
    return dataclasses.replace(self, states=states)

  def save(self, folder: pathlib.Path, base: Bound, heads: Any) -> None:
    """Writes the heads, without their model."""
    shutil.rmtree(folder / 'heads', ignore_errors=True)  # of a process that was killed
    fd.save_heads(folder / 'heads', heads, self.path)
