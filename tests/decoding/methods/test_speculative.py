"""Speculative decoding writes the greedy text, and its drafts are what the draft model would
write."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.inputs import check_inputs
from fastdec.struct import Bound
from tests.decoding.fakes import NEVER, HashLM, Imitation, truths

MODEL, MAX_LEN = HashLM(), 20
LIES = {'identical': NEVER, 'good': 7, 'fair': 2, 'bad': 1}  # one token in this many is wrong
DRAFTS = {name: (Imitation(), {'lies': jnp.int32(lies)}) for name, lies in LIES.items()}
rng = np.random.default_rng(0)
PROMPTS, LENGTHS = rng.integers(2, 14, (300, 5)).astype(np.int32), rng.integers(1, 6, 300)
EXPECTED = truths(MODEL, PROMPTS, LENGTHS, MAX_LEN)


def decoded(strategy, rows=slice(None), max_len=MAX_LEN, model=MODEL):
  return fd.decode(
    model, {}, PROMPTS[rows], strategy, prompt_lengths=LENGTHS[rows], max_len=max_len
  )


@pytest.mark.parametrize('gamma, adaptive', [(1, False), (1, True), (5, False), (5, True)])
@pytest.mark.slow  # test_strategies.py has it on other models
def test_greedy_is_lossless(gamma, adaptive):
  sizes = []
  for draft in DRAFTS.values():
    out = decoded(fd.Speculative(draft, gamma, adaptive=adaptive))
    np.testing.assert_array_equal(out.tokens, EXPECTED)
    np.testing.assert_array_equal(out.lengths, 1 + np.sum(out.block_sizes, axis=1))
    if adaptive:
      assert (out.draft_calls <= gamma * out.calls).all() and (out.draft_calls >= out.calls).all()
    else:
      np.testing.assert_array_equal(out.draft_calls, gamma * out.calls)
    sizes.append(out.mean_block_size)
  assert sizes == sorted(sizes, reverse=True) and sizes[-1] < 1.3  # drafts of every quality
  assert sizes[0] > (3.5 if gamma == 5 else 1.5)


@pytest.mark.parametrize('adaptive', [False, True])
@pytest.mark.wide('True')
def test_a_row_draws_among_others_what_it_draws_among_its_equals(adaptive):
  strategy = fd.Speculative(DRAFTS['fair'], 4, sampling=fd.Sampling(2.0), adaptive=adaptive)
  keys = jax.random.split(jax.random.key(3), 6)
  settings = {'strategy': strategy, 'max_len': MAX_LEN}
  together = fd.decode(MODEL, {}, PROMPTS[:6], prompt_lengths=LENGTHS[:6], key=keys, **settings)
  for i in range(6):
    row = np.array([i] * 6)  # six times, to use the same program
    prompts, lengths = PROMPTS[row], LENGTHS[row]
    alone = fd.decode(MODEL, {}, prompts, prompt_lengths=lengths, key=keys[row], **settings)
    for field in ('tokens', 'lengths', 'block_sizes', 'calls', 'draft_calls'):
      np.testing.assert_array_equal(
        getattr(alone, field)[0], getattr(together, field)[i], err_msg=field
      )


def test_gamma_follows_the_acceptance():
  calls = {}
  for name in ('identical', 'bad'):
    out = decoded(fd.Speculative(DRAFTS[name], 5, adaptive=True))
    calls[name] = np.sum(out.draft_calls) / np.sum(out.calls)
  assert calls['identical'] == 5 and calls['bad'] < 2.5


@pytest.mark.parametrize('words', [13, 15])
@pytest.mark.wide('15')
def test_a_draft_of_another_vocabulary_size(words):
  """Tokens that only the draft knows are never drafted; tokens that only the target knows are still
  written."""
  draft = HashLM(vocab_size=words)
  strategy = fd.Speculative((draft, {}), 3, same_ids=True)
  out = decoded(strategy)
  np.testing.assert_array_equal(out.tokens, EXPECTED)
  assert out.mean_block_size > (3 if words == 15 else 1.3)
  target = Bound(HashLM(suppressed_ids=(0, 5)), {})
  _, prompt, keys = check_inputs(target.module, PROMPTS, LENGTHS, None, 4, jax.random.key(0))
  sampling = dataclasses.replace(strategy, sampling=fd.Sampling(30.0))

  @jax.jit
  def laws(prompt):
    state = sampling.init(target, prompt, 4, keys)
    return sampling.drafter.propose(target, state.drafter, state.root, keys)[0].probabilities

  q_bnv = np.asarray(laws(prompt))
  assert q_bnv.shape == (300, 4, 14) and not q_bnv[:, 0].any() and not q_bnv[..., [0, 5]].any()
  np.testing.assert_allclose(q_bnv[:, 1:].sum(-1), 1, rtol=1e-5)
  assert q_bnv[..., 13].any() == (words == 15)


def test_the_draft_begins_with_its_own_start_token():
  target = Bound(HashLM(start_id=5), {})
  _, prompt, _ = check_inputs(target.module, PROMPTS[:1], None, None, 4, None)
  strategy = fd.Speculative((HashLM(start_id=3), {}))
  state = jax.jit(lambda prompt: strategy.init(target, prompt, 4, None))(prompt)
  assert state.drafter.cache.layers[0].v[0, 0, 0, 0] == (3 + 7) * 5 * 13


def test_lenience_at_temperature_0_keeps_nearly_best_drafts():
  exact, strict, loose = (
    decoded(fd.Speculative(DRAFTS['fair'], 4, rule=rule))
    for rule in (None, fd.Rejection(), fd.Rejection(lenience=0.1))
  )
  np.testing.assert_array_equal(strict.tokens, exact.tokens)
  assert loose.mean_block_size > strict.mean_block_size and (loose.tokens != exact.tokens).any()


@pytest.mark.parametrize(('make', 'words'), [
  (lambda: fd.Speculative((MODEL, {}), sampling=fd.Sampling(1.0), rule=fd.Exact()),
    'Exact does not sample'),
  (lambda: fd.Rejection(0), 'lenience=0 is not possible'),
  (lambda: fd.Rejection(1.5), 'lenience=1.5 is not possible'),
  (lambda: decoded(fd.Speculative((HashLM(vocab_size=20), {}))), 'has 20 tokens and the target 14'),
  (lambda: decoded(fd.Speculative((MODEL, {}), sampling=fd.Sampling(1.0))), 'key=jax.random.key'),
  (lambda: decoded(fd.Speculative((HashLM(start_id=0), {}))),
    'has an encoder, and the target has none'),
  (lambda: decoded(fd.Speculative((HashLM(max_positions=9), {}))),
    "exceed the draft model's 9 positions"),
])  # fmt: skip
def test_mistakes(make, words):
  with pytest.raises(fd.UserError, match=words):
    make()


def test_a_draft_model_needs_positions_for_tokens_and_not_for_padding():
  """20 + 20 tokens are 39 positions; padded they would be 32 + 32."""
  prompt = np.arange(20)[None] % 11 + 2
  out = fd.decode(MODEL, {}, prompt, fd.Speculative((HashLM(max_positions=39), {})), max_len=20)
  np.testing.assert_array_equal(out.tokens, truths(MODEL, prompt, [20], 20))
  with pytest.raises(
    fd.UserError, match="a prompt of 20 tokens and max_len=21 exceed the draft model's 39"
  ):
    fd.decode(MODEL, {}, prompt, fd.Speculative((HashLM(max_positions=39), {})), max_len=21)


def test_sizes_that_differ_by_padding_are_one_vocabulary():
  big, padded = HashLM(vocab_size=300), HashLM(vocab_size=302)
  out = decoded(fd.Speculative((padded, {})), rows=slice(4), max_len=5, model=big)
  np.testing.assert_array_equal(out.tokens, truths(big, PROMPTS[:4], LENGTHS[:4], 5))
  with pytest.raises(fd.UserError, match='has 302 tokens and the target 300'):
    decoded(fd.Speculative((HashLM(vocab_size=302, eos_ids=(2,)), {})), rows=slice(4), model=big)
