"""Trees that grow: EAGLE-2's algorithm against one in plain Python."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.methods.growing import advance, check_sizes, finish, frontier_width, start
from fastdec.decoding.topology import Topology

ROWS, WORDS, CANDIDATES = 3, 20, 8
RNG = np.random.default_rng(1)
# The tokens of a law's entries: its own indices, those of a draft vocabulary, or other tokens
# after each token.
NAMES = {
  'own': np.tile(np.arange(CANDIDATES), (WORDS, 1)),
  'vocabulary': np.tile(RNG.permutation(WORDS)[:CANDIDATES], (WORDS, 1)),
  'candidates': np.stack([RNG.permutation(WORDS)[:CANDIDATES] for _ in range(WORDS)]),
}
# Depth, width, nodes; deeper frontiers of small trees are narrower than the width.
SIZES = [(1, 3, 3), (2, 2, 7), (3, 3, 6), (3, 4, 37), (4, 1, 5), (5, 6, 8)]


def random_laws(kind, depth, seed=0):
  """log q [b, depth, before, candidate] of every level after every token, in each row."""
  rng = np.random.default_rng(seed)
  laws = -rng.exponential(2, (ROWS, depth, WORDS, CANDIDATES)).astype(np.float32)
  if kind == 'tied':  # nearly all scores have equals, and many children score as their parents do
    laws = laws.round()
  if kind == 'ruled out':  # most nodes have fewer children than the width, or none
    laws[rng.random(laws.shape) < 0.8] = -np.inf
  return laws


class Node(NamedTuple):
  """A candidate of the tree."""

  score: np.float32
  token: int
  parent: int | None  # its number
  rank: int


def by_hand(laws, names, width, nodes, rows=None):
  """Grows one row's tree by the definition.

  Args:
    laws: for each level [before, candidate]: log q of the candidates after each token.
    names: for each level [before, candidate]: the candidates' tokens.
    width, nodes: the tree's sizes.
    rows: a function of level, width and nodes: how many nodes a frontier has (None: `width`).

  Returns:
    All candidates, of which number 0 is the root, whose token is 0; the numbers of those that are
    kept; and the numbers of each frontier.
  """
  tree, frontier, frontiers = [Node(np.float32(0), 0, None, 0)], [0], []
  best_first = lambda number: (-tree[number].score, number)
  for level, (law, name) in enumerate(zip(laws, names, strict=True), start=1):
    first = len(tree)
    for parent in frontier:
      score, before = tree[parent].score, tree[parent].token
      ranked = np.argsort(-law[before], kind='stable')[:width]
      for rank, i in enumerate(ranked):
        tree.append(Node(score + law[before][i], name[before][i], parent, rank))
    frontier = sorted(range(first, len(tree)), key=best_first)
    frontier = frontier[: rows(level, width, nodes) if rows else width]
    frontiers.append(frontier)
  kept = sorted(range(1, len(tree)), key=best_first)[: nodes - 1]
  return tree, [0, *sorted(kept)], frontiers


def path_to(tree, number):
  """Numbers from a node up to the root, both included."""
  return [number, *path_to(tree, tree[number].parent)] if number else [0]


@functools.partial(jax.jit, static_argnames=('names', 'width', 'nodes'))
def grown(laws, names, width, nodes):
  """The tree below token 0 in every row, and the growing tree after each level."""
  table = jnp.asarray(NAMES[names], jnp.int32)
  shared = {'own': None, 'vocabulary': table[0]}
  root = jnp.zeros(len(laws), jnp.int32)
  ids = lambda before: shared[names] if names in shared else table[before]  # with an axis for nodes
  levels = [start(laws[:, 0, 0], width, nodes, ids(root[:, None]))]
  for i in range(1, laws.shape[1]):
    before = levels[-1].tokens
    levels.append(
      advance(levels[-1], jnp.take_along_axis(laws[:, i], before[..., None], axis=1), ids(before))
    )
  tokens, topology, chances = finish(levels[-1], root)
  names = ('parents', 'ranks', 'depths', 'mask', 'acceptable')
  fields = {name: getattr(topology, name) for name in names} | {'chances': chances}
  return (
    tokens,
    fields,
    [(level.tokens, level.scores, level.origin, level.sees) for level in levels],
  )


@pytest.mark.parametrize('names', NAMES)
@pytest.mark.parametrize('kind', ['plain', 'tied', 'ruled out'])
@pytest.mark.wide('*-candidates')
def test_a_tree_is_that_of_the_definition(kind, names):
  for depth, width, nodes in SIZES:
    laws = random_laws(kind, depth)
    tokens, topology, levels = grown(laws, names, width, nodes)
    for row in range(ROWS):
      tree, kept, _ = by_hand(laws[row], [NAMES[names]] * depth, width, nodes)
      paths = [path_to(tree, number) for number in kept]
      parents = [-1, *(kept.index(path[1]) for path in paths[1:])]
      mask = [[number in path for number in kept] for path in paths]
      np.testing.assert_array_equal(tokens[row], [tree[number].token for number in kept])
      np.testing.assert_array_equal(topology['parents'][row], parents)
      np.testing.assert_array_equal(topology['ranks'][row], [tree[number].rank for number in kept])
      np.testing.assert_array_equal(topology['depths'][row], [len(path) - 1 for path in paths])
      np.testing.assert_array_equal(topology['mask'][row], mask)
      assert topology['acceptable'].all()
      chances = [np.exp(tree[number].score) for number in kept]
      np.testing.assert_allclose(topology['chances'][row], chances, rtol=1e-6)

      # The frontiers of the growing tree; in a small tree they are narrower than the width.
      tree, _, frontiers = by_hand(laws[row], [NAMES[names]] * depth, width, nodes, frontier_width)
      before, expanded = [0], []
      for frontier, level in zip(frontiers, levels, strict=True):
        expanded += frontier
        level_tokens, scores, origin, sees = (np.asarray(field[row]) for field in level)
        expected = [tree[number] for number in frontier]
        np.testing.assert_array_equal(level_tokens, [node.token for node in expected])
        np.testing.assert_array_equal(scores, [node.score for node in expected])
        np.testing.assert_array_equal(origin, [before.index(node.parent) for node in expected])
        on_path = [[number in path_to(tree, last) for number in expanded] for last in frontier]
        np.testing.assert_array_equal(sees, on_path)
        before = frontier


def test_a_small_tree_reads_fewer_rows():
  assert [frontier_width(level, 6, 8) for level in range(1, 8)] == [6, 5, 4, 3, 2, 1, 1]


@pytest.mark.parametrize('kind', ['plain', 'tied', 'ruled out', 'nan', 'above 0'])
def test_parents_come_first_and_siblings_differ_whatever_the_law(kind):
  """The tree is the one that `Topology` makes of its parents. A law with NaN may guess any tokens,
  but they still are a tree."""
  for seed, (depth, width, nodes) in enumerate(SIZES):
    laws = random_laws(kind, depth, seed)
    if kind == 'nan':
      laws[:, 1:][np.random.default_rng(seed).random(laws[:, 1:].shape) < 0.1] = np.nan
    if kind == 'above 0':
      laws = -laws / 3
    tokens, tree, _ = grown(laws, 'candidates', width, nodes)
    for row in range(ROWS):
      parents = np.asarray(tree['parents'][row])
      # raises if it is not a tree
      static = Topology.from_parents(parents, np.asarray(tree['ranks'][row]))
      np.testing.assert_array_equal(tree['mask'][row], static.mask)
      np.testing.assert_array_equal(tree['depths'][row], static.depths)
      assert static.max_depth <= depth
      below = list(zip(parents.tolist(), tokens[row].tolist(), strict=True))
      assert len(set(below)) == nodes


def test_scores_of_laws_in_bfloat16_are_summed_in_float32():
  laws = jnp.asarray(random_laws('plain', 3), jnp.bfloat16)
  with jax.numpy_dtype_promotion('standard'):  # the strict one knows no type that holds both
    made = jax.tree.leaves(grown(laws, 'own', 3, 12))
  for one, other in zip(
    made, jax.tree.leaves(grown(laws.astype(jnp.float32), 'own', 3, 12)), strict=True
  ):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('sizes, message', [
  ((0, 2, 4), 'depth=0 is not possible: give how many tokens deep'),
  ((2, 0, 4), 'width=0 is not possible: give how many children'),
  ((2, 2.5, 4), r'width=2\.5 is not possible'),
  ((2, 2, None), 'nodes=None is not possible: give how many tokens a call'),
  ((2, 2, 2), 'nodes=2 is not possible: .* depth=2 and width=2 has at least 3 and at most 7 nodes'),
  ((2, 2, 8), 'at least 3 and at most 7 nodes'),
  ((2, 1, 4), 'at least 3 and at most 3 nodes'),
  ((2, 6, 8, 5), 'width=6 is not possible: this draft has 5 candidates'),
])  # fmt: skip
def test_sizes_of_no_tree_are_refused(sizes, message):
  with pytest.raises(fd.UserError, match=message):
    check_sizes(*sizes)


def test_sizes_of_trees_are_kept():
  for sizes in SIZES:
    assert check_sizes(*sizes) == sizes
  assert check_sizes(np.int64(7), 8, 32, 8) == (7, 8, 32)
