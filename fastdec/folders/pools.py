"""Files of n-gram pools: safetensors with `values`, `starts` and `vocab_size` (0: not given)."""

import os
import pathlib

import jax.numpy as jnp
import numpy as np

from fastdec.errors import UserError
from fastdec.files import whole_file
from fastdec.folders.stored import stored_in, write
from fastdec.heads.ngram_pool import NGramPool, check_is_pool

AXES = {'values': 2, 'starts': 1, 'vocab_size': 1}


def save_pool(pool: NGramPool, path: str | os.PathLike[str]) -> None:
  """Writes a pool as one safetensors file.

  Raises:
    UserError: something else than a pool is given, or it cannot be written.
  """
  check_is_pool(pool)
  with whole_file(pathlib.Path(path)) as file:
    words = np.array([pool.vocab_size or 0], np.int32)
    write(
      pathlib.Path(file.name), {'values': pool.values, 'starts': pool.starts, 'vocab_size': words}
    )


def load_pool(path: str | os.PathLike[str]) -> NGramPool:
  """Reads a pool that `save_pool` has written.

  Raises:
    UserError: the file does not exist, or holds no pool.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    raise UserError(f'{file} is not a file: give what save_pool has written')
  stored = stored_in(file)
  if {name: len(array.shape) for name, array in stored.items()} != AXES:
    raise UserError(f'{file} holds no pool of n-grams: give what save_pool has written')
  values, starts = (jnp.asarray(stored[name][:], jnp.int32) for name in ('values', 'starts'))
  return NGramPool(values, starts, int(stored['vocab_size'][:][0]) or None)
