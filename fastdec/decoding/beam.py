"""Beam search: a loop of its own over the same models and caches, which it reorders.

Every row (a sentence) has `size` running beams, all of the same length, and keeps its finished hypotheses apart. One
step scores the newest token of every beam in one call, ranks the continuations, moves those that end among the best
`size` to the finished ones, and reorders the cache by where the others came from. The encoder's memory is not copied:
cross-attention sees the beams of a row as so many queries.

Ties go to the lower beam, then the lower token id. Log-probabilities are the model's own: what is suppressed is left
out of the search, not of the law. The stopping rules are Hugging Face's, with its names.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.penalties import GNMTPenalty, LengthPenalty, repeats
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.topology import take_node
from fastdec.errors import UserError
from fastdec.models.api import causal, suppress
from fastdec.sharding import by_rows
from fastdec.struct import Bound

NEVER = -jnp.inf  # the score of a beam, or of a hypothesis, that there is not


@struct.pytree
class Beams:
  """The beams and the finished hypotheses of every row: g groups of w beams each, or one group alone."""

  tokens: Int[Array, 'b *g w t']  # of the running beams, valid before the row's length
  scores: Float[Array, 'b *g w']  # summed log-probabilities, best first
  finished: Int[Array, 'b *g w t']  # pad id after each end
  finished_scores: Float[Array, 'b *g w']  # divided by the length penalty, best first
  finished_lengths: Int[Array, 'b *g w']


@struct.pytree
class BeamState:
  """What one step hands to the next."""

  beams: Beams
  length: Int[Array, ' b']  # tokens of each running beam = 1 + calls
  limit: Int[Array, ' b']  # at most so many
  done: Bool[Array, 'b g']
  cache: Any  # rows of b x g x w beams


@struct.pytree
class Beam:
  """Beam search.

  Args:
    size: beams a row.
    length_penalty: a float alpha is GNMT's ((5 + n) / 6)^alpha; `PowerPenalty(alpha)` is n^alpha. n counts the
      generated tokens, the end token included.
    n_best: hypotheses to return a row, in `Decoded.nbest_tokens` and `nbest_scores`.
    min_len: no end before so many tokens, the end token counted.
    max_len: (a, b) limits a row to a * source + b tokens (source tokens with their end; of a decoder-only model, the
      prompt's); None: to what `decode` is given. The smaller limit holds. What runs then counts as finished.
    early_stopping: when a row with `size` finished hypotheses stops: True at once; False when its best beam would not
      rank among them if it ended now; 'never' when no beam can rank among them at any length it may reach.
    unknown_penalty, unknown_id: subtracted from this token's log-probability.
    no_repeat_ngram: n-grams of this size are written once (0: no such rule).
    groups, diversity: `groups` groups of beams, one after the other; a token loses `diversity` for each beam of an
      earlier group that chose it in this step (Vijayakumar et al. 2018, Hamming diversity).
  """

  size: int = struct.static(default=4)
  length_penalty: Any = 0.6
  n_best: int = struct.static(default=1)
  min_len: Any = 1
  max_len: Any = None
  early_stopping: bool | str = struct.static(default=False)
  unknown_penalty: Any = 0.0
  unknown_id: int | None = struct.static(default=None)
  no_repeat_ngram: int = struct.static(default=0)
  groups: int = struct.static(default=1)
  diversity: Any = 0.0

  def __post_init__(self) -> None:
    if self.size < 1:
      raise UserError(f'size={self.size} is not possible: give at least 1 beam')
    if not 1 <= self.n_best <= self.size:
      raise UserError(f'n_best={self.n_best} is not possible: give 1 to size={self.size}')
    if self.groups < 1 or self.size % self.groups:
      raise UserError(f'size={self.size} beams do not make groups={self.groups} equal groups: give a divisor of size')
    if self.early_stopping not in (True, False, 'never'):
      raise UserError(f"early_stopping={self.early_stopping!r} is unknown: give True, False or 'never'")
    if self.no_repeat_ngram < 0:
      raise UserError(f'no_repeat_ngram={self.no_repeat_ngram} is not possible: give 0 for no such rule, or more')
    if _is_set(self.unknown_penalty) and self.unknown_id is None:
      raise UserError('an unknown_penalty needs the token it is for: give unknown_id, as the tokenizer has it')
    if _is_set(self.diversity) and self.groups == 1:
      raise UserError('diversity is between groups of beams, and there is one: give groups=2 or more')
    if self.max_len is not None and len(self.max_len) != 2:
      raise UserError(f'max_len={self.max_len} is not possible: give (a, b), for a * source + b tokens')
    if not isinstance(self.length_penalty, LengthPenalty):
      object.__setattr__(self, 'length_penalty', GNMTPenalty(self.length_penalty))

  def most_tokens(self, source: int, max_len: int) -> int:
    """See `Strategy.most_tokens`."""
    a, b = self.max_len or (0, max_len)
    return min(max(int(a * source + b), 1), max_len)

  def init(self, target: Bound, prompt: Prompt, max_len: int, keys: Array | None) -> BeamState:
    """See `Strategy.init`: the prompt runs once a row, then its cache is spread over the row's beams."""
    model, params = target
    b, t = prompt.tokens.shape
    memory = model.encode(params, prompt.inputs)
    cache = model.init_cache(params, memory, b, t + max_len + 1)
    hidden, _, cache = model.apply(params, prompt.tokens, causal(t), cache)
    cache = by_rows(self._spread_cache)(cache.commit(None, prompt.length))
    logits = model.unembed(params, take_node(hidden, prompt.length - 1)[:, None])
    logits = jnp.repeat(logits, self.size, axis=1)

    shape = (b, self.groups, self.size // self.groups)
    first = jnp.broadcast_to(jnp.arange(shape[2]) == 0, shape)  # equal beams would find the same continuations
    scores = jnp.where(first, 0.0, NEVER).astype(logits.dtype)
    pad = jnp.full((*shape, max_len), model.pad_id, jnp.int32)
    beams = Beams(pad, scores, pad, jnp.full_like(scores, NEVER), jnp.zeros(shape, jnp.int32))
    limit = self._limit(model, prompt, max_len)
    done = jnp.zeros(shape[:2], bool)
    state = BeamState(beams, jnp.zeros(b, jnp.int32), limit, done, cache)
    return self._end_empty(model, self._extend_rows(model, state, logits), prompt.empty)

  def step(self, target: Bound, state: BeamState) -> BeamState:
    """See `Strategy.step`."""
    model, params = target
    newest = take_node(state.beams.tokens.reshape(-1, state.beams.tokens.shape[-1]), self._spread(state.length) - 1)
    hidden, _, cache = model.apply(params, newest[:, None], causal(1), state.cache)
    cache = cache.commit(None, self._spread(~state.done.all(1)).astype(jnp.int32))
    logits = model.unembed(params, hidden).reshape(len(state.length), self.size, -1)
    return self._extend_rows(model, dataclasses.replace(state, cache=cache), logits)

  def done(self, state: BeamState) -> Bool[Array, ' b']:
    return state.done.all(axis=1)

  def take(self, state: BeamState, rows: Int[Array, ' r']) -> BeamState:
    cache = state.cache.take(rows, self.size)
    rest = jax.tree.map(lambda x: x[rows], dataclasses.replace(state, cache=None))
    return dataclasses.replace(rest, cache=cache)

  def result(self, state: BeamState) -> Decoded:
    """The best hypotheses over all groups. `calls` counts steps: a row may go on after its best hypothesis ended."""
    b, _, _, max_len = state.beams.finished.shape
    scores, order = jax.lax.top_k(state.beams.finished_scores.reshape(b, -1), self.n_best)
    tokens = jnp.take_along_axis(state.beams.finished.reshape(b, -1, max_len), order[..., None], axis=1)
    lengths = jnp.take_along_axis(state.beams.finished_lengths.reshape(b, -1), order, axis=1)[:, 0]
    block_sizes = (jnp.arange(max_len) < lengths[:, None] - 1).astype(jnp.int32)
    nothing = jnp.zeros(b, jnp.int32)
    return Decoded(
      tokens[:, 0], lengths, block_sizes, state.length - 1, nothing,
      scores=scores[:, 0], nbest_tokens=tokens, nbest_scores=scores,
    )  # fmt: skip

  def _spread(self, x: Array) -> Array:
    """One value a row, for every beam of the row."""
    return jnp.repeat(x, self.size, axis=0)

  def _spread_cache(self, cache: Any) -> Any:
    return cache.gather(self._spread(jnp.arange(len(cache.length))))

  def _limit(self, model: Any, prompt: Prompt, max_len: int) -> Int[Array, ' b']:
    if self.max_len is None:
      return jnp.full(prompt.length.shape, max_len, jnp.int32)
    source = prompt.length if prompt.inputs is None else (prompt.inputs != model.pad_id).sum(1)
    a, b = self.max_len
    return (a * source + b).astype(jnp.int32).clip(1, max_len)

  def _end_empty(self, model: Any, state: BeamState, empty: Bool[Array, ' b']) -> BeamState:
    """Rows with nothing to decode end at once."""
    if not model.eos_ids:
      return state
    beams, is_empty = state.beams, empty[:, None, None]
    ended = jnp.full_like(beams.finished, model.pad_id).at[..., 0].set(model.eos_ids[0])
    best = jnp.where(jnp.arange(beams.scores.shape[2]) == 0, 0.0, NEVER).astype(beams.scores.dtype)
    beams = dataclasses.replace(
      beams,
      finished=jnp.where(is_empty[..., None], ended, beams.finished),
      finished_scores=jnp.where(is_empty, best, beams.finished_scores),
      finished_lengths=jnp.where(is_empty, 1, beams.finished_lengths),
    )
    return dataclasses.replace(state, beams=beams, done=state.done | empty[:, None])

  def _extend_rows(self, model: Any, state: BeamState, logits: Float[Array, 'b w v']) -> BeamState:
    return by_rows(functools.partial(self._extend, model))(state, logits)

  def _extend(self, model: Any, state: BeamState, logits: Float[Array, 'b w v']) -> BeamState:
    """One more token for every running beam; rows that are done stay as they are."""
    b, g, w = state.beams.scores.shape
    law = suppress(jax.nn.log_softmax(logits, axis=-1), model.suppressed_ids)
    law = self._constrained(model, state, law).reshape(b, g, w, -1)
    chosen = jnp.zeros((b, law.shape[-1]), law.dtype)  # how often, by earlier groups
    parts = []
    for i in range(g):
      beams = jax.tree.map(lambda x, i=i: x[:, i], state.beams)
      beams, origin, over = self._group(model, beams, law[:, i] - self.diversity * chosen[:, None], state)
      if i + 1 < g:
        newest = jnp.take_along_axis(beams.tokens, state.length[:, None, None], axis=2)[..., 0]
        counts = (beams.scores > NEVER) & ~state.done[:, i, None]
        one_hot = jax.nn.one_hot(newest, law.shape[-1], dtype=law.dtype)
        chosen = chosen + jnp.where(counts[..., None], one_hot, 0).sum(1)
      parts.append((beams, origin + i * w, over))
    beams, origin, over = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *parts)

    keep = lambda old, new: jnp.where(state.done.reshape(b, g, *[1] * (new.ndim - 2)), old, new)
    running = ~state.done.all(1)
    order = jnp.arange(b)[:, None] * self.size + origin.reshape(b, -1)
    return BeamState(
      beams=jax.tree.map(keep, state.beams, beams),
      length=state.length + running,
      limit=state.limit,
      done=state.done | over,
      cache=state.cache.gather(order.reshape(-1)),
    )

  def _constrained(self, model: Any, state: BeamState, law: Float[Array, 'b w v']) -> Float[Array, 'b w v']:
    """Log-probabilities after the unknown penalty, repeated n-grams and too early ends."""
    words = np.arange(law.shape[-1])
    if self.unknown_id is not None:
      law = law - jnp.where(words == self.unknown_id, self.unknown_penalty, 0.0)
    if self.no_repeat_ngram:
      tokens = state.beams.tokens.reshape(-1, state.beams.tokens.shape[-1])
      again = repeats(tokens, self._spread(state.length), self.no_repeat_ngram, law.shape[-1])
      law = jnp.where(again.reshape(law.shape), NEVER, law)
    too_early = (state.length + 1 < self.min_len)[:, None, None] & np.isin(words, model.eos_ids)
    return jnp.where(too_early, NEVER, law).astype(state.beams.scores.dtype)

  def _group(
    self, model: Any, beams: Beams, law: Float[Array, 'b w v'], state: BeamState
  ) -> tuple[Beams, Int[Array, 'b w'], Bool[Array, ' b']]:
    """One more token for one group: its beams, where each comes from, and whether the group is over."""
    b, w, t = beams.tokens.shape
    v = law.shape[-1]
    count = min(w * (1 + len(model.eos_ids)), w * v)  # enough for w that go on
    scores, index = jax.lax.top_k((beams.scores[..., None] + law).reshape(b, -1), count)
    origin, token = index // v, (index % v).astype(jnp.int32)
    n = state.length + 1
    is_end = jnp.isin(token, jnp.array(model.eos_ids, jnp.int32)) | (n >= state.limit)[:, None]
    here = jnp.arange(t) == state.length[:, None, None]
    tokens = jnp.take_along_axis(beams.tokens, origin[..., None], axis=1)
    tokens = jnp.where(here, token[..., None], tokens)

    ends = jnp.where(is_end & (jnp.arange(count) < w), scores / self.length_penalty(n)[:, None], NEVER)
    lengths = jnp.broadcast_to(n[:, None], ends.shape)
    both = lambda old, new: jnp.concatenate([old, new.astype(old.dtype)], axis=1)
    finished_scores, best = jax.lax.top_k(both(beams.finished_scores, ends), w)
    pick = lambda x: jnp.take_along_axis(x, best.reshape(b, w, *[1] * (x.ndim - 2)), axis=1)

    running, going_on = jax.lax.top_k(jnp.where(is_end, NEVER, scores), min(w, count))
    going_on = jnp.pad(going_on, ((0, 0), (0, w - going_on.shape[1])))
    running = jnp.pad(running, ((0, 0), (0, w - running.shape[1])), constant_values=NEVER)
    new = Beams(
      tokens=jnp.take_along_axis(tokens, going_on[..., None], axis=1),
      scores=running,
      finished=pick(both(beams.finished, tokens)),
      finished_scores=finished_scores,
      finished_lengths=pick(both(beams.finished_lengths, lengths)),
    )
    return new, jnp.take_along_axis(origin, going_on, axis=1), self._over(new, n, state.limit)

  def _over(self, beams: Beams, n: Int[Array, ' b'], limit: Int[Array, ' b']) -> Bool[Array, ' b']:
    """Whether the search has ended: no beam runs, or none is worth going on with."""
    best, worst = beams.scores[:, 0], beams.finished_scores[:, -1]
    full = worst > NEVER
    if self.early_stopping is True:
      return full | (best == NEVER)
    divisor = self.length_penalty(n)
    if self.early_stopping == 'never':
      divisor = jnp.maximum(divisor, self.length_penalty(limit))  # log-probabilities are negative
    return (full & (best / divisor <= worst)) | (best == NEVER)


def _is_set(setting: Any) -> bool:
  """Whether it is not 0; False for what is traced: it was checked outside."""
  return not isinstance(setting, jax.core.Tracer) and bool(np.any(np.asarray(setting) != 0))
