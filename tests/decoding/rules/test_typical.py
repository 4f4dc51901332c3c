"""Typical acceptance, against the formula node by node, and in the loop."""

import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import fastdec as fd
from fastdec.decoding.protocol import Draft
from fastdec.decoding.topology import Topology
from tests.decoding.fakes import HashHeads, HashLM, truths

NODES, VOCAB = 8, 6


@jax.jit
def verdict(rule, parents, tokens, logits, acceptable):
  accepted = rule(
    None, Draft(tokens[None], Topology.from_parents(parents[None])), logits[None], acceptable[None]
  )
  return accepted.node[0], accepted.bonus[0]


def law(logits, temperature):
  exp = [math.exp((x - max(logits)) / temperature) for x in logits]
  return [x / sum(exp) for x in exp]


def by_hand(epsilon, delta, temperature, parents, tokens, logits, acceptable):
  """(last accepted node, bonus, margin of the closest decision)."""
  alive, score, depth, margin = {0}, {0: 0.0}, {0: 0}, 1.0
  for node in range(1, len(parents)):  # parents come before children
    p = law(logits[parents[node]], temperature)
    threshold = min(epsilon, delta * math.exp(sum(x * math.log(x) for x in p if x)))
    own = p[tokens[node]]
    margin = min(margin, abs(own - threshold))
    if parents[node] in alive and own > threshold and acceptable[node]:
      alive.add(node)
    score[node] = score[parents[node]] + math.log(own)
    depth[node] = depth[parents[node]] + 1
  deepest = [node for node in sorted(alive) if depth[node] == max(depth[a] for a in alive)]
  best = max(deepest, key=lambda node: score[node])
  gaps = [score[best] - score[node] for node in deepest if node != best]
  return best, int(np.argmax(logits[best])), min([margin, *gaps])


@st.composite
def cases(draw):
  rng = np.random.default_rng(draw(st.integers(0, 10**6)))
  parents = np.array([-1] + [rng.integers(0, node) for node in range(1, NODES)], np.int32)
  tokens = rng.integers(0, VOCAB, NODES).astype(np.int32)
  logits = (rng.normal(size=(NODES, VOCAB)) * draw(st.sampled_from([0.2, 1.0, 4.0]))).astype(
    np.float32
  )
  acceptable = rng.random(NODES) < 0.9
  acceptable[0] = True
  settings = ((0.0, 0.05, 0.09, 0.5, 1.0), (0.0, 0.3, 0.9), (0.3, 1.0, 3.0))
  return (
    *(draw(st.sampled_from(values)) for values in settings),
    parents,
    tokens,
    logits,
    acceptable,
  )


@hypothesis.given(case=cases())
@hypothesis.settings(max_examples=200)
def test_random_trees_against_the_formula(case):
  epsilon, delta, temperature, *tree = case
  node, bonus, margin = by_hand(epsilon, delta, temperature, *(x.tolist() for x in tree))
  hypothesis.assume(margin > 1e-5)  # rounding
  assert tuple(map(int, verdict(fd.Typical(epsilon, delta, temperature), *tree))) == (node, bonus)


CHAIN = np.arange(3, dtype=np.int32) - 1
YES = np.ones(3, bool)
# After the root: 0.7, 0.2, 0.1, of entropy 0.8018; after node 1 four equally likely tokens, of
# entropy log 4.
LOGITS = np.log(np.array([[0.7, 0.2, 0.1, 1e-9], [0.25] * 4, [0.97, 0.01, 0.01, 0.01]], np.float32))


@pytest.mark.parametrize(
  'rule, tokens, expected',
  [
    (fd.Typical(), [0, 1, 2], 2),  # 0.2 > 0.09; 0.25 > 0.3 / 4
    (fd.Typical(), [0, 2, 2], 2),  # 0.1 > 0.09
    (fd.Typical(), [0, 3, 2], 0),
    (fd.Typical(epsilon=0.15, delta=1.0), [0, 2, 2], 0),  # min(0.15, 0.4485)
    (fd.Typical(epsilon=0.15, delta=0.2), [0, 2, 2], 2),  # min(0.15, 0.0897)
    (fd.Typical(epsilon=1.0, delta=0.3), [0, 1, 2], 2),  # min(1, 0.1346)
    (fd.Typical(epsilon=1.0, delta=0.5), [0, 1, 2], 0),  # min(1, 0.2243)
    (fd.Typical(epsilon=0.0), [0, 3, 2], 2),  # whatever is possible
    (fd.Typical(temperature=0.3), [0, 1, 2], 0),  # 0.2 becomes 0.0152 of a surer law
    (fd.Typical(temperature=0), [0, 1, 2], 0),  # exact
    (fd.Typical(temperature=0), [0, 0, 0], 2),
    (fd.Typical(temperature=0), [0, 0, 1], 1),  # a tie is not the lowest id's equal
  ],
)
def test_chain(rule, tokens, expected):
  node, bonus = verdict(rule, CHAIN, np.array(tokens, np.int32), LOGITS, YES)
  assert (int(node), int(bonus)) == (expected, 0)


