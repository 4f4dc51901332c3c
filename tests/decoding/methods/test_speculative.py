"""Speculative decoding writes what greedy decoding writes, and drafts what the draft model would
write."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.inputs import checked
from fastdec.struct import Bound
from tests.decoding.fakes import NEVER, PRIME, HashLM, Imitation, truths

MODEL, MAX_LEN = HashLM(), 20
LIES = {'identical': NEVER, 'good': 7, 'fair': 2, 'bad': 1}  # one in so many
DRAFTS = {name: (Imitation(), {'lies': jnp.int32(lies)}) for name, lies in LIES.items()}
rng = np.random.default_rng(0)
PROMPTS, LENGTHS = rng.integers(2, 14, (300, 5)).astype(np.int32), rng.integers(1, 6, 300)
EXPECTED = truths(MODEL, PROMPTS, LENGTHS, MAX_LEN)


def decoded(strategy, rows=slice(None), max_len=MAX_LEN, model=MODEL):
  return fd.decode(
    model, {}, PROMPTS[rows], strategy, prompt_lengths=LENGTHS[rows], max_len=max_len
  )


@pytest.mark.parametrize('adaptive', [False, True])
@pytest.mark.parametrize('gamma', [1, 5])
@pytest.mark.parametrize('draft', DRAFTS)
def test_greedy_is_lossless(draft, gamma, adaptive):
  out = decoded(fd.Speculative(DRAFTS[draft], gamma, adaptive=adaptive))
  np.testing.assert_array_equal(out.tokens, EXPECTED)
  np.testing.assert_array_equal(out.lengths, 1 + np.sum(out.block_sizes, axis=1))
  if adaptive:
    assert (out.draft_calls <= gamma * out.calls).all() and (out.draft_calls >= out.calls).all()
  else:
    np.testing.assert_array_equal(out.draft_calls, gamma * out.calls)


def test_drafts_of_every_quality_are_tested():
  sizes = [decoded(fd.Speculative(draft, 5)).mean_block_size for draft in DRAFTS.values()]
  assert sizes[0] > 3.5 and sizes == sorted(sizes, reverse=True) and sizes[-1] < 1.3


def test_an_identical_draft_is_accepted_whole():
  model = HashLM(eos_ids=())
  out = fd.decode(
    model, {}, PROMPTS, fd.Speculative((model, {}), 4), prompt_lengths=LENGTHS, max_len=1 + 3 * 5
  )
  assert (
    out.block_sizes[:, :3].tolist() == [[5, 5, 5]] * 300 and out.draft_calls.tolist() == [12] * 300
  )


@pytest.mark.parametrize('adaptive', [False, True])
def test_what_is_drafted_is_what_the_draft_model_would_write(adaptive):
  """After every kind of step: rows that accept all, some and none lie side by side."""
  rows, gamma, lies = 12, 3, 3
  target, max_len = Bound(HashLM(eos_ids=()), {}), 16
  strategy = fd.Speculative(
    (Imitation(eos_ids=()), {'lies': jnp.int32(lies)}), gamma, adaptive=adaptive
  )
  _, prompt, _ = checked(target.module, PROMPTS[:rows], LENGTHS[:rows], None, max_len, None)
  prompt = jax.device_put(prompt)  # for what is not compiled
  state = jax.jit(lambda: strategy.init(target, prompt, max_len, None))()
  propose = jax.jit(lambda s: strategy.drafter.propose(target, s.drafter, s.root, None)[0].tokens)
  step = jax.jit(lambda s: strategy.step(target, s))
  blocks = set()
  for _ in range(4):
    drafts, wanted, done = propose(state), state.drafter.gamma, state.done
    for i in np.flatnonzero(~done):
      known = [*PROMPTS[i, : LENGTHS[i]].tolist(), *state.tokens[i, : state.length[i]].tolist()]
      assert drafts[i, 1 : 1 + int(wanted[i])].tolist() == draft_oracle(known, int(wanted[i]), lies)
    before = state.length
    state = step(state)
    blocks |= set((state.length - before)[~done].tolist())
  assert blocks == {1, 2, 3, 4}


def draft_oracle(known, count, lies):
  """The most likely tokens by the definition, the whole prefix hashed for each."""
  drafts = []
  for _ in range(count):
    code = sum((token + 7) * (i * 31 + 5) * 13 % PRIME for i, token in enumerate(known + drafts))
    code = (code + (code % lies == lies - 1)) % PRIME
    drafts.append(
      max(range(1, MODEL.vocab_size), key=lambda v: ((code * (v * v + 3) + v * 17) % 101, -v))
    )
  return drafts


@pytest.mark.parametrize('adaptive', [False, True])
@pytest.mark.wide('True')
def test_batch_of_b_equals_b_batches_of_one(adaptive):
  strategy = fd.Speculative(DRAFTS['fair'], 4, temperature=2.0, adaptive=adaptive)
  keys = jax.random.split(jax.random.key(3), 6)
  given = {'strategy': strategy, 'max_len': MAX_LEN}
  together = fd.decode(MODEL, {}, PROMPTS[:6], prompt_lengths=LENGTHS[:6], key=keys, **given)
  for i in range(6):
    row = slice(i, i + 1)
    alone = fd.decode(MODEL, {}, PROMPTS[row], prompt_lengths=LENGTHS[row], key=keys[row], **given)
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
  """What only the draft knows is never drafted; what only the target knows is written all the
  same."""
  draft = HashLM(vocab_size=words)
  strategy = fd.Speculative((draft, {}), 3, same_ids=True)
  out = decoded(strategy)
  np.testing.assert_array_equal(out.tokens, EXPECTED)
  assert out.mean_block_size > (3 if words == 15 else 1.3)
  target = Bound(HashLM(suppressed_ids=(0, 5)), {})
  _, prompt, keys = checked(target.module, PROMPTS, LENGTHS, None, 4, jax.random.key(0))
  prompt = jax.device_put(prompt)  # for what is not compiled
  sampling = dataclasses.replace(strategy, temperature=30.0)
  state = sampling.init(target, prompt, 4, keys)
  drafted, _ = sampling.drafter.propose(target, state.drafter, state.root, keys)
  q_bnv = np.asarray(drafted.probabilities)
  assert q_bnv.shape == (300, 4, 14) and not q_bnv[:, 0].any() and not q_bnv[..., [0, 5]].any()
  np.testing.assert_allclose(q_bnv[:, 1:].sum(-1), 1, rtol=1e-5)
  assert q_bnv[..., 13].any() == (words == 15)


def test_the_draft_begins_with_its_own_start_token():
  target = Bound(HashLM(start_id=5), {})
  _, prompt, _ = checked(target.module, PROMPTS[:1], None, None, 4, None)
  prompt = jax.device_put(prompt)  # for what is not compiled
  state = fd.Speculative((HashLM(start_id=3), {})).init(target, prompt, 4, None)
  assert state.drafter.cache.layers[0].v[0, 0, 0, 0] == (3 + 7) * 5 * 13


def test_lenience_at_temperature_0_keeps_nearly_best_drafts():
  exact, strict, loose = (
    decoded(fd.Speculative(DRAFTS['fair'], 4, rule=rule))
    for rule in (None, fd.Rejection(), fd.Rejection(lenience=0.1))
  )
  np.testing.assert_array_equal(strict.tokens, exact.tokens)
  assert loose.mean_block_size > strict.mean_block_size and (loose.tokens != exact.tokens).any()


@pytest.mark.parametrize(('make', 'words'), [
  (lambda: fd.Speculative((MODEL, {}), temperature=1.0, rule=fd.Exact()), 'Exact does not sample'),
  (lambda: fd.Rejection(0), 'lenience=0 is not possible'),
  (lambda: fd.Rejection(1.5), 'lenience=1.5 is not possible'),
  (lambda: decoded(fd.Speculative((HashLM(vocab_size=20), {}))), 'has 20 tokens and the target 14'),
  (lambda: decoded(fd.Speculative((MODEL, {}), temperature=1.0)), 'key=jax.random.key'),
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
  greedy = fd.decode(MODEL, {}, prompt, fd.Greedy(), max_len=20)
  out = fd.decode(MODEL, {}, prompt, fd.Speculative((HashLM(max_positions=39), {})), max_len=20)
  np.testing.assert_array_equal(out.tokens, greedy.tokens)
  with pytest.raises(
    fd.UserError, match="a prompt of 20 tokens and max_len=21 exceed the draft model's 39"
  ):
    fd.decode(MODEL, {}, prompt, fd.Speculative((HashLM(max_positions=39), {})), max_len=21)


def test_sizes_that_differ_by_padding_are_one_vocabulary():
  big, padded = HashLM(vocab_size=300), HashLM(vocab_size=302)
  out = decoded(fd.Speculative((padded, {})), rows=slice(4), max_len=5, model=big)
  np.testing.assert_array_equal(
    out.tokens, decoded(fd.Greedy(), rows=slice(4), max_len=5, model=big).tokens
  )
  with pytest.raises(fd.UserError, match='has 302 tokens and the target 300'):
    decoded(fd.Speculative((HashLM(vocab_size=302, eos_ids=(2,)), {})), rows=slice(4), model=big)
