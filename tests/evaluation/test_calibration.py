"""Ranks that are counted by hand, trees that no other tree of as many nodes beats, and what a tree promises."""

import itertools

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.evaluation import calibration
from fastdec.evaluation.calibration import NOTHING, Tree, accuracy, best_nodes, grow, head_ranks
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig

RANKS = np.array([[0, 0], [0, 1], [0, 0], [1, 0], [2, NOTHING], [0, NOTHING]])


def test_a_tree_grows_by_what_was_right_most_often():
  tree = grow(RANKS, 6)
  assert tree.choices == ((0,), (0, 0), (1,), (2,), (0, 1))
  assert tree.rates == pytest.approx((4 / 6, 2 / 6, 1 / 6, 1 / 6, 1 / 6))
  assert tree.tokens_per_call == pytest.approx(1 + 9 / 6)
  assert tree.cut(3) == grow(RANKS, 3) and grow(RANKS, 1).choices == ()


def test_it_ends_where_nothing_else_was_ever_right():
  assert len(grow(RANKS, 100).choices) == 6


@pytest.mark.parametrize('nodes', [2, 3, 4, 5])
def test_no_tree_of_as_many_nodes_holds_more(nodes):
  ranks = np.random.default_rng(0).geometric(0.5, (200, 2)) - 1
  paths = [(a,) for a in range(3)] + [(a, b) for a in range(3) for b in range(3)]
  rate = {path: (ranks[:, : len(path)] == path).all(1).mean() for path in paths}
  trees = (set(chosen) for chosen in itertools.combinations(paths, nodes - 1))
  best = max(sum(rate[path] for path in tree) for tree in trees if all(path[:1] in tree for path in tree))
  assert sum(grow(ranks, nodes).rates) == pytest.approx(best)


def test_accuracy_counts_where_there_was_something_to_guess():
  assert accuracy(RANKS, 1) == pytest.approx((4 / 6, 3 / 4))
  assert accuracy(RANKS, 2) == pytest.approx((5 / 6, 1))


def test_the_budget_is_of_tokens_a_second():
  tree = Tree(((0,), (1,), (2,), (3,)), (0.6, 0.2, 0.1, 0.05))
  assert best_nodes(tree, {1: 1.0, 2: 1.0, 5: 1.0}) == 5  # wide calls cost nothing more
  assert best_nodes(tree, {1: 1.0, 2: 3.0, 5: 9.0}) == 1  # each node costs two calls
  assert best_nodes(tree, {1: 1.0, 2: 1.1, 5: 2.0}) == 2


V, MAX_LEN = 13, 24
SIZES = {'vocab_size': V, 'd_model': 8, 'd_ff': 12, 'heads': 2}
MODELS = {
  'lm': LM(LMConfig(**SIZES, layers=1, eos_ids=(3,), suppressed_ids=(0,))),
  'transformer': Transformer(TransformerConfig(**SIZES, encoder_layers=1, decoder_layers=1)),
}


def noisy(params, seed):
  keys = iter(jax.random.split(jax.random.key(seed), 1000))
  return jax.tree.map(lambda x: x + 0.5 * jax.random.normal(next(keys), x.shape, x.dtype), params)


@pytest.mark.parametrize('name', MODELS)
def test_decoding_accepts_what_the_ranks_promise(name):
  """Every block of a decode on the tree is the longest of its paths that the ranks at the block's root follow."""
  model, heads = MODELS[name], MedusaHeads(depth=3, d_model=8)
  params, head_params = noisy(model.init(jax.random.key(0)), 1), noisy(heads.init(jax.random.key(0)), 2)
  inputs = np.random.default_rng(0).integers(4, V, (6, 5)).astype(np.int32)
  lengths = None
  if model.start_id is None:
    lengths = np.array([5, 2, 4, 1, 3, 5])
    inputs = np.where(np.arange(5) < lengths[:, None], inputs, model.pad_id)
  texts = fd.decode(model, params, inputs, fd.Greedy(), lengths, max_len=MAX_LEN)
  ranks = head_ranks((model, params), (heads, head_params), inputs, texts, lengths)
  tree = calibration.grow(ranks, 12)
  assert {len(path) for path in tree.choices} >= {1, 2}
  ours = fd.decode(model, params, inputs, fd.Medusa((heads, head_params), tree.choices), lengths, max_len=MAX_LEN)
  np.testing.assert_array_equal(ours.tokens, texts.tokens)

  later = np.asarray(texts.lengths) - 1
  by_row = np.split(ranks, np.cumsum(later)[:-1])
  for row, sizes, end in zip(by_row, np.asarray(ours.block_sizes), later, strict=True):
    place, expected = 0, []
    while place < end:
      accepted = max(d for d in range(4) if d == 0 or tuple(row[place, :d]) in tree.choices)
      expected.append(min(accepted + 1, end - place))
      place += expected[-1]
    assert sizes[sizes > 0].tolist() == expected
  assert tree.tokens_per_call == pytest.approx(
    1 + np.mean([max(d for d in range(4) if d == 0 or tuple(row[:d]) in tree.choices) for row in ranks])
  )
