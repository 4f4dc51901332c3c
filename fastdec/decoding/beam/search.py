"""Beam search: a loop of its own over the same models and caches (`caches.py`).

Every row (a sentence) has `size` running beams, all of the same length, and keeps its finished
hypotheses apart. One step scores the newest token of every beam in one call, and ranks the
continuations. Ended ones among the best `size` become finished hypotheses; the others run on. The
encoder's memory is not copied: cross-attention reads the beams of a row as several queries.

Ties go to the lower beam, then the lower token id. Log-probabilities are the model's own:
suppressed tokens are left out of the search, and keep their probability. The stopping rules are
Hugging Face's, with its names.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding import law
from fastdec.decoding.beam.caches import PathCache, RowCache
from fastdec.decoding.beam.hypotheses import NEVER, Beams
from fastdec.decoding.beam.penalties import GNMTPenalty, LengthPenalty, repeats
from fastdec.decoding.protocol import Decoded, Draft, Prompt, has_best
from fastdec.decoding.settings import Whole, count, is_number, is_traced, number, size
from fastdec.decoding.topology import Topology, take_node
from fastdec.errors import UserError
from fastdec.kernels.sharding import by_rows
from fastdec.models.api import Model, suppress
from fastdec.struct import Bound

ENDLESS = 2**30  # tokens: no text is longer, and it fits into int32


@struct.pytree
class BeamState:
  """State between two steps."""

  beams: Beams
  length: Int[Array, ' b']  # tokens of each running beam = 1 + calls
  limit: Int[Array, ' b']  # most tokens that a beam may have
  ended: Bool[Array, 'b g']  # groups whose search has ended
  finite: Bool[Array, ' b']  # true if all running beams were ranked by logits with a best token
  cache: PathCache | RowCache
  laws: Any  # the states of the target's laws, their arrays [b, g x w, ...]

  @property
  def done(self) -> Bool[Array, ' b']:
    return self.ended.all(axis=1)


@struct.pytree
class Beam:
  """Beam search.

  Args:
    size: beams a row.
    length_penalty: a float alpha is GNMT's ((5 + n) / 6)^alpha; `PowerPenalty(alpha)` is n^alpha. n
      counts the generated tokens, the end token included.
    n_best: hypotheses to return a row, in `Decoded.nbest_tokens` and `nbest_scores`.
    min_len: fewest tokens of a hypothesis, the end token counted.
    max_len: (a, b) limits a row to a * source + b tokens; source tokens count with their end, or
      are the prompt's in a decoder-only model. None: the limit of `decode`. The smaller limit
      holds. Beams that reach it count as finished.
    early_stopping: stops a row with `size` finished hypotheses. True: at once. False: when its best
      beam would not rank among them if it ended now. 'never': when no beam can rank among them at
      any length it may reach.
    unknown_penalty, unknown_id: the penalty is subtracted from this token's log-probability.
    no_repeat_ngram: n-grams of this size are written once, unless a row would have no token left;
      0: no such rule.
    groups, diversity: `groups` groups of size / groups beams, one after the other. A token loses
      `diversity` for each beam of an earlier group that chose it in this step (Vijayakumar et al.
      2018, Hamming diversity).

  Raises:
    UserError: a setting is out of range; in `decode`, an unknown_id that the vocabulary lacks.
  """

  size: Whole = struct.static(default=4)
  length_penalty: Any = 0.6
  n_best: Whole = struct.static(default=1)
  min_len: Any = 1
  max_len: Any = None
  early_stopping: bool | str = struct.static(default=False)
  unknown_penalty: Any = 0.0
  unknown_id: Whole | None = struct.static(default=None)
  no_repeat_ngram: Whole = struct.static(default=0)
  groups: Whole = struct.static(default=1)
  diversity: Any = 0.0

  def __post_init__(self) -> None:
    struct.assign(
      self,
      size=size('size', self.size, 1, 'at least 1 beam'),
      n_best=count('n_best', self.n_best, 1, f'1 to size={self.size}'),
      groups=count('groups', self.groups, 1, 'a divisor of size'),
      no_repeat_ngram=size(
        'no_repeat_ngram', self.no_repeat_ngram, 0, '0 for no such rule, or more'
      ),
      unknown_penalty=number('unknown_penalty=', self.unknown_penalty, 'a number'),
      diversity=number('diversity=', self.diversity, 'a number'),
    )
    if self.n_best > self.size:
      raise UserError(f'n_best={self.n_best} is not possible: give 1 to size={self.size}')
    if self.size % self.groups:
      raise UserError(
        f'size={self.size} beams do not make groups={self.groups} equal groups: give'
        ' a divisor of size'
      )
    if not (isinstance(self.early_stopping, bool) or self.early_stopping == 'never'):
      raise UserError(
        f"early_stopping={self.early_stopping!r} is unknown: give True, False or 'never'"
      )
    if not is_traced(self.min_len):
      struct.assign(self, min_len=np.int32(count('min_len', self.min_len, 0, '0 tokens or more')))
    if self.unknown_id is not None:
      struct.assign(
        self, unknown_id=count('unknown_id', self.unknown_id, 0, 'a token of the vocabulary')
      )
    if _is_set(self.unknown_penalty) and self.unknown_id is None:
      raise UserError(
        'unknown_penalty needs the token that it is for: give unknown_id, from the tokenizer'
      )
    if _is_set(self.diversity) and self.groups == 1:
      raise UserError('diversity needs several groups of beams: give groups=2 or more')
    if self.max_len is not None:
      if not _is_line(self.max_len):
        raise UserError(
          f'max_len={self.max_len} is not possible: give (a, b) from 0, for a * source + b tokens'
        )
      struct.assign(
        self, max_len=tuple(number('max_len: ', x, '(a, b) from 0') for x in self.max_len)
      )
    if not isinstance(self.length_penalty, LengthPenalty):
      struct.assign(self, length_penalty=GNMTPenalty(self.length_penalty))

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    """See `Strategy.check`."""
    if self.unknown_id is not None and self.unknown_id >= model.vocab_size:
      raise UserError(
        f'unknown_id={self.unknown_id} must be a token: the model knows 0 to {model.vocab_size - 1}'
      )
    if self.max_len is not None and model.fixed_length is not None:
      raise UserError(
        'max_len=(a, b) counts tokens of a source, and pictures have none: give decode max_len'
      )

  @property
  def rules_out(self) -> tuple[str, ...]:
    """See `Strategy`; a repeated n-gram is allowed where a row would have no token left."""
    return ('min_len',) if np.any(np.asarray(self.min_len) > 1) else ()

  def most_tokens(self, source: int, max_len: int) -> int:
    """See `Strategy.most_tokens`."""
    if self.max_len is None:
      return max_len
    return min(max(int(_on_line(self.max_len, np.array(source))), 1), max_len)

  @property
  def nodes(self) -> int:
    """Tokens of a row in one call."""
    return self.size

  def init(self, target: Bound, prompt: Prompt, max_len: int, keys: Array | None) -> BeamState:
    """See `Strategy.init`. The prompt is read once a row."""
    model, params = target
    b = len(prompt.tokens)
    kind = PathCache if getattr(model, 'reads_paths', False) else RowCache
    hidden, cache = kind.begin(target, prompt, max_len, self.size)
    logits = model.unembed(params, take_node(hidden, prompt.length - 1)[:, None])
    logits = jnp.repeat(logits, self.size, axis=1)
    last = take_node(prompt.tokens, prompt.length - 1)
    limit = prompt.limit
    if limit is None:
      limit = jnp.full(prompt.length.shape, max_len, jnp.int32)
    if self.max_len is not None:
      source = prompt.length if prompt.inputs is None else prompt.source_length(model)
      limit = jnp.minimum(_on_line(self.max_len, source).clip(1), limit)
    laws = law.begin(target, dataclasses.replace(prompt, limit=limit), max_len)
    laws = jax.tree.map(lambda x: jnp.repeat(x[:, None], self.size, axis=1), laws)

    shape = (b, self.groups, self.size // self.groups)
    beams = Beams.empty(shape, max_len, model.pad_id, logits.dtype)
    zeros, ended = jnp.zeros(b, jnp.int32), jnp.zeros(shape[:2], bool)
    state = BeamState(beams, zeros, limit, ended, jnp.ones(b, bool), cache, laws)
    state = self._advance(target, state, self._spread(last), logits)
    beams = state.beams.end_at_once(prompt.empty, (*model.eos_ids, model.pad_id)[0])
    ended, finite = state.ended | prompt.empty[:, None], state.finite | prompt.empty
    return dataclasses.replace(state, beams=beams, ended=ended, finite=finite)

  def step(self, target: Bound, state: BeamState) -> BeamState:
    """See `Strategy.step`."""
    model, params = target
    newest = self._newest(state)
    tokens = newest.reshape(-1, self.size)
    hidden, cache = state.cache.read(target, tokens, state.length, ~state.done)
    logits = model.unembed(params, hidden)
    return self._advance(target, dataclasses.replace(state, cache=cache), newest, logits)

  def result(self, state: BeamState) -> Decoded:
    """Returns the best hypotheses over all groups.

    `calls` counts steps: a row may continue after its best hypothesis has ended. A row without any
    hypothesis has length 0: nothing was left to write."""
    tokens, scores, lengths = state.beams.best(self.n_best)
    lengths, max_len = lengths[:, 0], tokens.shape[-1]
    finite = state.finite & (lengths > 0)
    is_emitted = jnp.arange(max_len, dtype=lengths.dtype)[None] < lengths[:, None] - 1
    block_sizes = is_emitted.astype(jnp.int32)
    nothing = jnp.zeros_like(lengths)
    return Decoded(
      tokens[:, 0], lengths, block_sizes, state.length - 1, nothing, finite,
      scores=scores[:, 0], nbest_tokens=tokens, nbest_scores=scores, stuck=state.finite & ~finite,
    )  # fmt: skip

  def _spread(self, x: Array) -> Array:
    """Repeats one value a row for every beam of the row."""
    return jnp.repeat(x, self.size, axis=0)

  def _newest(self, state: BeamState) -> Int[Array, ' r']:
    """Returns the last token of each running beam."""
    tokens = state.beams.tokens.reshape(-1, state.beams.tokens.shape[-1])
    return take_node(tokens, self._spread(state.length) - 1)

  def _advance(
    self, target: Bound, state: BeamState, newest: Int[Array, ' r'], logits: Float[Array, 'b w v']
  ) -> BeamState:
    """Adds one more token to every running beam, by the target's logits after its newest one."""
    b, size, v = logits.shape

    def flatten(laws: Any) -> Any:
      return jax.tree.map(lambda x: x.reshape(b * size, *x.shape[2:]), laws)

    # The target's laws change the log-probabilities of each beam, as if it were a row.
    own = suppress(jax.nn.log_softmax(logits, axis=-1), target.module.suppressed_ids)
    draft = Draft(newest[:, None], Topology.chain(1))
    logprobs = law.change(target, flatten(state.laws), draft, own.reshape(-1, 1, v))
    extend = by_rows(functools.partial(self._extend, target.module))
    after = extend(state, logprobs.reshape(own.shape), has_best(own))

    # They read the tokens that the beams have chosen.
    count = self._spread(after.length - state.length)
    node = jnp.zeros_like(count)[:, None]
    emitted = law.Emitted(self._newest(after)[:, None], count, node, logprobs.reshape(-1, 1, v))
    laws = law.observe(target, flatten(after.laws), emitted)
    laws = jax.tree.map(lambda x: x.reshape(b, size, *x.shape[1:]), laws)
    return dataclasses.replace(after, laws=laws)

  def _extend(
    self,
    model: Any,
    state: BeamState,
    logprobs: Float[Array, 'b w v'],
    is_finite: Bool[Array, 'b w'],
  ) -> BeamState:
    """Adds one more token to every running beam; rows that are done stay as they are."""
    b, g, w = state.beams.scores.shape
    runs = (state.beams.scores > NEVER) & ~state.ended[..., None]
    finite = (is_finite.reshape(b, g, w) | ~runs).all((1, 2))
    logprobs = self._constrain(model, state, logprobs).reshape(b, g, w, -1)
    v, dtype = logprobs.shape[-1], logprobs.dtype
    diversity = jnp.asarray(self.diversity, dtype)

    # Group after group: each avoids the tokens that earlier ones chose.
    chosen = jnp.zeros((b, v), dtype)  # times that earlier groups chose each token
    parts = []
    for i in range(g):
      beams = jax.tree.map(lambda x, i=i: x[:, i], state.beams)
      own = logprobs[:, i]
      if i:
        own = own - diversity * chosen[:, None]
      beams, origin = beams.extend(
        own, state.length, state.limit, model.eos_ids, self.length_penalty
      )
      over = beams.is_over(state.length + 1, state.limit, self.length_penalty, self.early_stopping)
      if i + 1 < g:
        newest = jnp.take_along_axis(beams.tokens, state.length[:, None, None], axis=2)[..., 0]
        counts = (beams.scores > NEVER) & ~state.ended[:, i, None]
        one_hot = jax.nn.one_hot(newest, v, dtype=dtype)
        chosen = chosen + jnp.where(counts[..., None], one_hot, 0).sum(1)
      parts.append((beams, origin + i * w, over))
    beams, origin, over = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *parts)

    # What was remembered follows the beams to their new places.
    def keep(old: Array, new: Array) -> Array:
      return jnp.where(state.ended.reshape(b, g, *[1] * (new.ndim - 2)), old, new)

    origin = origin.reshape(b, -1)
    return BeamState(
      beams=jax.tree.map(keep, state.beams, beams),
      length=state.length + (~state.done).astype(jnp.int32),
      limit=state.limit,
      ended=state.ended | over,
      finite=state.finite & finite,
      cache=state.cache.reorder(origin),
      laws=jax.tree.map(lambda x: jax.vmap(lambda row, i: row[i])(x, origin), state.laws),
    )

  def _constrain(
    self, model: Any, state: BeamState, logprobs: Float[Array, 'b w v']
  ) -> Float[Array, 'b w v']:
    """Applies the unknown penalty, and rules out early ends and repeated n-grams."""
    words, dtype = np.arange(logprobs.shape[-1]), logprobs.dtype
    if self.unknown_id is not None:
      penalty = jnp.where(words == self.unknown_id, self.unknown_penalty, 0.0).astype(dtype)
      logprobs = logprobs - penalty[None, None]
    is_end = np.isin(words, model.eos_ids)[None, None]
    is_early = (state.length + 1 < self.min_len)[:, None, None]
    logprobs = jnp.where(is_early & is_end, NEVER, logprobs).astype(state.beams.scores.dtype)
    if not self.no_repeat_ngram:
      return logprobs

    # A repeated n-gram is allowed in rows where no beam has another token left.
    tokens = state.beams.tokens.reshape(-1, state.beams.tokens.shape[-1])
    again = repeats(tokens, self._spread(state.length), self.no_repeat_ngram, logprobs.shape[-1])
    ruled = jnp.where(again.reshape(logprobs.shape), NEVER, logprobs)
    runs = state.beams.scores.reshape(logprobs.shape[:2]) > NEVER
    continues = ((ruled > NEVER).any(-1) & runs).any(1)
    return jnp.where(continues[:, None, None], ruled, logprobs)


def _is_set(setting: Any) -> bool:
  return not is_traced(setting) and bool(np.any(np.asarray(setting) != 0))


def _is_line(setting: Any) -> bool:
  is_pair = isinstance(setting, tuple | list) and len(setting) == 2
  return is_pair and all(is_traced(x) or (is_number(x) and x >= 0) for x in setting)


def _on_line(line: tuple[Any, Any], source: Any) -> Any:
  """Returns a * source + b, cut to a whole number; on the host and on the device alike."""
  a, b = line
  return (a * source.astype(a.dtype) + b).clip(max=ENDLESS).astype(np.int32)
