"""Ranks counted by hand, trees that are the best of their size, and the rate that a tree
promises."""

import itertools
import math

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.evaluation.tree_calibration import Calibration
from fastdec.evaluation.tree_growth import (
  NEVER,
  NOTHING,
  Tree,
  accuracy,
  choose_nodes,
  grow,
  mark_calls,
  rank_guesses,
  tokens_per_call,
)
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig

# Two texts of four tokens and of three; two heads.
TEXTS = [np.array([[0, 0], [0, 1], [1, NOTHING]]), np.array([[0, 0], [2, NOTHING]])]
TREE = ((0,), (0, 0), (1,))


def test_calls_begin_where_the_last_one_stopped():
  # The first call of each text accepts two guesses and yields one token more, of which the second
  # text has none left.
  np.testing.assert_array_equal(mark_calls(TEXTS, TREE), [1, 0, 0, 1, 0])
  np.testing.assert_array_equal(mark_calls(TEXTS, ((0,),)), [1, 0, 1, 1, 0])
  np.testing.assert_array_equal(mark_calls(TEXTS, ()), [1, 1, 1, 1, 1])
  tokens = [tokens_per_call(TEXTS, Tree(choices, ())) for choices in (TREE, ((0,),), ())]
  assert tokens == pytest.approx([5 / 2, 5 / 3, 1])


def test_a_tree_grows_by_what_is_right_where_calls_begin():
  tree = grow(TEXTS, 3)
  # of the two calls that it takes
  assert tree.choices == ((0,), (0, 0)) and tree.rates == (1.0, 1.0)
  assert tree.cut(2) == Tree(((0,),), (1.0,)) and grow(TEXTS, 1).choices == ()


def test_what_no_head_can_draft_is_in_no_tree():
  texts = [np.array([[NEVER, 0], [NEVER, 1], [0, NEVER], [NEVER, NOTHING]])]
  assert grow(texts, 9).choices == ((0,),)
  assert accuracy(texts, top=5) == (0.25, 2 / 3)


def independent(heads, share, texts=300):
  """Ranks of heads that do not know of each other."""
  return [np.random.default_rng(i).geometric(share, (20, heads)) - 1 for i in range(texts)]


@pytest.mark.parametrize('nodes', [2, 3, 4, 5])
def test_no_tree_of_as_many_nodes_writes_more_where_all_tokens_are_alike(nodes):
  texts = independent(2, 0.5)
  paths = [(a,) for a in range(3)] + [(a, b) for a in range(3) for b in range(3)]
  trees = (set(chosen) for chosen in itertools.combinations(paths, nodes - 1))
  best = max(
    tokens_per_call(texts, Tree(tuple(tree), ()))
    for tree in trees
    if all(path[:1] in tree for path in tree)
  )
  assert tokens_per_call(texts, grow(texts, nodes)) == pytest.approx(best, rel=0.01)


def test_paths_fall_in_rate_and_follow_their_beginnings():
  tree = grow(independent(3, 0.4), 30)
  assert list(tree.rates) == sorted(tree.rates, reverse=True) and len(tree.choices) == 29
  assert all(path[:-1] in tree.choices[:i] for i, path in enumerate(tree.choices) if len(path) > 1)


def test_heads_that_err_in_clusters_are_judged_where_calls_begin():
  """Half of each text is easy, and one call writes all of it, so a second guess is hardly worth its
  cost."""
  hard = np.tile([[1, 1]], (4, 1))
  texts = [np.concatenate([np.zeros((12, 2), int), hard])] * 20
  tree = grow(texts, 3)
  assert tokens_per_call(texts, tree) >= tokens_per_call(texts, Tree(((0,), (0, 0)), ()))
  firsts = np.concatenate(texts)[mark_calls(texts, tree.choices), 0]
  assert tree.rates[0] == pytest.approx((firsts == tree.choices[0][0]).mean())


def test_accuracy_counts_where_there_was_something_to_guess():
  assert accuracy(TEXTS, 1) == pytest.approx((3 / 5, 2 / 3))
  assert accuracy(TEXTS, 2) == pytest.approx((4 / 5, 1))


def test_the_budget_is_of_tokens_a_second():
  tokens = {1: 1.0, 2: 1.6, 5: 1.95}
  assert choose_nodes(tokens, {1: 1.0, 2: 1.0, 5: 1.0}) == 5  # wide calls cost nothing more
  assert choose_nodes(tokens, {1: 1.0, 2: 3.0, 5: 9.0}) == 1  # each node costs two calls
  assert choose_nodes(tokens, {1: 1.0, 2: 1.1, 5: 2.0}) == 2


V, MAX_LEN = 13, 24
SIZES = {'vocab_size': V, 'd_model': 8, 'd_ff': 12, 'heads': 2}
MODELS = {
  'lm': LM(LMConfig(**SIZES, layers=1, eos_ids=(3,), suppressed_ids=(0,))),
  'transformer': Transformer(TransformerConfig(**SIZES, encoder_layers=1, decoder_layers=1)),
}


def noisy(params, seed):
  rng = np.random.default_rng(seed)
  noise = lambda x: 0.5 * rng.normal(size=x.shape).astype(x.dtype)
  return jax.tree.map(lambda x: x + noise(x), params)


@pytest.mark.parametrize('name, seeing', [
  ('lm', {}), ('transformer', {'rooted': True, 'markov': 3, 'words': V}),
], ids=['plain', 'rooted'])  # fmt: skip
@pytest.mark.wide('plain')
def test_decoding_accepts_what_the_ranks_promise(name, seeing):
  """Every block of a decode on the tree is the longest of its paths that the ranks at the block's
  root follow."""
  model, heads = MODELS[name], MedusaHeads(depth=3, d_model=8, **seeing)
  params, head_params = (
    noisy(jax.jit(model.init)(jax.random.key(0)), 1),
    noisy(jax.jit(heads.init)(jax.random.key(0)), 2),
  )
  inputs = np.random.default_rng(0).integers(4, V, (6, 5)).astype(np.int32)
  lengths = None
  if model.start_id is None:
    lengths = np.array([5, 2, 4, 1, 3, 5])
    inputs = np.where(np.arange(5) < lengths[:, None], inputs, model.pad_id)
  texts = fd.decode(model, params, inputs, fd.Greedy(), lengths, max_len=MAX_LEN)
  ranks = rank_guesses((model, params), (heads, head_params), inputs, texts, lengths)
  tree = grow(ranks, 12)
  assert {len(path) for path in tree.choices} >= {1, 2}
  ours = fd.decode(
    model, params, inputs, fd.Medusa((heads, head_params), tree.choices), lengths, max_len=MAX_LEN
  )
  np.testing.assert_array_equal(ours.tokens, texts.tokens)

  for row, sizes in zip(ranks, np.asarray(ours.block_sizes), strict=True):
    begins = np.flatnonzero(mark_calls([row], tree.choices))
    assert sizes[sizes > 0].tolist() == np.diff([*begins, len(row)]).tolist()
  assert tokens_per_call(ranks, tree) == pytest.approx(
    float((ours.lengths - 1).sum() / ours.calls.sum())
  )


def test_a_head_without_a_token_is_read_back_from_a_file(tmp_path):
  shares = {1: (0.5, math.nan), 5: (0.75, math.nan)}
  Calibration(Tree(((0,),), (0.5,)), shares, 3, {2: 1.5}, {}).save(tmp_path / 'tree.json')
  read = Calibration.load(tmp_path / 'tree.json').right
  np.testing.assert_array_equal(list(read.values()), list(shares.values()))