def test_the_first_token_is_greedy_and_needs_no_key():
  logits = jnp.asarray(LOGITS[:1])[None]
  accepted = fd.Typical()(
    None, Draft(jnp.zeros((1, 1), jnp.int32), Topology.chain(1)), logits, jnp.ones((1, 1), bool)
  )
  assert (int(accepted.node[0]), int(accepted.bonus[0])) == (0, 0)


def test_suppressed_tokens_do_not_spoil_the_entropy():
  logits = np.concatenate([LOGITS, np.full((3, 2), -np.inf, np.float32)], axis=1)
  for tokens, expected in (([0, 2, 2], 2), ([0, 4, 2], 0)):
    assert int(verdict(fd.Typical(), CHAIN, np.array(tokens, np.int32), logits, YES)[0]) == expected


def test_equally_long_paths_are_compared_at_the_temperature():
  """Which of two paths is more likely depends on the temperature: 0.55 * 0.3 against 0.35 * 0.5."""
  parents = np.array([-1, 0, 0, 1, 2], np.int32)
  laws = np.array(
    [[0.55, 0.35, 0.10], [0.3, 0.3, 0.4], [0.5, 0.1, 0.4], [0.4, 0.3, 0.3], [0.4, 0.3, 0.3]]
  )
  tokens = np.array([0, 0, 1, 0, 0], np.int32)
  tree = parents, tokens, np.log(laws).astype(np.float32), np.ones(5, bool)
  accepted = set()
  for temperature in (1.0, 0.25):
    rule = fd.Typical(epsilon=0.0, temperature=temperature)
    node = int(verdict(rule, *tree)[0])
    assert node == by_hand(0.0, 0.3, temperature, *(x.tolist() for x in tree))[0]
    accepted.add(node)
  assert len(accepted) == 2


# ---- in the loop

MODEL = HashLM()
TREE = [[rank] for rank in range(6)] + [[0, rank] for rank in range(6)] + [[1, 0], [0, 0, 0]]
PROMPTS, LENGTHS = (
  np.array([[3, 4, 5], [6, 7, 0], [8, 0, 0], [9, 10, 2]], np.int32),
  np.array([3, 2, 1, 3], np.int32),
)


def decoded(rule, choices=TREE, rows=slice(None)):
  strategy = fd.Medusa((HashHeads(), {}), choices, rule)
  return fd.decode(MODEL, {}, PROMPTS[rows], strategy, prompt_lengths=LENGTHS[rows], max_len=11)


def test_it_trades_fidelity_for_longer_blocks_and_temperature_0_is_exact():
  truth = truths(MODEL, PROMPTS, LENGTHS, 11)
  exact, typical = decoded(fd.Typical(temperature=0)), decoded(fd.Typical(epsilon=0.01))
  np.testing.assert_array_equal(exact.tokens, truth)
  np.testing.assert_array_equal(exact.block_sizes, decoded(fd.Exact()).block_sizes)
  assert (
    typical.mean_block_size > exact.mean_block_size and (np.asarray(typical.tokens) != truth).any()
  )
  np.testing.assert_array_equal(typical.tokens[:, 0], truth[:, 0])


def test_it_works_on_chains_with_a_minimum_block():
  out = decoded(fd.MinBlock(fd.Typical(), 3), [[0], [0, 0], [0, 0, 0]])
  whole = np.asarray(out.lengths) == 11
  assert whole.any() and (np.asarray(out.block_sizes)[whole][:, :2] >= 3).all()


@pytest.mark.parametrize('settings, message', [
  ({'epsilon': -0.1}, 'epsilon=-0.1 is not possible: give 0 to 1'),
  ({'epsilon': 1.5}, 'epsilon=1.5'),
  ({'delta': -1}, 'delta=-1 is not possible: give 0 to 1'),
  ({'delta': float('nan')}, 'delta=nan'),
  ({'temperature': -1.0},
    'temperature=-1.0 is not possible: give 1e-6 to 1e6, or 0 for exact acceptance'),
])  # fmt: skip
def test_bad_settings_are_refused(settings, message):
  with pytest.raises(fd.UserError, match=message):
    fd.Typical(**settings)
