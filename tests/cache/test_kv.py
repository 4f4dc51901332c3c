"""The verbs of the caches: write, commit along a path, roll back by length, gather."""

import jax.numpy as jnp
import numpy as np

from fastdec.cache.kv import KVCache, LayerKV
from fastdec.cache.memory import Memory, WithMemory


def numbered(rows, n, start):
  """[rows, 1, n, 1] entries that say where they come from: 100 * row + start + node."""
  return (100 * jnp.arange(rows)[:, None] + start + jnp.arange(n))[:, None, :, None].astype(jnp.float32)


def write(cache, values):
  layers = tuple(layer.write(values, -values, cache.length) for layer in cache.layers)
  return KVCache(layers, cache.length)


def committed(cache):
  return [cache.layers[0].k[i, 0, :length, 0].tolist() for i, length in enumerate(np.asarray(cache.length))]


def an_empty_cache(rows=2, slots=9):
  return KVCache.empty(layers=2, rows=rows, heads=1, slots=slots, width=1, dtype=jnp.float32)


def test_rows_grow_on_their_own_and_rollback_is_a_length():
  cache = write(an_empty_cache(), numbered(2, 4, 1)).commit(None, jnp.array([3, 1]))
  cache = write(cache, numbered(2, 3, 11)).commit(None, jnp.array([1, 2]))
  assert committed(cache) == [[1, 2, 3, 11], [101, 111, 112]]
  np.testing.assert_array_equal(cache.layers[1].v, -cache.layers[1].k)


def test_commit_keeps_a_path_of_a_tree_in_its_order():
  cache = write(an_empty_cache(), numbered(2, 2, 1)).commit(None, jnp.array([2, 1]))
  cache = write(cache, numbered(2, 5, 11)).commit(jnp.array([[0, 2, 4], [0, 3, 0]]), jnp.array([3, 2]))
  assert committed(cache) == [[1, 2, 11, 13, 15], [101, 111, 114]]


def test_a_count_of_zero_freezes_a_row():
  cache = write(an_empty_cache(), numbered(2, 2, 1)).commit(None, jnp.array([2, 2]))
  later = write(cache, numbered(2, 3, 11)).commit(jnp.array([[0, 2], [0, 1]]), jnp.array([0, 2]))
  assert committed(later) == [[1, 2], [101, 102, 111, 112]]


def test_a_write_without_room_would_clamp():
  """Why the loop asks for padded prompt + max_len + n slots: one slot less, and committed entries are lost."""
  fits = write(an_empty_cache(slots=6), numbered(2, 3, 1)).commit(None, jnp.array([3, 3]))
  assert committed(write(fits, numbered(2, 3, 11)).commit(None, jnp.array([3, 3])))[0] == [1, 2, 3, 11, 12, 13]
  tight = write(an_empty_cache(slots=5), numbered(2, 3, 1)).commit(None, jnp.array([3, 3]))
  assert committed(write(tight, numbered(2, 3, 11)))[0] != [1, 2, 3]


def test_gather_moves_whole_rows():
  cache = write(an_empty_cache(), numbered(2, 3, 1)).commit(None, jnp.array([3, 1]))
  assert committed(cache.gather(jnp.array([1, 0, 1]))) == [[101], [1, 2, 3], [101]]


def with_memory(beams):
  """Two sources of 2 and 3 tokens, and the decoder's cache with `beams` rows for each."""
  layer = LayerKV(numbered(2, 3, 1), numbered(2, 3, 1))
  rows = 2 * beams
  cache = WithMemory(an_empty_cache(rows), Memory((layer,), jnp.array([[True, True, False], [True, True, True]])))
  own = write(cache.own, numbered(rows, 3, 1))
  return WithMemory(own, cache.memory).commit(None, 1 + jnp.arange(rows) % 3)


def test_memory_is_the_same_for_all_beams_of_its_row():
  cache = with_memory(beams=2)
  assert committed(cache.own) == [[1], [101, 102], [201, 202, 203], [301]]
  reordered = cache.gather(jnp.array([1, 0, 3, 3]))
  assert committed(reordered.own) == [[101, 102], [1], [301], [301]]
  assert reordered.memory is cache.memory


def test_rows_that_are_taken_bring_their_beams_and_their_memory():
  cache = with_memory(beams=2)
  taken = cache.take(jnp.array([1]), beams=2)
  assert committed(taken.own) == [[201, 202, 203], [301]] and taken.memory.mask.tolist() == [[True] * 3]
  np.testing.assert_array_equal(taken.memory.layers[0].k, cache.memory.layers[0].k[1:])
  swapped = cache.take(jnp.array([1, 0]), beams=2)
  assert committed(swapped.own) == [[201, 202, 203], [301], [1], [101, 102]]
  assert swapped.memory.mask.sum(1).tolist() == [3, 2]
