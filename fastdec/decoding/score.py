"""Log-probabilities by the model itself, of existing outputs and of those that a decode writes."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.inputs import (
  check_prompt_positions,
  find_shared,
  make_prompt,
  pad_ids,
  read_numbers,
)
from fastdec.decoding.law import Emitted
from fastdec.decoding.prefill import capacity_of, memory_of, read_text
from fastdec.decoding.protocol import LOGPROB_FIELDS, Decoded, Draft, Prompt
from fastdec.decoding.sampling import best
from fastdec.decoding.settings import MOST_NODES, Whole, size
from fastdec.decoding.text import Text
from fastdec.errors import UserError
from fastdec.kernels.sharding import mesh_of, place_rows, using
from fastdec.models.api import Model, Params, check_model, suppress
from fastdec.models.taps import Taps
from fastdec.struct import Bound

POSITIONS = 16  # the most positions whose logits are in memory at once


@struct.pytree
class Scores:
  """Log-probabilities, in nats."""

  tokens: Float[Array, 'b t']  # of each target token given all before it; 0 past the end
  # true if greedy decoding would write that token there; false past the end
  best: Bool[Array, 'b t']
  total: Float[Array, ' b']  # the sums of `tokens`
  lengths: Int[Array, ' b']  # tokens counted
  # with `logprobs`: the n likeliest tokens of each place; 0 past the end
  top_logprobs: Float[Array, 'b t n'] | None = None
  top_ids: Int[Array, 'b t n'] | None = None


def score(
  model: Model,
  params: Params,
  inputs: Any,
  targets: Any,
  target_lengths: Any = None,
  prompt_lengths: Any = None,
  prefix: Any = None,
  logprobs: Whole = 0,
) -> Scores:
  """Returns the log-probability of each target token by the model itself, as beam search sums it.

  A token that is never emitted scores minus infinity. The model reads each token once, and long
  texts in chunks. Logits are computed for a few positions at a time and never kept.

  Args:
    model, params, inputs, prompt_lengths, prefix: as in `decode`.
    targets: int[b, t], outputs with their end token, padding after; or lists, unpadded.
    target_lengths: int[b], tokens of each target; None: up to the first end token, else all.
    logprobs: n, to get the n most likely tokens of each place too.

  Raises:
    UserError: as `decode`; targets of a wrong shape, with unknown ids, or beyond the model's
      positions.
  """
  check_model(model, params)
  top = check_logprobs(model, logprobs)
  targets, own_lengths = pad_ids('targets', targets, model.vocab_size, model.pad_id)
  prompt = make_prompt(model, inputs, prompt_lengths, prefix)
  b, t = targets.shape
  if len(prompt.tokens) != b or t < 1:
    rows = len(prompt.tokens)
    raise UserError(
      f'targets have shape [{b}, {t}], and inputs have {rows} rows: give one target for each'
    )
  check_prompt_positions(model, prompt, t)

  # The tokens that count in each target: the caller's number, or those up to the first end token.
  whole = np.full(b, t) if own_lengths is None else own_lengths
  if target_lengths is None:
    is_end = np.isin(targets, model.eos_ids)
    lengths = np.minimum(np.where(is_end.any(1), is_end.argmax(1) + 1, t), whole)
  else:
    lengths = read_numbers('target_lengths', target_lengths, f'{b} numbers')
  fits = lengths.shape == (b,) and lengths.dtype.kind in 'iu'
  if not fits or (lengths < 0).any() or (lengths > whole).any():
    most = t if (whole == t).all() else "their target's own length"
    raise UserError(f'target_lengths must be {b} numbers from 0 to {most}, not {lengths.tolist()}')

  mesh = mesh_of(params)
  prompt = prompt if mesh else find_shared(model, prompt)
  rows = (prompt, jnp.asarray(targets, jnp.int32), jnp.asarray(lengths, jnp.int32))
  with using(mesh):
    return _score(model, params, *place_rows(rows, mesh), top)


def check_logprobs(model: Model, logprobs: Any) -> int:
  """Returns `logprobs` as an int: how many of the most likely tokens to note; 0: note nothing.

  Raises:
    UserError: it is out of range.
  """
  most = min(model.vocab_size, MOST_NODES)
  allowed = f'0 for none, or how many tokens of a place, 1 to {most}'
  return size('logprobs', logprobs, 0, allowed, most)


def add_logprobs(target: Bound, prompt: Prompt, decoded: Decoded, top: int) -> Decoded:
  """Returns a result with the log-probabilities of its tokens, which the model reads again.

  A search needs that: most of what it could note on the way belongs to texts that it gives up.
  """
  prompt = dataclasses.replace(prompt, limit=None, slots=None)
  scores = _score(target.module, target.params, prompt, decoded.tokens, decoded.lengths, top)
  logprobs = (scores.tokens, scores.top_logprobs, scores.top_ids)
  return dataclasses.replace(decoded, **dict(zip(LOGPROB_FIELDS, logprobs, strict=True)))


@struct.pytree
class Logprobs:
  """Log-probabilities of each row's tokens so far."""

  length: Int[Array, ' b']
  logprobs: Float[Array, 'b t']
  top_logprobs: Float[Array, 'b t n']
  top_ids: Int[Array, 'b t n']

  @property
  def result(self) -> dict[str, Any]:
    """The arrays by their names in `Decoded`."""
    return {name: getattr(self, name) for name in LOGPROB_FIELDS}


