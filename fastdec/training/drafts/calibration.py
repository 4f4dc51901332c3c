"""Calibration of drafts: a temperature for each guess, so that 70 % of guesses at 0.7 are right.

Trees branch by the products of confidences along a path. So the temperatures are fitted one after
the other, each on the product of its guess's confidence and those before it (sequential temperature
scaling). The text is held out and written by the target. As in decoding, each guess follows the
draft's own guesses.
"""

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec.errors import UserError
from fastdec.heads.words import ids_of
from fastdec.struct import Bound
from fastdec.training.drafts.kept import read_batch
from fastdec.training.losses import Batch

GRID = np.geomspace(0.25, 4, 33).astype(np.float32)  # neighbours are 9 per cent apart


def fit_temperatures(
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
    parts.append(jax.device_get(_judge_own_guesses(draft, target, batch, passes, anchors)))
  if not parts:
    raise UserError('a draft is calibrated on held-out text, and there is none: give some')
  joined = [np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True)]
  return pick_temperatures(*joined)


def pick_temperatures(
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
def _judge_own_guesses(
  draft: Bound, target: Bound, batch: Batch, passes: int, anchors: int
) -> tuple[Float[Array, 'g n m'], Bool[Array, 'n m'], Bool[Array, 'n m']]:
  """Lets a draft guess after its own guesses.

  Returns confidences at each temperature, and masks of the right guesses and of the real ones.
  """
  module, params = draft
  lesson = read_batch(batch, target, module.taps, anchors)
  chosen, tokens = lesson.anchors, lesson.tokens
  before, carry = chosen.take(tokens), None
  confidences, right = [], []

  def guess(i: int, state: Float[Array, 'b a d']) -> Int[Array, 'b a']:
    """Guesses after the draft's own guess before, as decoding does."""
    nonlocal before, carry
    if carry is None:
      carry = module.start_carry(state)
    logits, carry = module.guess_logits(params, target, state, before, carry, True, i)
    before = ids_of(params, logits.argmax(-1).astype(jnp.int32))
    confidences.append(_confidences(logits))
    right.append((before == chosen.take(tokens, i + 1)).reshape(-1))
    return before

  n = len(module.training_rows(params, lesson, passes, guess=guess))
  real = [chosen.follows(lesson.segments, i + 1).reshape(-1) for i in range(n)]
  return jnp.stack(confidences, axis=1), jnp.stack(right), jnp.stack(real)


def _confidences(logits: Float[Array, 'b a w']) -> Float[Array, 'g m']:
  """Returns the best word's probability at each temperature of GRID."""

  def at(warmth: Float[Array, '']) -> Float[Array, 'b a']:
    return jnp.exp((logits.max(-1) / warmth) - jax.nn.logsumexp(logits / warmth, axis=-1))

  return jax.lax.map(at, jnp.asarray(GRID)).reshape(len(GRID), -1)
