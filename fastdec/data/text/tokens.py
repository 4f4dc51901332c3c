"""Tokenised pairs as a few integer arrays, in memory and in one file.

The file is one .npy of int32, so that it can be mapped into memory instead of read:

    number of pairs, number dropped, lengths of sources, lengths of targets, tokens of sources,
    tokens of targets
"""

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int, Int32

from fastdec.files import PathLike, whole_file


@dataclasses.dataclass(frozen=True)
class Ragged:
  """Sequences of different lengths in one array.

  Sequence i is tokens[offsets[i]:offsets[i + 1]].
  """

  tokens: Int32[np.ndarray, ' total']
  offsets: Int[np.ndarray, ' n_plus_1']

  def __len__(self) -> int:
    return len(self.offsets) - 1

  def __getitem__(self, index: int | np.integer) -> Int32[np.ndarray, ' t']:
    return self.tokens[self.offsets[index] : self.offsets[index + 1]]

  def __iter__(self) -> Iterator[Int32[np.ndarray, ' t']]:
    return map(self.__getitem__, range(len(self)))

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, ' n']:
    return np.diff(self.offsets)

  def choose(self, is_chosen: Bool[np.ndarray, ' n']) -> 'Ragged':
    """Keeps some of the sequences."""
    offsets = np.concatenate([[0], np.cumsum(self.lengths[is_chosen])])
    return Ragged(self.tokens[np.repeat(is_chosen, self.lengths)], offsets)

  @classmethod
  def of(cls, sequences: Sequence[Sequence[int]]) -> 'Ragged':
    offsets = np.cumsum([0, *map(len, sequences)])
    return cls(
      np.fromiter(itertools.chain.from_iterable(sequences), np.int32, offsets[-1]), offsets
    )

  @classmethod
  def join(cls, parts: Sequence['Ragged']) -> 'Ragged':
    """Joins the sequences of all parts, one after the other."""
    tokens, lengths = [np.zeros(0, np.int32)], [np.zeros(1, int)]
    for part in parts:
      tokens.append(part.tokens)
      lengths.append(part.lengths)
    return cls(np.concatenate(tokens), np.cumsum(np.concatenate(lengths)))


@dataclasses.dataclass(frozen=True)
class TokenPairs:
  """Tokenised pairs, each side ending in EOS, and how many were left out as too long or empty."""

  source: Ragged
  target: Ragged
  dropped: int = 0

  def __len__(self) -> int:
    return len(self.source)

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, 'n 2']:
    """Tokens of source and of target."""
    return np.stack([self.source.lengths, self.target.lengths], axis=1)

  def at_most(self, max_length: int) -> 'TokenPairs':
    """Drops the pairs with a longer side, and counts them; returns itself if there are none."""
    is_kept = self.lengths.max(1, initial=0) <= max_length
    if is_kept.all():
      return self
    dropped = self.dropped + int((~is_kept).sum())
    return TokenPairs(self.source.choose(is_kept), self.target.choose(is_kept), dropped)

  @classmethod
  def union(cls, parts: 'Sequence[TokenPairs]') -> 'TokenPairs':
    """Joins the pairs of all parts, without those that are in an earlier part.

    A pair that is twice in a part stays twice.
    """
    sources, targets, dropped = [], [], 0
    earlier: set[bytes] = set()
    for part in parts:
      # A source ends in EOS, so the joined bytes identify a pair.
      pairs = [part.source[i].tobytes() + part.target[i].tobytes() for i in range(len(part))]
      is_new = np.array([pair not in earlier for pair in pairs], bool)
      sources.append(part.source.choose(is_new))
      targets.append(part.target.choose(is_new))
      dropped += part.dropped
      earlier.update(pairs)
    return cls(Ragged.join(sources), Ragged.join(targets), dropped)

  @classmethod
  def load(cls, path: PathLike) -> 'TokenPairs | None':
    """Maps a file of `save` into memory; None if it is missing, damaged or something else."""
    if not os.path.isfile(path):
      return None
    try:
      stored = np.asarray(np.load(path, mmap_mode='r', allow_pickle=False))
      if stored.dtype != np.int32 or stored.ndim != 1:
        return None
      count, dropped = map(int, stored[:2])
      lengths = stored[2 : 2 + 2 * count].reshape(2, count)
      sources, targets = (np.cumsum(np.concatenate([[0], side])) for side in lengths)
      source, target = np.split(stored[2 + 2 * count :], [sources[-1]])
      if len(target) != targets[-1]:
        return None
      return cls(Ragged(source, sources), Ragged(target, targets), dropped)
    except Exception:  # NumPy raises many kinds for other files and damaged ones
      return None

  def save(self, path: PathLike) -> None:
    """Writes the file: whole, or not at all.

    Raises:
      UserError: it cannot be written.
    """
    source, target = self.source, self.target
    counts = np.array([len(self), self.dropped])
    parts = [counts, source.lengths, target.lengths, source.tokens, target.tokens]
    header = {'descr': '<i4', 'fortran_order': False, 'shape': (sum(map(len, parts)),)}
    with whole_file(pathlib.Path(path)) as file:
      np.lib.format.write_array_header_1_0(file, header)
      for part in parts:
        file.write(part.astype('<i4', copy=False).data)
