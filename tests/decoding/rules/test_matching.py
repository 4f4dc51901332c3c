"""Acceptance on bare arrays, each case worked out by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import struct
from fastdec.decoding.protocol import Draft
from fastdec.decoding.topology import Topology

CHAIN = Topology.chain(4)
# The target's logits after each node of the chain 7, 2, 4, 5: its choices are 2, then 3 (4 second,
# 5 third), then 5, then 1.
LOGITS = np.zeros((1, 4, 8), np.float32)
for node, ranking in enumerate([[2, 6], [3, 4, 5], [5, 0], [1, 2]]):
  for rank, token in enumerate(ranking):
    LOGITS[0, node, token] = 9 - rank
TOKENS = [7, 2, 4, 5]


@functools.partial(jax.jit, static_argnames='topology')
def judged(rule, tokens, logits, acceptable, topology):
  accepted = rule(None, Draft(tokens, topology), logits, acceptable)
  return accepted.node[0], accepted.bonus[0]


def verdict(rule, tokens=TOKENS, logits=LOGITS, topology=CHAIN, acceptable=None):
  acceptable = np.ones((1, topology.n), bool) if acceptable is None else acceptable
  tokens, logits = np.array([tokens], np.int32), np.asarray(logits, np.float32)
  return tuple(map(int, judged(rule, tokens, logits, acceptable, topology)))


@pytest.mark.parametrize('rule, expected', [
  (fd.Exact(), (1, 3)),  # 2 is right, 4 is not: the bonus is the target's choice after 2
  (fd.TopN(1), (1, 3)), (fd.TopN(2), (3, 1)),  # 4 is the second choice; 5 is right again
  (fd.Distance(0), (1, 3)), (fd.Distance(1), (3, 1)),  # |4 - 3| = 1
  (fd.MinBlock(fd.Exact(), 1), (1, 3)),
  (fd.MinBlock(fd.Exact(), 2), (1, 3)),  # two tokens, root counted: already kept
  (fd.MinBlock(fd.Exact(), 3), (3, 1)),  # 4 is kept unseen, and 5 is right after it
  (fd.MinBlock(fd.Exact(), 99), (3, 1)),
])  # fmt: skip
def test_chain(rule, expected):
  assert verdict(rule) == expected


def test_a_wrong_token_stops_the_path_even_where_later_ones_match():
  assert verdict(fd.Exact(), tokens=[7, 6, 4, 5]) == (0, 2)


def test_unacceptable_nodes_end_the_path():
  only_two = jnp.array([[True, True, True, False]])
  assert verdict(fd.TopN(2), acceptable=only_two) == (2, 5)
  assert verdict(fd.MinBlock(fd.Exact(), 9), acceptable=only_two) == (2, 5)


def test_ties_go_to_the_lowest_id():
  flat = np.zeros((1, 2, 4), np.float32)
  pair = Topology.chain(2)
  assert verdict(fd.Exact(), [3, 0], flat, pair) == (1, 0)
  assert verdict(fd.Exact(), [3, 1], flat, pair) == (0, 0)
  assert verdict(fd.TopN(2), [3, 1], flat, pair) == (1, 0)
  assert verdict(fd.TopN(2), [3, 2], flat, pair) == (0, 0)


def test_tree_longest_then_likeliest_then_lowest():
  # nodes 1 2 3 below the root, 4 below 1, 5 below 2
  tree = Topology.from_choices([[0], [1], [2], [0, 0], [1, 0]])
  logits = np.zeros((1, 6, 8), np.float32)
  logits[0, 0, [1, 2, 3]] = [5, 4, 3]  # after the root: 1, then 2, then 3
  logits[0, 1, 6] = logits[0, 2, 6] = 9  # after 1 and after 2: 6
  tokens = [7, 1, 2, 3, 6, 6]
  assert verdict(fd.Exact(), tokens, logits, tree)[0] == 4  # 1, 6
  assert verdict(fd.TopN(2), tokens, logits, tree)[0] == 4  # also 2, 6, less likely
  # now 1, 6 hangs below node 2
  assert verdict(fd.TopN(2), [7, 2, 1, 3, 6, 6], logits, tree)[0] == 5
  assert verdict(fd.TopN(2), [7, 1, 1, 3, 6, 6], logits, tree)[0] == 4  # duplicates: the lower node
  assert verdict(fd.Exact(), [7, 2, 3, 1, 6, 6], logits, tree)[0] == 3  # short but right


@struct.pytree
class Comparing(fd.Exact):
  """The exact rule, but it compares the deepest paths by likelihood although they are one text."""

  names_one = False


def test_the_exact_rule_needs_no_likelihoods():
  tree = Topology.from_choices([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]])
  rng = np.random.default_rng(0)
  for _ in range(50):
    logits, tokens = rng.normal(size=(1, tree.n, 4)), rng.integers(0, 4, tree.n)
    tokens[1:4] = rng.permutation(4)[:3]
    assert verdict(fd.Exact(), tokens, logits, tree) == verdict(Comparing(), tokens, logits, tree)


def test_no_rule_accepts_a_token_that_the_law_rules_out():
  logits = np.full((1, 3, 4), -np.inf, np.float32)
  logits[0, :, 3] = 0
  assert verdict(fd.TopN(4), [3, 0, 1], logits, Topology.from_choices([[0], [1]]))[0] == 0
  assert verdict(fd.MinBlock(fd.Exact(), 3), [3, 3, 1], logits, Topology.chain(3))[0] == 1


def test_min_block_needs_a_chain():
  with pytest.raises(fd.UserError, match='needs a chain'):
    verdict(fd.MinBlock(fd.Exact(), 2), [7, 1, 2], LOGITS[:, :3], Topology.from_choices([[0], [1]]))
