"""Drawn trees: the law of what is drawn, which is what q says, and its place in the tree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.decoding.methods.lattice import Lattice, fill
from fastdec.decoding.methods.planned import Drawing, plan
from fastdec.decoding.methods.trees import static_tree
from fastdec.decoding.sampling import Sampling
from tests.decoding.test_sampling import law_by_hand

WORDS, ROWS = 5, 40_000
RNG = np.random.default_rng(0)
SCORES = RNG.normal(0, 1, (2, 3))  # of three candidates
TABLE = RNG.normal(0, 1, (WORDS, WORDS))  # what the token before adds
IDS = np.array([4, 1, 3])
SETTINGS = (1.3, 0, 1.0)


@functools.partial(jax.jit, static_argnums=0)
def drawn(siblings):
  """Trees of two children, of which each has two: tokens and q."""
  bias = lambda i, before, carry: (jnp.asarray(TABLE, jnp.float32)[before][..., IDS], carry)
  scores = jnp.broadcast_to(jnp.asarray(SCORES, jnp.float32), (ROWS, 2, 3))
  lattice = Lattice(scores, jnp.asarray(IDS, jnp.int32), bias)
  keys = jax.random.split(jax.random.key(0), ROWS)
  root = jnp.full(ROWS, 2, jnp.int32)
  drawing = Drawing(siblings, Sampling(*SETTINGS).log_probs, keys, WORDS)
  tree = fill(lattice, plan(static_tree((2, 2)), root, drawing))
  return tree.filled, tree.laws


def law_after(depth, before):
  """q of a node at a depth, over the words."""
  law = np.zeros(WORDS)
  law[IDS] = law_by_hand(SCORES[depth - 1] + TABLE[before, IDS], *SETTINGS)
  return law


def without(law, word):
  law = np.where(np.arange(WORDS) == word, 0, law)
  return law / law.sum()


@pytest.mark.parametrize('siblings', ['distinct', 'independent', 'mixed'])
def test_children_are_drawn_from_the_laws_that_q_names(siblings):
  tokens, q = map(np.asarray, drawn(siblings))
  parents = static_tree((2, 2)).parents
  for first, second in ((1, 2), (3, 4), (5, 6)):
    for before in np.unique(tokens[:, parents[first]]):
      rows = tokens[:, parents[first]] == before
      law = law_after(1 if first == 1 else 2, before)
      pairs, laws = tokens[rows][:, [first, second]], q[rows][:, [first, second]]
      seen = np.zeros((WORDS, WORDS))
      np.add.at(seen, tuple(pairs.T), 1 / rows.sum())
      expected = law[:, None] * law
      if siblings == 'independent':
        np.testing.assert_allclose(laws, np.broadcast_to(law, laws.shape), atol=1e-5)
      elif siblings == 'distinct':
        rest = np.stack([without(law, word) for word in range(WORDS)])
        expected = law[:, None] * rest
        np.testing.assert_allclose(laws[:, 0], np.broadcast_to(law, laws[:, 0].shape), atol=1e-5)
        np.testing.assert_allclose(laws[:, 1], rest[pairs[:, 0]], atol=1e-5)
      else:  # the likeliest word, and one of the others: first the one of the larger chance
        best = law.argmax()
        expected = np.zeros((WORDS, WORDS))
        expected[best] = without(law, best)
        both = np.stack([np.eye(WORDS)[best], without(law, best)])
        if law[best] < 0.5:
          expected, both = expected.T, both[::-1]
        np.testing.assert_allclose(laws, np.broadcast_to(both, laws.shape), atol=1e-5)
      np.testing.assert_allclose(seen, expected, atol=5 * (0.25 / rows.sum()) ** 0.5)
  assert not q[:, 0].any()


def test_too_few_words_leave_nodes_that_nothing_was_drawn_for():
  """A law of two words, and three children: the third has no q. Rows differ in temperature."""
  scores = jnp.log(jnp.array([[[0.75, 0.25, 0.0]], [[0.6, 0.3, 0.1]]]))
  keys, root = jax.random.split(jax.random.key(0), 2), jnp.zeros(2, jnp.int32)
  drawing = Drawing('distinct', Sampling(np.array([1.0, 0.0])).log_probs, keys, 3)
  tree = fill(Lattice(scores), plan(static_tree((3,)), root, drawing))
  np.testing.assert_allclose(tree.laws.sum(-1), [[0, 1, 1, 0], [0, 1, 0, 0]], atol=1e-6)
  assert tree.filled[1, 1] == 0  # the likeliest word, at temperature 0
