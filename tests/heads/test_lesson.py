"""A row sees the same in training as in decoding: training gives the logits of drafting step by
step over a cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.heads.anchors import anchors_of
from fastdec.heads.lesson import Lesson
from fastdec.models.encoder_decoder import Source
from fastdec.training.drafts.losses import make_guesses
from tests.training.drafts.small import (
  KINDS,
  MODELS,
  TAPS,
  apart,
  batch_of,
  bound,
  network,
  seen_by,
)

PASSES = 3
MASKS = {'entry': 'masks', 'unknown_id': 3, 'drops_first': True}
EAGLE = [
  ('translation', {}),
  ('translation', TAPS),
  ('lm', {'norms_last': False, 'join_bias': True, 'norms_first': False}),
  ('lm', TAPS | {'entry': 'beside', 'recycles_normed': False}),
]
BLOCK = [
  ('translation', {'markov_kind': 'rnn'}),
  ('translation', TAPS | MASKS),
  ('lm', {'markov_kind': 'gated'}),
  ('lm', TAPS | MASKS | {'drops_first': False}),
  ('lm', TAPS | KINDS['domino'] | {'bare': 0}),
  ('translation', TAPS | MASKS | {'causal': 'all', 'conv': 3, 'conv_group': 4}),
  ('lm', TAPS | {'unknown_id': 3, 'k': 4, 'keeps_normed': True}),  # P-EAGLE
]


def cache_of(draft, alone, seen, slots):
  source = None
  if seen.source is not None:
    source = Source(seen.source, alone['source_segment'] != 0)
  return draft.module.init_cache(draft.params, source, len(alone['target']), slots)


def eagle_steps(draft, target, alone, t):
  """Returns the logits [passes, sentences, v] of a draft that begins at place t of each sentence,
  with one call for each guess."""
  module, n = draft.module, alone['target'].shape[1]
  seen = seen_by(target, alone, module.taps)
  features = module.features(draft.params, seen.hidden, seen.taps)
  embedded = module.embedded(draft.params, target, alone['target'])
  b, slots = len(embedded), jnp.arange(n + PASSES)
  causal = jnp.broadcast_to(slots[None, None] <= jnp.arange(n)[None, :, None], (b, n, n + PASSES))
  cache, start = cache_of(draft, alone, seen, n + PASSES), jnp.zeros(b, jnp.int32)
  states, cache = module.read(
    draft.params, embedded, features, alone['target_position'], causal, cache, start
  )
  state = states[:, t][:, None]
  logits = [module.logits(draft.params, target, state[:, 0])]
  for j in range(1, PASSES):
    word, place = (
      embedded[:, jnp.minimum(t + j, n - 1)][:, None],
      jnp.full((b, 1), t + j, jnp.int32),
    )
    mask = jnp.broadcast_to(slots[None, None] <= t + j, (b, 1, n + PASSES))
    state, cache = module.read(draft.params, word, state, place, mask, cache, place[:, 0])
    logits.append(module.logits(draft.params, target, state[:, 0]))
  return jnp.stack(logits)


def block_steps(draft, target, alone, t):
  """The same of a one-pass draft, biased by the tokens that were written."""
  module, n = draft.module, alone['target'].shape[1]
  seen = seen_by(target, alone, module.taps)
  features = module.features(draft.params, seen.hidden, seen.taps)
  cache = cache_of(draft, alone, seen, n + module.rows)
  rows, cache = module.see(draft.params, target, features, alone['target'], cache)
  cache = cache.commit(None, jnp.full(len(features), t + 1, jnp.int32))
  states = module.read(draft.params, target, alone['target'][:, t], rows[:, t], cache)
  decoded, carry = [], module.start_carry(states[:, 0])
  for i in range(module.depth):
    before = alone['target'][:, jnp.minimum(t + i, n - 1)]
    logits, bias = module.logits(draft.params, target, states[:, i]), 0
    if module.markov:
      bias, carry = module.bias(draft.params, before, None, states[:, i], carry, target, i)
    decoded.append(logits + bias)
  return jnp.stack(decoded)


@jax.jit
def trained_logits(draft, target, batch, anchors):
  """Returns the guesses after the anchors, and their logits [passes, b, a, v]."""
  seen = seen_by(target, batch, draft.module.taps)
  rows = make_guesses(draft, Lesson(target, batch, seen, anchors), PASSES)
  by_row, carry = [], draft.module.start_carry(rows.states[0])
  for state, before in zip(rows.states, rows.before, strict=True):
    logits, carry = draft.module.guess_logits(draft.params, target, state, before, carry)
    by_row.append(logits)
  return rows, jnp.stack(by_row)


def check(draft, target, batch, steps):
  """Compares the logits of all anchors, and of a sample, in training with drafting at each."""
  alone, begins = apart(batch)
  at = jax.jit(lambda t: steps(draft, target, alone, t))
  drafted = {t: np.asarray(at(t)) for t in range(int(alone['target_position'].max()))}
  sample = anchors_of(batch, 3, jax.random.key(1))
  assert sample.place.shape == (3, 3)
  assert compared(draft, target, batch, begins, drafted, anchors_of(batch)) > 30
  assert 9 < compared(draft, target, batch, begins, drafted, sample) <= 27


def compared(draft, target, batch, begins, drafted, anchors):
  """Returns how many guesses have the logits of drafting."""
  rows, trained = jax.device_get(trained_logits(draft, target, batch, anchors))
  count = 0
  for i, row, column in np.argwhere(np.asarray(rows.is_real)):
    place = int(anchors.place[row, column])
    sentence = max(j for j, (r, begin) in enumerate(begins) if r == row and begin <= place)
    expected = drafted[place - begins[sentence][1]][i, sentence]
    np.testing.assert_allclose(
      trained[i][row, column], expected, atol=1e-5 * abs(expected).max(), rtol=0
    )
    count += 1
  return count


@pytest.mark.parametrize(('task', 'settings'), EAGLE)
@pytest.mark.wide('lm-settings2')
def test_an_unrolled_pass_is_what_drafting_step_by_step_makes_of_true_features_and_right_guesses(
  task, settings
):
  draft, target, batch = (
    bound(network('eagle', task, **settings), 3),
    bound(MODELS[task]),
    batch_of(task),
  )
  check(draft, target, batch, eagle_steps)


@pytest.mark.parametrize(('task', 'settings'), BLOCK)
@pytest.mark.wide('translation-settings0')
def test_the_rows_of_a_block_are_what_one_call_makes_of_the_features_before_the_root(
  task, settings
):
  draft, target, batch = (
    bound(network('parallel' if 'keeps_normed' in settings else 'block', task, **settings), 3),
    bound(MODELS[task]),
    batch_of(task),
  )
  check(draft, target, batch, block_steps)


@pytest.mark.slow
def test_a_draft_may_read_its_own_guesses_instead_of_the_text():
  """EAGLE reads its own guesses. Its rows are those of a batch that has these guesses as text,
  except for the target's features."""
  draft, target, batch = bound(network('eagle', 'lm'), 3), bound(MODELS['lm']), batch_of('lm')
  anchors, seen = anchors_of(batch), seen_by(target, batch)
  lesson = Lesson(target, batch, seen, anchors)
  rows = lambda guess=None: jax.jit(
    lambda params: draft.module.training_rows(params, lesson, PASSES, guess=guess)
  )(draft.params)
  forced, written = rows(), lambda i, state: anchors.take(batch['target'], i + 1)
  np.testing.assert_array_equal(rows(written), forced)
  other = rows(lambda i, state: written(i, state) * 0 + 5)
  np.testing.assert_array_equal(other[0], forced[0])
  assert not np.allclose(other[1], forced[1])
