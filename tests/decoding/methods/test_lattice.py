"""Lattices: best paths against plain Python, and the law of samples against q."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from fastdec.decoding.methods.lattice import Lattice, fill, grow
from fastdec.decoding.methods.planned import Drawing, plan
from fastdec.decoding.sampling import Sampling, best
from fastdec.decoding.topology import Topology
from tests.decoding.methods.test_growing import by_hand
from tests.decoding.test_sampling import law_by_hand

ROWS, GUESSES, CANDIDATES, WORDS = 3, 4, 6, 15
RNG = np.random.default_rng(3)
LOGITS = RNG.normal(0, 2, (ROWS, GUESSES, WORDS)).astype(np.float32)
# what the token before adds to each token's score
TABLE = RNG.normal(0, 2, (WORDS, WORDS)).astype(np.float32)
ROOT = jnp.array([4, 0, 11], jnp.int32)


def of(scores, ids, with_bias=True):
  """The lattice of these candidates."""

  def bias(i, before, carry):
    return jnp.asarray(TABLE)[before[..., None], ids[:, None, i]], carry

  return Lattice(scores, ids, bias if with_bias else None)


def lattice(with_bias=True):
  return of(*best(jnp.asarray(LOGITS), CANDIDATES), with_bias)


def compiled(make, *args):
  """Runs a function as one program; otherwise each operation would be compiled separately."""
  return jax.jit(lambda: make(*args))()


def grown_tree(lattice, width, nodes):
  """Tokens, parents and ranks of a grown tree."""
  tokens, topology, _ = grow(lattice, ROOT, width, nodes)
  return tokens, topology.parents, topology.ranks


def guessed(lattice, root, topology):
  """The tokens of a static tree of guesses."""
  return fill(lattice, plan(topology, root)).filled


def drawn_chain(lattice, root, sampling, keys):
  """Tokens and q of a drawn chain."""
  drawing = Drawing('distinct', sampling.log_probs, keys, WORDS)
  tree = fill(lattice, plan(Topology.chain(1 + lattice.scores.shape[1]), root, drawing))
  return tree.filled, tree.laws


def candidates(row, i):
  """The tokens that the i-th guess may be, best first."""
  return np.argsort(-LOGITS[row, i], kind='stable')[:CANDIDATES]


def behind(row, i, before, with_bias=True):
  """Tokens and corrected scores of the candidates."""
  ids = candidates(row, i)
  return ids, LOGITS[row, i, ids] + (TABLE[before, ids] if with_bias else 0)


@pytest.mark.parametrize('with_bias', [True, False])
@pytest.mark.parametrize('topology', [
  Topology.chain(GUESSES + 1),
  Topology.from_choices([[0], [2], [0, 1], [0, 3], [2, 0], [2, 0, 4]]),
])  # fmt: skip
def test_a_node_of_rank_r_is_the_rth_choice_behind_its_parent(topology, with_bias):
  tokens = compiled(guessed, lattice(with_bias), ROOT, topology)
  for row in range(ROWS):
    expected = [int(ROOT[row])]
    for node in range(1, topology.n):
      ids, scores = behind(
        row, topology.depths[node] - 1, expected[topology.parents[node]], with_bias
      )
      expected.append(int(ids[np.argsort(-scores, kind='stable')[topology.ranks[node]]]))
    assert tokens[row].tolist() == expected


@functools.partial(jax.jit, static_argnames=('width', 'nodes', 'with_bias'))
def grown(width, nodes, with_bias=True, temperatures=None):
  tokens, topology, _ = grow(lattice(with_bias), ROOT, width, nodes, temperatures)
  assert topology.max_depth == GUESSES
  return tokens, topology.parents, topology.mask


@pytest.mark.parametrize('temperatures', [None, (0.5, 1.0, 2.0, 4.0)])
@pytest.mark.parametrize('with_bias', [True, False])
@pytest.mark.parametrize(('width', 'nodes'), [(1, 5), (2, 9), (3, 16), (6, 30)])
@pytest.mark.wide('3-16-True-*', '6-30-False-None')
def test_a_tree_has_the_likeliest_paths(width, nodes, with_bias, temperatures):
  warmth = None if temperatures is None else jnp.array(temperatures)
  tokens, below, _ = grown(width, nodes, with_bias, warmth)
  for row in range(ROWS):
    laws, names = [], []
    for i in range(GUESSES):
      scores = np.stack([behind(row, i, before, with_bias)[1] for before in range(WORDS)])
      scores = scores / (temperatures[i] if temperatures else 1)
      laws.append(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))
      names.append(np.tile(candidates(row, i), (WORDS, 1)))
    laws[0][0] = laws[0][ROOT[row]]  # `by_hand` begins at token 0
    candidate_nodes, kept, _ = by_hand(laws, names, width, nodes)
    expected = [candidate_nodes[number] for number in kept[1:]]  # without the root
    assert tokens[row].tolist() == [int(ROOT[row]), *(int(node.token) for node in expected)]
    assert below[row].tolist() == [-1, *(kept.index(node.parent) for node in expected)]


def by_path(row, path):
  """Returns tokens and corrected scores of the candidates after a path. The bias depends on the
  whole path."""
  i, (scores, ids) = len(path) - 1, best(jnp.asarray(LOGITS), CANDIDATES)
  return np.asarray(ids[row, i]), np.asarray(scores[row, i]) + TABLE[
    sum(path) % WORDS, np.asarray(ids[row, i])
  ]


@pytest.mark.parametrize('kind', ['filled', 'grown', 'drawn'])
def test_a_bias_may_remember_the_path(kind):
  """The bias carries the sum of the tokens: that of a node's own path, however branches are
  sorted."""
  scores, ids = best(jnp.asarray(LOGITS), CANDIDATES)

  def bias(i, before, carry):
    carry = carry + before
    return jnp.asarray(TABLE)[carry[..., None] % WORDS, ids[:, None, i]], carry

  remembering = Lattice(scores, ids, bias, jnp.zeros((ROWS, 1), jnp.int32))
  tree = Topology.from_choices(
    [[0], [2], [0, 1], [0, 3], [2, 0], [2, 0, 4], [0, 3, 0], [0, 3, 0, 1]]
  )
  if kind == 'grown':
    tokens, parents, ranks = map(np.asarray, compiled(grown_tree, remembering, 3, 20))
  elif kind == 'filled':
    tokens = compiled(guessed, remembering, ROOT, tree)
    parents, ranks = (np.tile(x, (ROWS, 1)) for x in (tree.parents, tree.ranks))
  else:  # so cold that the best is drawn
    keys = jax.random.split(jax.random.key(0), ROWS)
    tokens, _ = compiled(drawn_chain, remembering, ROOT, Sampling(1e-4), keys)
    parents, ranks = (
      np.tile(np.arange(GUESSES + 1) - 1, (ROWS, 1)),
      np.zeros((ROWS, GUESSES + 1), int),
    )
  for row in range(ROWS):
    paths = [[int(ROOT[row])]]
    for node in range(1, tokens.shape[1]):
      path = paths[parents[row, node]]
      names, corrected = by_path(row, path)
      assert tokens[row, node] == names[np.argsort(-corrected, kind='stable')[ranks[row, node]]]
      paths.append([*path, int(tokens[row, node])])


ORDER = np.roll(np.arange(WORDS), 4)  # of a list of words that all guesses share


@pytest.mark.parametrize('with_bias', [True, False])
@pytest.mark.parametrize('words', [None, ORDER], ids=['all words', 'a list of words'])
@pytest.mark.wide('all words-True')
def test_candidates_need_no_order_and_no_names(words, with_bias):
  """A lattice of all words equals that of all words ranked and named one by one."""
  shown = np.arange(WORDS) if words is None else words

  def bias(i, before, carry):
    return jnp.asarray(TABLE)[before][..., shown], carry

  scores, ids = (
    jnp.asarray(LOGITS)[..., shown],
    None if words is None else jnp.asarray(words, jnp.int32),
  )
  whole, ranked = (
    Lattice(scores, ids, bias if with_bias else None),
    of(*best(jnp.asarray(LOGITS), WORDS), with_bias),
  )
  tree = Topology.from_choices([[0], [2], [0, 1], [0, 3], [2, 0], [2, 0, 4]])
  for make, sizes in ((guessed, (ROOT, tree)), (grown_tree, (3, 16))):
    made, expected = (compiled(make, each, *sizes) for each in (whole, ranked))
    jax.tree.map(np.testing.assert_array_equal, made, expected)
  keys = jax.random.split(jax.random.key(0), ROWS)
  # so cold that the best is drawn
  tokens, q = compiled(drawn_chain, whole, ROOT, Sampling(1e-4), keys)
  chain = compiled(guessed, ranked, ROOT, Topology.chain(GUESSES + 1))
  np.testing.assert_array_equal(tokens, chain)
  np.testing.assert_allclose(np.take_along_axis(q, tokens[..., None], -1)[:, 1:], 1, atol=1e-5)


MANY = 100_000
LAWS = [Sampling(2.0), Sampling(1.5, top_k=3), Sampling(3.0, top_p=0.8), Sampling(2.0, 5, 0.9)]


@jax.jit
def drawn(law):
  """Chains of two guesses, all from the first row's candidates, and their q."""
  short = of(*(jnp.repeat(x[:1, :2], MANY, axis=0) for x in best(jnp.asarray(LOGITS), CANDIDATES)))
  keys = jax.random.split(jax.random.key(0), MANY)
  return drawn_chain(short, jnp.repeat(ROOT[:1], MANY), law, keys)


