"""Alpha in its two ways, on models whose laws are written down and on blocks counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.protocol import Decoded
from fastdec.evaluation.acceptance import (
  accepted_by_place,
  accepted_share,
  betas,
  repeated_share,
  tokens_per_call,
)
from fastdec.models.ngram import NGram
from tests.decoding.fakes import HashLM, Imitation

MODEL = NGram(4, successors=4)
P = np.array(
  [[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.0, 0.1, 0.2, 0.7], [0.5, 0.2, 0.2, 0.1]]
)
Q = np.array(
  [[0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25], [0.1, 0.1, 0.1, 0.7], [0.1, 0.2, 0.6, 0.1]]
)


def bigram(law):
  """Parameters of a bigram model of just these laws."""
  ids = np.tile(np.arange(4, dtype=np.int32), (4, 1))
  values = {'unigram': np.full(4, 0.25), 'ids': ids, 'shares': law, 'rest': np.zeros(4)}
  return {
    name: jnp.asarray(value, value.dtype if name == 'ids' else jnp.float32)
    for name, value in values.items()
  }


def texts(*rows, block_sizes=None):
  """Makes a padded result of a decode."""
  wide = lambda values: jnp.asarray([[*row, *[0] * (10 - len(row))] for row in values], jnp.int32)
  blocks = wide(block_sizes or [[1] * (len(row) - 1) for row in rows])
  calls = (blocks > 0).sum(1)
  lengths = jnp.asarray([len(row) for row in rows], jnp.int32)
  return Decoded(wide(rows), lengths, blocks, calls, calls, np.ones(len(rows), bool))


def test_beta_is_what_the_laws_have_in_common_after_each_word_of_the_text():
  written = texts([2, 3, 0, 1], [3, 1])
  shares = betas((MODEL, bigram(P)), (MODEL, bigram(Q)), np.array([[0], [2]]), written, 1.0)
  overlap = np.minimum(P, Q).sum(1)
  np.testing.assert_allclose(shares, [overlap[2], overlap[3], overlap[0], overlap[3]], rtol=1e-5)


def test_at_temperature_0_beta_says_whether_the_most_likely_words_agree():
  shares = betas(
    (MODEL, bigram(P)), (MODEL, bigram(Q)), np.array([[0], [2]]), texts([2, 3, 0, 1], [2, 1]), 0.0
  )
  np.testing.assert_array_equal(shares, (P.argmax(1) == Q.argmax(1))[[2, 3, 0, 2]])


def test_a_temperature_is_of_both_laws():
  shares = betas((MODEL, bigram(P)), (MODEL, bigram(Q)), np.array([[1]]), texts([3, 1]), 0.5)
  sharp = lambda law: law**2 / (law**2).sum()
  np.testing.assert_allclose(shares, [np.minimum(sharp(P[3]), sharp(Q[3])).sum()], rtol=1e-5)


def test_a_model_is_always_of_its_own_opinion():
  shares = betas((MODEL, bigram(P)), (MODEL, bigram(P)), np.array([[0]]), texts([2, 3, 0, 1]), 1.0)
  np.testing.assert_allclose(shares, 1, rtol=1e-5)


def test_a_draft_of_fewer_words_finds_the_others_impossible():
  small = NGram(3)
  law = {'unigram': jnp.asarray([0.2, 0.3, 0.5], jnp.float32)}
  shares = betas((MODEL, bigram(P)), (small, law), np.array([[0]]), texts([2, 1]), 1.0)
  np.testing.assert_allclose(shares, [0.0 + 0.1 + 0.2], rtol=1e-5)


def test_betas_foretell_what_rejection_accepts():
  model, prompts = NGram(4, eos_ids=()), np.zeros((2000, 1), np.int32)
  target, draft = ((model, {'unigram': jnp.asarray(law[0], jnp.float32)}) for law in (P, Q))
  strategy = fd.Speculative(draft, gamma=2, sampling=fd.Sampling(1.0))
  found = fd.decode(*target, prompts, strategy, max_len=12, key=jax.random.key(0))
  assert betas(
    target, draft, prompts[:2], jax.tree.map(lambda x: x[:2], found), 1.0
  ) == pytest.approx(0.6, abs=1e-5)
  assert accepted_share(found, gamma=2) == pytest.approx(0.6, abs=0.02)


def test_agreement_foretells_what_greedy_decoding_accepts():
  prompts = np.random.default_rng(0).integers(2, 14, (64, 5))
  draft = Imitation(), {'lies': jnp.int32(4)}
  out = fd.decode(HashLM(), {}, prompts, fd.Speculative(draft, gamma=1), max_len=32)
  alpha = betas((HashLM(), {}), draft, prompts, out, 0.0).mean()
  assert 0.6 < alpha < 0.9 and accepted_share(out, gamma=1) == pytest.approx(alpha, abs=0.06)


def test_the_share_that_blocks_tell():
  assert accepted_share(texts([2] * 9, block_sizes=[[4, 2, 2]]), gamma=3) == pytest.approx(5 / 6)
  assert accepted_share(texts([2] * 2, [2] * 3, block_sizes=[[1], [1, 1]]), gamma=3) == 0
  assert np.isnan(accepted_share(texts([2] * 2, block_sizes=[[1]]), gamma=3))


def test_repeated_4_grams():
  assert repeated_share(texts([5, 6, 7, 8, 5, 6, 7, 8], [5, 6])) == pytest.approx(1 / 5)
  assert np.isnan(repeated_share(texts([5, 6])))


def test_acceptance_by_place_is_of_calls_that_came_there():
  one = texts(range(9), block_sizes=[[4, 2, 2]])
  assert accepted_by_place(one, 3) == (1.0, 0.5, 1.0)
  both = texts(range(9), range(3), block_sizes=[[4, 2, 2], [1, 1]])
  assert accepted_by_place(both, 3) == (3 / 4, 0.5, 1.0)
  assert np.isnan(accepted_by_place(texts(range(2), block_sizes=[[1]]), 1)).all()


def test_tokens_a_call_with_the_interval_of_texts():
  """Texts have 3, 3 and 1 tokens a call. The ends of the interval come from samples of equal
  texts."""
  three = texts(range(7), range(4), range(4), block_sizes=[[3, 3], [3], [1, 1, 1]])
  assert tokens_per_call(three) == (2.0, 1.0, 3.0)
  assert tokens_per_call(three, slice(2)) == (3.0, 3.0, 3.0)
  assert tokens_per_call(three, np.array([False, False, True])) == (1.0,)
  assert np.isnan(tokens_per_call(texts(range(1), range(1)))).tolist() == [True]
