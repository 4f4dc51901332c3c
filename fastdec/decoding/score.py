"""Log-probabilities by the model's own law, of outputs that exist and of those being written."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.inputs import check_prompt_positions, ids_of, numbers_of, prompt_of, shared
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

POSITIONS = 16  # number of positions with logits in memory at once


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
  """Returns the log-probability of each target token by the model's own law, as beam search does.

  A token that is never emitted scores minus infinity. The model reads each token once, and long
  texts in chunks. Logits are computed a few positions at a time, and never kept.

  Args:
    model, params, inputs, prompt_lengths, prefix: as in `decode`.
    targets: int[b, t], outputs with their end token, padding after; or lists, unpadded.
    target_lengths: int[b], tokens of each target; None: up to the first end token, else all.
    logprobs: n for the n likeliest tokens of each place too.

  Raises:
    UserError: as `decode`; targets of another shape, of unknown ids, or beyond the model's
      positions.
  """
  check_model(model, params)
  top = check_logprobs(model, logprobs)
  targets, own_lengths = ids_of('targets', targets, model.vocab_size, model.pad_id)
  prompt = prompt_of(model, inputs, prompt_lengths, prefix)
  b, t = targets.shape
  if len(prompt.tokens) != b or t < 1:
    rows = len(prompt.tokens)
    raise UserError(
      f'targets have shape [{b}, {t}], and inputs have {rows} rows: give one target for each'
    )
  check_prompt_positions(model, prompt, t)
  is_end = np.isin(targets, model.eos_ids)
  whole = np.full(b, t) if own_lengths is None else own_lengths
  ended = np.minimum(np.where(is_end.any(1), is_end.argmax(1) + 1, t), whole)
  lengths = (
    ended
    if target_lengths is None
    else numbers_of('target_lengths', target_lengths, f'{b} numbers')
  )
  if (
    lengths.shape != (b,)
    or lengths.dtype.kind not in 'iu'
    or (lengths < 0).any()
    or (lengths > whole).any()
  ):
    most = t if (whole == t).all() else "their target's own length"
    raise UserError(f'target_lengths must be {b} numbers from 0 to {most}, not {lengths.tolist()}')
  mesh = mesh_of(params)
  prompt = prompt if mesh else shared(model, prompt)
  rows = (prompt, jnp.asarray(targets, jnp.int32), jnp.asarray(lengths, jnp.int32))
  with using(mesh):
    return _score(model, params, *place_rows(rows, mesh), top)


def check_logprobs(model: Model, logprobs: Any) -> int:
  """Checks `logprobs`, the number of likeliest tokens to note; 0: no log-probabilities are noted.

  Raises:
    UserError: it is out of range.
  """
  most = min(model.vocab_size, MOST_NODES)
  allowed = f'0 for none, or how many tokens of a place, 1 to {most}'
  return size('logprobs', logprobs, 0, allowed, most)


def add_logprobs(target: Bound, prompt: Prompt, decoded: Decoded, top: int) -> Decoded:
  """Returns a result with the log-probabilities of its tokens, which the model reads again.

  A search needs that: most of what it could note on its way is about texts that it gives up."""
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

  They are those of `score`. The n likeliest tokens of each place are noted too."""

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
    law = suppress(jax.nn.log_softmax(logits), self.suppressed_ids)
    own = jnp.take_along_axis(law, emitted.tokens[..., None], axis=2)[..., 0]
    top, ids = best(law, self.top)
    logprobs = (state.logprobs, state.top_logprobs, state.top_ids)
    new = (own.astype(state.logprobs.dtype), top.astype(state.logprobs.dtype), ids)
    text = Text(logprobs, state.length).append(new, emitted.count)
    return Logprobs(text.length, *text.tokens)

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

  def at(one: tuple[Array, Array]) -> tuple[Array, ...]:
    hidden_bd, target_b = one
    law = suppress(jax.nn.log_softmax(model.unembed(params, hidden_bd)), model.suppressed_ids)
    own = jnp.take_along_axis(law, target_b[:, None], axis=1)[:, 0]
    is_best = law.argmax(1).astype(jnp.int32) == target_b
    return own, is_best, *(best(law, top) if top else ())

  t = targets.shape[1]
  per_position = jax.lax.map(at, (hidden.swapaxes(0, 1), targets.T), batch_size=min(t, POSITIONS))
  counts = jnp.arange(t, dtype=jnp.int32)[None] < lengths[:, None]

  def counted(x: Array) -> Array:
    x = x.swapaxes(0, 1)
    return jnp.where(counts.reshape(*counts.shape, *(1,) * (x.ndim - 2)), x, jnp.zeros_like(x))

  own, is_best, *tops = map(counted, per_position)
  return Scores(own, is_best, own.sum(1), lengths, *tops)


def read_targets(
  model: Model, params: Params, prompt: Prompt, targets: Int[Array, 'b t']
) -> Float[Array, 'b t d']:
  """Returns the hidden states that predict each token of `targets` from all before."""
  hidden, _ = read_again(Bound(model, params), prompt, targets)
  # the node that predicts each target
  before = prompt.length[:, None] - 1 + jnp.arange(targets.shape[1], dtype=jnp.int32)[None]
  return jnp.take_along_axis(hidden, before[..., None], axis=1)


def read_again(
  target: Bound, prompt: Prompt, targets: Int[Array, 'b t'], taps: Taps = ()
) -> tuple[Float[Array, 'b l d'], tuple[Float[Array, 'b l _'], ...]]:
  """Returns the states of all positions of prompts and texts, but of the last token.

  The second result are the states of the taps."""
  model, params = target
  b, t = targets.shape
  index = jnp.arange(prompt.tokens.shape[1] + t - 1, dtype=jnp.int32)[None]
  place = index - prompt.length[:, None]  # among the targets
  tokens = jnp.pad(prompt.tokens, ((0, 0), (0, t - 1)))
  tokens = jnp.where(place < 0, tokens, jnp.take_along_axis(targets, place.clip(0, t - 1), axis=1))
  length = jnp.full(b, tokens.shape[1], jnp.int32)
  text = dataclasses.replace(prompt, tokens=tokens, length=length)
  cache = model.init_cache(params, memory_of(target, text), b, capacity_of(text, 0, 0))
  hidden, states, _ = read_text(target, text, cache, taps, prompt.length)
  return hidden, states