def joint(law, with_bias=True):
  """The law of two guesses, [first, second], and q of each."""
  settings = float(law.temperature), int(law.top_k), float(law.top_p)
  q = np.zeros((2, WORDS, WORDS))  # of each guess, after each token
  for i in range(2):
    for before in range(WORDS):
      ids, scores = behind(0, i, before, with_bias)
      q[i, before, ids] = law_by_hand(scores, *settings)
  return q[0, ROOT[0]][:, None] * q[1], q


def p_value(tokens, law):
  """The p-value of the pairs of guesses under their law [first, second]."""
  seen = np.zeros(law.shape)
  np.add.at(seen, tuple(np.asarray(tokens)[:, 1:].T), 1)
  expected = MANY * law.ravel()
  common = expected >= 5
  pooled = lambda x: np.append(x[common], x[~common].sum() + 1e-9)
  return (
    chisquare(pooled(seen.ravel()), pooled(expected), sum_check=False).pvalue
    if (law[seen > 0] > 0).all()
    else 0
  )


@pytest.mark.parametrize('law', LAWS)
@pytest.mark.wide('law0', 'law3')
def test_what_is_drawn_has_the_law_that_q_says(law):
  """It is not the law of the scores before the bias, which is nearer to a marginal law."""
  tokens, q = drawn(law)
  expected, conditional = joint(law)
  assert p_value(tokens, expected) > 1e-3
  np.testing.assert_allclose(q.sum(-1), np.tile([0, 1, 1], (MANY, 1)), atol=1e-5)
  np.testing.assert_allclose(q[:, 1], np.tile(conditional[0, ROOT[0]], (MANY, 1)), atol=1e-5)
  np.testing.assert_allclose(q[:, 2], conditional[1][np.asarray(tokens[:, 1])], atol=1e-5)
  assert p_value(tokens, joint(law, with_bias=False)[0]) < 1e-9