@struct.pytree
class NotesLogprobs:
  """A law that changes nothing, and notes the log-probability of each token that is written.

  The values are those of `score`. It also notes the n most likely tokens of each place.
  """

  top: int = struct.static()
  suppressed_ids: tuple[int, ...] = struct.static()

  def init(self, model: Model, prompt: Prompt, max_len: int) -> Logprobs:
    """See `Law.init`."""
    b = len(prompt.tokens)
    zeros = jnp.zeros((b, max_len), jnp.float32)
    ids = jnp.zeros((b, max_len, self.top), jnp.int32)
    return Logprobs(jnp.zeros(b, jnp.int32), zeros, ids.astype(zeros.dtype), ids)

  def __call__(self, state: Logprobs, draft: Draft, logits: Array) -> Array:
    """See `Law`."""
    return logits

  def observe(self, state: Logprobs, emitted: Emitted) -> Logprobs:
    """See `Law.observe`."""
    logits = jnp.take_along_axis(emitted.logits, emitted.path[..., None], axis=1)
    log_p = suppress(jax.nn.log_softmax(logits), self.suppressed_ids)
    own = jnp.take_along_axis(log_p, emitted.tokens[..., None], axis=2)[..., 0]
    top, ids = best(log_p, self.top)

    dtype = state.logprobs.dtype
    logprobs = Text((state.logprobs, state.top_logprobs, state.top_ids), state.length)
    logprobs = logprobs.append((own.astype(dtype), top.astype(dtype), ids), emitted.count)
    return Logprobs(logprobs.length, *logprobs.tokens)

  def take(self, rows: Any) -> 'NotesLogprobs':
    """See `Law.take`."""
    return self


@functools.partial(jax.jit, static_argnames=('model', 'top'))
def _score(
  model: Model,
  params: Params,
  prompt: Prompt,
  targets: Int[Array, 'b t'],
  lengths: Int[Array, ' b'],
  top: int,
) -> Scores:
  hidden = read_targets(model, params, prompt, targets)

  # A position at a time, so that the logits of only a few are in memory.
  def score_position(position: tuple[Array, Array]) -> tuple[Array, ...]:
    hidden_bd, target_b = position
    log_p = suppress(jax.nn.log_softmax(model.unembed(params, hidden_bd)), model.suppressed_ids)
    own = jnp.take_along_axis(log_p, target_b[:, None], axis=1)[:, 0]
    is_best = log_p.argmax(1).astype(jnp.int32) == target_b
    return own, is_best, *(best(log_p, top) if top else ())

  t = targets.shape[1]
  positions = (hidden.swapaxes(0, 1), targets.T)
  by_position = jax.lax.map(score_position, positions, batch_size=min(t, POSITIONS))

  # Rows first again, and zeros past the end of each target
  counts = jnp.arange(t, dtype=jnp.int32)[None] < lengths[:, None]
  by_row = []
  for x in by_position:
    x = x.swapaxes(0, 1)
    is_counted = counts.reshape(*counts.shape, *(1,) * (x.ndim - 2))
    by_row.append(jnp.where(is_counted, x, jnp.zeros_like(x)))
  own, is_best, *tops = by_row
  return Scores(own, is_best, own.sum(1), lengths, *tops)


def read_targets(
  model: Model, params: Params, prompt: Prompt, targets: Int[Array, 'b t']
) -> Float[Array, 'b t d']:
  """Returns the hidden states that predict each token of `targets` from all tokens before it."""
  hidden, _ = read_again(Bound(model, params), prompt, targets)
  before = prompt.length[:, None] - 1 + jnp.arange(targets.shape[1], dtype=jnp.int32)[None]
  return jnp.take_along_axis(hidden, before[..., None], axis=1)


def read_again(
  target: Bound, prompt: Prompt, targets: Int[Array, 'b t'], taps: Taps = ()
) -> tuple[Float[Array, 'b l d'], tuple[Float[Array, 'b l _'], ...]]:
  """Returns the hidden states of all positions of prompts and texts except the last token.

  The second result is the states of the taps.
  """
  model, params = target
  b, t = targets.shape

  # Prompt and target of each row as one text; `place` is the place among the targets.
  index = jnp.arange(prompt.tokens.shape[1] + t - 1, dtype=jnp.int32)[None]
  place = index - prompt.length[:, None]
  tokens = jnp.pad(prompt.tokens, ((0, 0), (0, t - 1)))
  tokens = jnp.where(place < 0, tokens, jnp.take_along_axis(targets, place.clip(0, t - 1), axis=1))
  length = jnp.full(b, tokens.shape[1], jnp.int32)
  text = dataclasses.replace(prompt, tokens=tokens, length=length)
  cache = model.init_cache(params, memory_of(target, text), b, capacity_of(text, 0, 0))
  hidden, states, _ = read_text(target, text, cache, taps, prompt.length)
  return hidden, states
