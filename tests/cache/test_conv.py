"""The convolution cache against the definition: a list of inputs for each row, of which a frame is
the last w."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.cache.conv import ConvCache
from fastdec.decoding.topology import Topology
from fastdec.models import api
from fastdec.models.convolution import frame_slots, node_frames, packed_frames

# nodes: root 0, a 1, b 2, aa 3, ba 4, aaa 5
TREE = Topology.from_choices([[0], [1], [0, 0], [1, 0], [0, 0, 0]])
WIDTHS = (1, 2, 3, 5)


@functools.cache
def an_empty_cache(rows=2, back=0):
  return ConvCache.empty([(1, width) for width in WIDTHS], rows, jnp.float32, back)


def write(cache, values):
  """Writes [rows, n] numbers to every layer."""
  return _write(cache, np.array(values, np.float32)[:, :, None])


@jax.jit
def _write(cache, x):
  return ConvCache(tuple(layer.write(x) for layer in cache.layers), cache.length)


@jax.jit
def commit(cache, path, count):
  return cache.commit(path, count)


def past(cache):
  """Returns what each layer reads from each row."""
  return [np.asarray(layer.inputs)[:, layer.back :, 0].tolist() for layer in cache.layers]


def expected_past(rows):
  return [[([0.0] * (width - 1) + row)[len(row) :] for row in rows] for width in WIDTHS]


def test_rows_grow_on_their_own_and_what_is_rejected_is_forgotten():
  cache = write(an_empty_cache(), [[1, 2, 3], [101, 102, 103]])
  cache = commit(cache, None, np.array([3, 1]))
  assert past(cache) == expected_past([[1, 2, 3], [101]]) and cache.length.tolist() == [3, 1]
  cache = commit(write(cache, [[11, 12, 13], [111, 112, 113]]), None, np.array([1, 2]))
  assert past(cache) == expected_past([[1, 2, 3, 11], [101, 111, 112]])


def test_commit_keeps_a_path_of_a_tree_in_its_order():
  cache = commit(write(an_empty_cache(), [[1, 2, 0], [101, 102, 0]]), None, np.array([2, 1]))
  nodes = [[10, 11, 12, 13, 14, 15], [110, 111, 112, 113, 114, 115]]
  path = np.array([[0, 1, 3, 5], [0, 2, 0, 0]])
  cache = commit(write(cache, nodes), path, np.array([4, 2]))
  assert past(cache) == expected_past([[1, 2, 10, 11, 13, 15], [101, 110, 112]])


def test_a_count_of_zero_freezes_a_row():
  cache = commit(write(an_empty_cache(), [[1, 2, 0], [101, 102, 0]]), None, np.array([2, 2]))
  for path in (None, np.array([[0, 1], [0, 1]])):
    later = commit(write(cache, [[11, 12, 0], [111, 112, 0]]), path, np.array([0, 1]))
    assert past(later) == expected_past([[1, 2], [101, 102, 111]])


def test_tokens_that_were_committed_are_taken_back():
  """Each row is rolled back by itself, at once or in steps, by up to 3 tokens from its longest
  length. Then it is extended."""
  cache = write(an_empty_cache(back=3), [[1, 2, 3, 4], [101, 102, 103, 104]])
  cache = commit(cache, None, np.array([4, 2]))
  for token in (11, 12, 13):
    cache = write(cache, [[token, 0, 0, 0], [token + 100, 0, 0, 0]])
    cache = commit(cache, None, np.array([1, 1]))
  assert past(cache) == expected_past([[1, 2, 3, 4, 11, 12, 13], [101, 102, 111, 112, 113]])
  cache = commit(cache, None, np.array([-3, -1]))
  assert past(cache) == expected_past([[1, 2, 3, 4], [101, 102, 111, 112]])
  assert cache.length.tolist() == [4, 4]
  cache = commit(cache, None, np.array([0, -2]))
  assert past(cache) == expected_past([[1, 2, 3, 4], [101, 102]])
  assert cache.length.tolist() == [4, 2]
  cache = write(cache, [[21, 22, 0, 0], [121, 122, 0, 0]])
  cache = commit(cache, None, np.array([2, 1]))
  assert past(cache) == expected_past([[1, 2, 3, 4, 21, 22], [101, 102, 121]])


def test_the_state_does_not_grow():
  cache = an_empty_cache()
  sizes = [leaf.shape for leaf in jax.tree.leaves(cache)]
  for i in range(4):
    cache = commit(write(cache, [[i, i, i], [i, i, i]]), None, np.array([3, 2]))
    assert [leaf.shape for leaf in jax.tree.leaves(cache)] == sizes


def test_gather_moves_whole_rows():
  cache = write(an_empty_cache(), [[1, 2, 3], [101, 102, 103]])
  gathered = commit(cache, None, np.array([3, 1])).gather(jnp.array([1, 0, 1]))
  assert past(gathered) == expected_past([[101], [1, 2, 3], [101]])
  assert gathered.length.tolist() == [1, 3, 1]


@pytest.mark.parametrize('back', [0, 2])
@pytest.mark.parametrize('parents', ['known', 'of each row'])
@pytest.mark.wide('known-0', 'of each row-2')
def test_a_frame_is_the_last_inputs_of_the_nodes_path(parents, back):
  """Static trees and trees whose parents are data, rows of different lengths; a chain as a chain
  and as a tree."""
  before = [[1, 2, 3], [101]]
  cache = write(an_empty_cache(back=back), [[1, 2, 3], [101, 0, 0]])
  cache = commit(cache, None, np.array([3, 1]))
  for topology in (TREE, Topology.chain(4)):
    nodes, n = topology.nodes, topology.n
    if parents == 'of each row':
      two = lambda x: jnp.asarray(np.stack([x, x]))
      nodes = api.Nodes(two(nodes.parents), two(nodes.depths), two(nodes.mask))
    values = [[row + node for node in range(n)] for row in (10, 110)]
    every = jax.jit(lambda cache, nodes=nodes: [node_frames(one, nodes) for one in cache.layers])
    for width, frames in zip(WIDTHS, jax.device_get(every(write(cache, values))), strict=True):
      for row in range(2):
        for node in range(n):
          path = [values[row][i] for i in range(n) if topology.mask[node, i]]
          assert frames[row, node].tolist() == ([0] * width + before[row] + path)[-width:]


def test_the_example_of_reads():
  nodes = Topology.from_choices([[0], [1], [0, 0]]).nodes
  assert frame_slots(nodes, 3).tolist() == [[0, 1, 2], [1, 2, 3], [1, 2, 4], [2, 3, 5]]


def test_packed_frames_end_where_sentences_do():
  x, segment = jnp.arange(1.0, 7)[None, :, None], jnp.array([[1, 1, 1, 2, 2, 0]])
  centred = packed_frames(x, segment, (-1, 0, 1))[0]
  assert centred[:5].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 0], [0, 4, 5], [4, 5, 0]]
  causal = packed_frames(x, segment, (-2, -1, 0))[0]
  assert causal[:5].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 4], [0, 4, 5]]
  wide = packed_frames(x[:, :2], segment[:, :2], range(-4, 1))
  assert wide[0].tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 1, 2]]  # a kernel wider than the row
