"""What caches do: write, commit along a path, roll back by length, gather."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fastdec.cache.kv import KVCache, LayerKV
from fastdec.cache.memory import Memory, WithMemory


def numbered(rows, n, start):
  """[rows, 1, n, 1] entries that say where they come from: 100 * row + start + node."""
  numbers = 100 * np.arange(rows)[:, None] + start + np.arange(n)
  return jnp.asarray(numbers[:, None, :, None], jnp.float32)


@jax.jit
def write(cache, values):
  layers = tuple(layer.write(values, -values, cache.length) for layer in cache.layers)
  return KVCache(layers, cache.length)


@jax.jit
def commit(cache, path, count):
  return cache.commit(path, count)


def committed(cache):
  keys = np.asarray(cache.layers[0].k)
  return [keys[i, 0, 0, :length].tolist() for i, length in enumerate(np.asarray(cache.length))]


@functools.cache
def an_empty_cache(rows=2, slots=9):
  return KVCache.empty(layers=2, rows=rows, heads=1, slots=slots, width=1, dtype=jnp.float32)


def test_rows_grow_on_their_own_and_rollback_is_a_length():
  cache = commit(write(an_empty_cache(), numbered(2, 3, 1)), None, np.array([3, 1]))
  cache = commit(write(cache, numbered(2, 3, 11)), None, np.array([1, 2]))
  assert committed(cache) == [[1, 2, 3, 11], [101, 111, 112]]
  np.testing.assert_array_equal(cache.layers[1].v, -np.asarray(cache.layers[1].k).swapaxes(2, 3))


def test_commit_keeps_a_path_of_a_tree_in_its_order():
  cache = commit(write(an_empty_cache(), numbered(2, 3, 1)), None, np.array([2, 1]))
  path = np.array([[0, 2, 4], [0, 3, 0]])
  cache = commit(write(cache, numbered(2, 5, 11)), path, np.array([3, 2]))
  assert committed(cache) == [[1, 2, 11, 13, 15], [101, 111, 114]]


def test_a_count_of_zero_freezes_a_row():
  cache = commit(write(an_empty_cache(), numbered(2, 3, 1)), None, np.array([2, 2]))
  path = np.array([[0, 2, 0], [0, 1, 0]])
  later = commit(write(cache, numbered(2, 3, 11)), path, np.array([0, 2]))
  assert committed(later) == [[1, 2], [101, 102, 111, 112]]


def test_a_write_without_room_would_clamp():
  """With one slot less than padded prompt + max_len + n, which the loop asks for, committed entries
  are lost."""
  three = np.array([3, 3])
  fits = commit(write(an_empty_cache(slots=6), numbered(2, 3, 1)), None, three)
  fits = commit(write(fits, numbered(2, 3, 11)), None, three)
  assert committed(fits)[0] == [1, 2, 3, 11, 12, 13]
  tight = commit(write(an_empty_cache(slots=5), numbered(2, 3, 1)), None, three)
  assert committed(write(tight, numbered(2, 3, 11)))[0] != [1, 2, 3]


def test_gather_moves_whole_rows():
  cache = commit(write(an_empty_cache(), numbered(2, 3, 1)), None, np.array([3, 1]))
  assert committed(cache.gather(jnp.array([1, 0, 1]))) == [[101], [1, 2, 3], [101]]


def test_memory_never_changes():
  layer = LayerKV.of(numbered(2, 3, 1), numbered(2, 3, 1))
  cache = WithMemory(
    an_empty_cache(), Memory((layer,), jnp.array([[True, True, False], [True, True, True]]))
  )
  cache = WithMemory(write(cache.own, numbered(2, 3, 1)), cache.memory)
  after = cache.commit(None, jnp.array([2, 3]))
  assert after.memory is cache.memory and after.length.tolist() == [2, 3]
  doubled = after.gather(jnp.array([0, 0, 1, 1]))
  assert doubled.length.tolist() == [2, 2, 3, 3] and doubled.memory is cache.memory
