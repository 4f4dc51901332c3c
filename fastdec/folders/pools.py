"""Files of n-gram pools: safetensors with `values`, `starts` and `vocab_size` (0: None)."""

import os
import pathlib

import jax.numpy as jnp
import numpy as np

from fastdec.errors import UserError
from fastdec.files import place, whole_file
from fastdec.folders.stored import stored_in, write
from fastdec.heads.ngram_pool import NGramPool, check_is_pool

AXES = {'values': 2, 'starts': 1, 'vocab_size': 1}
WRITTEN = 'give what save_pool has written'


def save_pool(pool: NGramPool, path: str | os.PathLike[str]) -> None:
  """Writes a pool as one safetensors file.

  Raises:
    UserError: it is not a pool, or cannot be written.
  """
  check_is_pool(pool)
  with whole_file(place(path)) as file:
    vocab_size = np.array([pool.vocab_size or 0], np.int32)
    arrays = {'values': pool.values, 'starts': pool.starts, 'vocab_size': vocab_size}
    write(pathlib.Path(file.name), arrays)


def load_pool(path: str | os.PathLike[str]) -> NGramPool:
  """Reads a pool that `save_pool` has written.

  Raises:
    UserError: the file does not exist, or holds no pool.
  """
  file = place(path)
  if not file.is_file():
    raise UserError(f'{file} is not a file: {WRITTEN}')
  stored = stored_in(file)
  axes = {name: array.ndim for name, array in stored.items() if array.dtype == np.int32}
  if axes != AXES:
    raise UserError(f'{file} is not a pool of n-grams: {WRITTEN}')
  values, starts, vocab_size = (stored[name][:] for name in AXES)
  words = len(starts) - 1
  is_whole = (
    values.size > 0 < words
    and starts[0] == 0
    and starts[-1] == len(values)
    and (np.diff(starts) >= 0).all()
    and 0 <= values.min() <= values.max() < words
    and vocab_size.tolist() in ([0], [words])
  )
  if not is_whole:
    raise UserError(f'{file} holds a damaged pool of n-grams: {WRITTEN}')
  return NGramPool(jnp.asarray(values), jnp.asarray(starts), int(vocab_size[0]) or None)
