"""Scores of known texts, against decoding step by step and against sums in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.score import _score
from tests.decoding.fakes import HashLM, logits_by_hand
from tests.decoding.methods_table import LOSSLESS, hash_kit

MODEL = HashLM()
PROMPTS = np.array([[3, 4, 5], [6, 0, 0]], np.int32)
LENGTHS = np.array([3, 1])


def logits_of(prompt, target):
  """The logits that predict each token of the target, by one prefix after the other."""
  return [logits_by_hand([*prompt, *target[:i]], MODEL.vocab_size) for i in range(len(target))]


def by_hand(prompt, target):
  """The log-probability of each token of the target."""
  return [
    logits[token] - np.logaddexp.reduce(logits)
    for token, logits in zip(target, logits_of(prompt, target), strict=True)
  ]


def test_each_token_is_scored_given_all_before_it():
  targets = np.array([[7, 8, 2, 1, 0], [9, 1, 0, 0, 0]], np.int32)
  scores = fd.score(MODEL, {}, PROMPTS, targets, prompt_lengths=LENGTHS)
  assert scores.lengths.tolist() == [4, 2]
  for row, (prompt, target) in enumerate((([3, 4, 5], [7, 8, 2, 1]), ([6], [9, 1]))):
    expected = by_hand(prompt, target)
    np.testing.assert_allclose(scores.tokens[row, : len(target)], expected, rtol=1e-5)
    assert not scores.tokens[row, len(target) :].any()
    np.testing.assert_allclose(scores.total[row], sum(expected), rtol=1e-5)


def test_which_tokens_greedy_decoding_would_write_there():
  """All tokens of its own text, and in other texts each token that is the most likely one after the
  tokens before."""
  greedy = fd.decode(MODEL, {}, PROMPTS, fd.Greedy(), LENGTHS, max_len=6)
  own = fd.score(MODEL, {}, PROMPTS, greedy.tokens, greedy.lengths, LENGTHS)
  assert (own.best == (np.arange(6) < np.asarray(greedy.lengths)[:, None])).all()
  targets = np.random.default_rng(0).integers(2, 14, (2, 24)).astype(np.int32)
  best = fd.score(MODEL, {}, PROMPTS, targets, prompt_lengths=LENGTHS).best
  # 0 is suppressed
  leading = [int(logits[1:].argmax()) + 1 for logits in logits_of([6], targets[1].tolist())]
  assert best[1].tolist() == (targets[1] == leading).tolist() and 0 < best[1].sum() < 24


def test_more_positions_than_have_logits_at_a_time():
  targets = np.random.default_rng(0).integers(2, 14, (2, 37)).astype(np.int32)
  scores = fd.score(MODEL, {}, PROMPTS, targets, prompt_lengths=LENGTHS)
  np.testing.assert_allclose(scores.tokens[1], by_hand([6], targets[1].tolist()), rtol=1e-4)


def test_beam_scores_are_the_forced_ones():
  out = fd.decode(MODEL, {}, PROMPTS, fd.Beam(4, length_penalty=0.0, n_best=4), LENGTHS, max_len=6)
  for i in range(4):
    forced = fd.score(MODEL, {}, PROMPTS, out.nbest_tokens[:, i], prompt_lengths=LENGTHS)
    np.testing.assert_allclose(out.nbest_scores[:, i], forced.total, rtol=1e-5)


NARROW = ('greedy', 'tree', 'lookahead')
WIDE = (pytest.param(name, marks=pytest.mark.slow) for name in LOSSLESS if name not in NARROW)


@pytest.mark.parametrize('name', [*NARROW, *WIDE])
def test_what_is_noted_while_decoding_is_what_scoring_gives(name):
  """Log-probabilities are of the model's own law, whatever processors change. Also in a pool."""
  how = {'max_len': 12, 'logprobs': 3, 'processors': fd.Processors(repetition_penalty=1.5)}
  strategy = LOSSLESS[name](hash_kit())
  out = fd.decode(MODEL, {}, PROMPTS, strategy, LENGTHS, **how)
  scores = fd.score(MODEL, {}, PROMPTS, out.tokens, out.lengths, LENGTHS)
  np.testing.assert_allclose(out.logprobs, scores.tokens, rtol=1e-5)
  if name == 'greedy':
    pool = fd.decode_all(MODEL, {}, [[3, 4, 5], [6]], strategy, **how)
    jax.tree.map(
      np.testing.assert_array_equal, (pool.logprobs, pool.top_ids), (out.logprobs, out.top_ids)
    )
  text = out.tokens[0, : out.lengths[0]].tolist()
  for i, logits in enumerate(logits_of([3, 4, 5], text)):
    best = 1 + np.argsort(-logits[1:], kind='stable')[:3]  # 0 is suppressed
    assert out.top_ids[0, i].tolist() == best.tolist()
    law = logits - np.logaddexp.reduce(logits)
    np.testing.assert_allclose(out.top_logprobs[0, i], law[best], rtol=1e-5)


