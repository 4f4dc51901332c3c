"""The ring: writes continue at its beginning, rollback sets a length, and a tree's path is moved
within it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.cache.kv import KVCache
from fastdec.cache.ring import LayerRing

BLOCK, N = 2, 3
SIZE = 2 * BLOCK + N - 1


def a_ring(rows=2):
  return KVCache.of((LayerRing.empty(rows, 1, SIZE, 1, jnp.float32),), rows)


@jax.jit
def write_and_commit(cache, values, path, count):
  """Writes values[b, n] as keys, their negatives as values."""
  k = values.astype(jnp.float32)[:, None, :, None]
  layer = cache.layers[0].write(k, -k, cache.length)
  return KVCache((layer,), cache.length).commit(path, count)


def last_positions(cache, count):
  """Returns the ring's content at each row's last `count` committed positions."""
  ring = np.asarray(cache.layers[0].k)[:, 0, 0]
  return [
    [ring[b, p % SIZE] for p in range(max(0, n - count), n)]
    for b, n in enumerate(np.asarray(cache.length))
  ]


@pytest.mark.parametrize('counts', [(1, 1), (3, 3), (3, 0), (2, 1)])
def test_the_last_positions_survive_drafts_that_are_rejected(counts):
  cache, written = a_ring(), [[], []]
  for call in range(9):
    new = 100 * call + np.arange(N) + np.array([[1000], [2000]])
    cache = write_and_commit(cache, new, None, np.array(counts))
    for row, count in enumerate(counts):
      written[row] += new[row, :count].tolist()
  assert last_positions(cache, 2 * BLOCK - 1) == [row[-(2 * BLOCK - 1) :] for row in written]


def test_commit_moves_a_path_of_a_tree_across_the_end_of_the_ring():
  cache = a_ring()
  for call in range(2):
    new = 10 * call + np.tile(np.arange(N), (2, 1))
    cache = write_and_commit(cache, new, None, np.array([2, 3]))
  new, path = 50 + np.tile(np.arange(N), (2, 1)), np.array([[0, 2], [0, 1]])
  cache = write_and_commit(cache, new, path, np.array([2, 2]))
  assert last_positions(cache, 3) == [[11, 50, 52], [12, 50, 51]]


def test_gather_keeps_the_kind():
  new = np.arange(N) + np.array([[0], [10]])
  cache = write_and_commit(a_ring(), new, None, np.array([1, 2]))
  moved = cache.gather(jnp.array([1, 1, 0]))
  assert isinstance(moved.layers[0], LayerRing)
  assert last_positions(moved, 2) == [[10, 11], [10, 11], [0]]
