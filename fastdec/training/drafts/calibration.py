"""Calibration of drafts: a temperature for each guess, so that 70 % of guesses at 0.7 are right.

Trees branch by the products of confidences along a path. So the temperatures are fitted one after
the other, each on the product of its guess's confidence and those before it (sequential temperature
scaling). The text is held out and written by the target. As in decoding, each guess follows the
draft's own guesses.
"""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec.errors import UserError
from fastdec.heads.block import BlockNetwork
from fastdec.heads.words import suppress_words
from fastdec.struct import Bound
from fastdec.training.anchors import anchors_of
from fastdec.training.drafts.kept import seen_in
from fastdec.training.drafts.losses import no_carry
from fastdec.training.drafts.rows import block_rows, eagle_rows
from fastdec.training.losses import Batch

GRID = np.geomspace(0.25, 4, 33).astype(np.float32)  # neighbours are 9 per cent apart


def warmth_of(
  draft: Bound, target: Bound, batches: Iterable[Batch], passes: int, anchors: int = 0
) -> Float[np.ndarray, ' n']:
  """Fits a temperature for each guess of a draft.

  Decoding divides logits by it before their softmax, which gives confidences.

  Args:
    draft: the draft network and its parameters.
    target: the model and its parameters.
    batches: packed sentences that the draft was not trained on.
    passes: guesses of an autoregressive draft.
    anchors: number of places in each row to use; 0: all.
  """
  parts = []
  for batch in batches:
    parts.append(jax.device_get(_guessed(draft, target, batch, passes, anchors)))
  if not parts:
    raise UserError('a draft is calibrated on held-out text, and there is none: give some')
  joined = [np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True)]
  return fitted(*joined)


def fitted(
  confidence: Float[np.ndarray, 'g n m'],
  is_right: Bool[np.ndarray, 'n m'],
  is_real: Bool[np.ndarray, 'n m'],
) -> Float[np.ndarray, ' n']:
  """Picks, for each guess, the temperature of GRID with the least log loss.

  The loss is that of its confidence times those of the guesses before.

  Args:
    confidence: of each guess at each temperature, at m places.
    is_right: true if the guess is right.
    is_real: true if the text has a token there.
  """
  chosen = np.ones(is_right.shape[0], np.float32)
  product, accepted = np.ones(is_right.shape[1]), np.ones(is_right.shape[1], bool)
  for i, real in enumerate(is_real):
    accepted &= is_right[i]
    if not real.any():
      continue
    # log loss of a path's confidence, for each temperature of its last guess
    odds = np.clip(product * confidence[:, i], 1e-6, 1 - 1e-6)[:, real]
    loss = -np.where(accepted[real], np.log(odds), np.log1p(-odds)).mean(-1)
    best = int(loss.argmin())
    chosen[i], product = GRID[best], product * confidence[best, i]
  return chosen


@functools.partial(jax.jit, static_argnames=('passes', 'anchors'))
def _guessed(
  draft: Bound, target: Bound, batch: Batch, passes: int, anchors: int
) -> tuple[Float[Array, 'g n m'], Bool[Array, 'n m'], Bool[Array, 'n m']]:
  """Lets a draft guess after its own guesses.

  Returns confidences at each temperature, and masks of the right guesses and of the real ones.
  """
  seen = seen_in(batch, target, draft.module.taps)
  chosen = anchors_of(batch, anchors, jax.random.key(0))
  tokens, segments = jnp.asarray(batch['target']), jnp.asarray(batch['target_segment'])
  confidences, right = [], []

  def guess(
    i: int, state: Float[Array, 'b a d'], before: Array, carry: Array
  ) -> tuple[Array, Array]:
    logits, carry = _as_decoded(draft, target, state, before, carry)
    word: Int[Array, 'b a'] = draft.module.ids(draft.params, logits.argmax(-1).astype(jnp.int32))
    confidences.append(_confidences(logits))
    right.append((word == chosen.take(tokens, i + 1)).reshape(-1))
    return word, carry

  # A block has all states before its first guess; EAGLE's next state reads the guess before.
  module: Any = draft.module
  if isinstance(module, BlockNetwork):
    states = block_rows(draft, target, batch, seen, chosen)
    word, carry = chosen.take(tokens), no_carry(draft, states[0])
    for i, state in enumerate(states):
      word, carry = guess(i, state, word, carry)
  else:

    def own(i: int, state: Float[Array, 'b a d']) -> Int[Array, 'b a']:
      return guess(i, state, chosen.take(tokens), no_carry(draft, state))[0]

    states = eagle_rows(draft, target, batch, seen, chosen, passes, guess=own)
    own(len(states) - 1, states[-1])
  real = [chosen.follows(segments, i + 1).reshape(-1) for i in range(len(states))]
  return jnp.stack(confidences, axis=1), jnp.stack(right), jnp.stack(real)


def _as_decoded(
  draft: Bound,
  target: Bound,
  state: Float[Array, 'b a d'],
  before: Int[Array, 'b a'],
  carry: Float[Array, 'b a r'],
) -> tuple[Float[Array, 'b a w'], Float[Array, 'b a r']]:
  """Returns the logits by which trees grow; a block that keeps few candidates has no others."""
  module, params = draft
  logits = suppress_words(
    params, module.logits(params, target, state), target.module.suppressed_ids
  )
  if not isinstance(module, BlockNetwork):
    return logits, carry
  if module.choices < logits.shape[-1]:
    least = jax.lax.top_k(logits, module.choices)[0][..., -1:]
    logits = jnp.where(logits >= least, logits, -jnp.inf)
  if not module.markov:
    return logits, carry
  bias, carry = module.bias(params, before, None, state, carry)
  return logits + bias, carry


def _confidences(logits: Float[Array, 'b a w']) -> Float[Array, 'g m']:
  """Returns the best word's probability at each temperature of GRID."""

  def at(warmth: Float[Array, '']) -> Float[Array, 'b a']:
    return jnp.exp((logits.max(-1) / warmth) - jax.nn.logsumexp(logits / warmth, axis=-1))

  return jax.lax.map(at, jnp.asarray(GRID)).reshape(len(GRID), -1)