def test_a_beams_text_is_scored_with_the_likeliest_tokens():
  how = {'max_len': 6, 'logprobs': 3}
  out = fd.decode(MODEL, {}, PROMPTS, fd.Beam(3), LENGTHS, **how)
  forced = fd.score(MODEL, {}, PROMPTS, out.tokens, out.lengths, LENGTHS, logprobs=3)
  for name in ('logprobs', 'top_logprobs', 'top_ids'):
    expected = forced.tokens if name == 'logprobs' else getattr(forced, name)
    np.testing.assert_allclose(getattr(out, name), expected, rtol=1e-5)
  text = out.tokens[0, : out.lengths[0]].tolist()
  for i, logits in enumerate(logits_of([3, 4, 5], text)):
    assert out.top_ids[0, i].tolist() == (1 + np.argsort(-logits[1:], kind='stable')[:3]).tolist()
  assert not np.asarray(out.top_ids)[0, len(text) :].any()


@pytest.mark.slow
def test_a_pool_scores_beams_as_a_batch_does():
  inputs, how = [[3, 4, 5], [6], [7, 8], [2, 9]], {'max_len': 6, 'logprobs': 3}
  out = fd.decode(MODEL, {}, inputs, fd.Beam(3), **how)
  pool = fd.decode_all(MODEL, {}, inputs, fd.Beam(3), rows=2, **how)
  np.testing.assert_array_equal(pool.top_ids, out.top_ids)
  np.testing.assert_allclose(pool.logprobs, out.logprobs, rtol=1e-5)


def test_a_stream_s_tokens_know_what_decoding_notes():
  how = {'max_len': 12, 'logprobs': 3, 'processors': fd.Processors(repetition_penalty=1.5)}
  strategy = LOSSLESS['tree'](hash_kit())
  out = fd.decode(MODEL, {}, PROMPTS, strategy, LENGTHS, **how)
  blocks = list(fd.stream(MODEL, {}, PROMPTS, strategy, LENGTHS, **how))
  assert max(len(block[0]) for block in blocks) > 1
  for row in range(2):
    streamed = [token for block in blocks for token in block[row]]
    assert streamed == out.written(row) == out.tokens[row, : out.lengths[row]].tolist()
    for i, token in enumerate(streamed):
      assert token.logprob == out.logprobs[row, i]
      assert list(token.top_logprobs) == out.top_ids[row, i].tolist()
      assert list(token.top_logprobs.values()) == out.top_logprobs[row, i].tolist()
  with pytest.raises(fd.UserError, match='Beam cannot stream'):
    fd.stream(MODEL, {}, PROMPTS, fd.Beam(3), LENGTHS, logprobs=1)


def test_what_is_never_emitted_is_impossible():
  scores = fd.score(MODEL, {}, PROMPTS, np.array([[3, 0, 1], [3, 4, 1]]), prompt_lengths=LENGTHS)
  assert scores.total[0] == -jnp.inf and np.isfinite(scores.total[1])


@pytest.mark.parametrize(('targets', 'more', 'words'), [
  (np.zeros((3, 2), int), {}, 'inputs have 2 rows'),
  (np.full((2, 2), 14), {}, 'knows 0 to 13'), (np.zeros(4, int), {}, 'shape'),
  (np.ones((2, 2), int), {'target_lengths': [1, 3]}, '2 numbers from 0 to 2'),
  (np.ones((2, 2), int), {'target_lengths': [1.0, 2.0]}, '2 numbers from 0 to 2'),
  ([[3, 4], [5]], {'target_lengths': [2, 2]}, "2 numbers from 0 to their target's own length"),
  (np.ones((2, 2), int), {'target_lengths': ['a', 'b']},
    'target_lengths must be 2 numbers, not list'),
])  # fmt: skip
def test_mistakes(targets, more, words):
  with pytest.raises(fd.UserError, match=words):
    fd.score(MODEL, {}, PROMPTS, targets, **more)


def test_one_program_for_all_calls_of_a_shape():
  targets = np.array([[7, 8], [9, 1]])
  fd.score(MODEL, {}, PROMPTS, targets)
  before = _score._cache_size()
  fd.score(MODEL, {}, PROMPTS, targets[::-1].copy(), target_lengths=[1, 2])
  assert _score._cache_size() == before
  assert jax.tree.leaves(fd.score(MODEL, {}, PROMPTS, targets))[0].dtype == jnp.float32
