"""Tokenised pairs as a few integer arrays, in memory and in one file."""

import dataclasses
import functools
import os
import pathlib
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Int32

PathLike = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Ragged:
  """Sequences of different lengths in one array: sequence i is tokens[offsets[i]:offsets[i + 1]]."""
  tokens: Int32[np.ndarray, ' total']
  offsets: Int[np.ndarray, ' n_plus_1']

  def __len__(self) -> int:
    return len(self.offsets) - 1

  def __getitem__(self, index: int | np.integer) -> Int32[np.ndarray, ' t']:
    return self.tokens[self.offsets[index]:self.offsets[index + 1]]

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, ' n']:
    return np.diff(self.offsets)

  @classmethod
  def of(cls, sequences: Sequence[Sequence[int]]) -> 'Ragged':
    offsets = np.cumsum([0, *map(len, sequences)])
    return cls(np.array([token for sequence in sequences for token in sequence], np.int32), offsets)


@dataclasses.dataclass(frozen=True)
class TokenPairs:
  """Tokenised pairs, each side ending in EOS, and the number of pairs left out for their length."""
  source: Ragged
  target: Ragged
  dropped: int = 0

  def __len__(self) -> int:
    return len(self.source)

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, 'n 2']:
    """Tokens of source and of target."""
    return np.stack([self.source.lengths, self.target.lengths], axis=1)

  @classmethod
  def load(cls, path: PathLike, key: str) -> 'TokenPairs | None':
    """What `save` stored under this key; None where there is nothing, something else, or a damaged file."""
    try:
      with np.load(path, allow_pickle=False) as stored:
        if str(stored['key']) != key:
          return None
        sides = [Ragged(stored[f'{side}_tokens'], stored[f'{side}_offsets']) for side in ('source', 'target')]
        return cls(*sides, int(stored['dropped']))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
      return None

  def save(self, path: PathLike, key: str) -> None:
    """Writes an .npz file, by way of a temporary one."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
    with open(partial, 'wb') as file:
      np.savez(
        file, key=np.array(key), dropped=np.array(self.dropped),
        source_tokens=self.source.tokens, source_offsets=self.source.offsets,
        target_tokens=self.target.tokens, target_offsets=self.target.offsets)
    os.replace(partial, path)
