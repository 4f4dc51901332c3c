"""Running beams and finished hypotheses of rows, and their extension by one token.

Running beams all have the same length. An end token, or the row's limit, finishes a hypothesis.
Among equal scores the lower beam comes first, then the lower token id; a hypothesis that was
finished earlier comes before later ones.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from fastdec import struct
from fastdec.decoding import sampling
from fastdec.decoding.beam.penalties import LengthPenalty

NEVER = -jnp.inf  # score of an empty slot


@struct.pytree
class Beams:
  """For each row g groups of w running beams and w finished hypotheses.

  Some functions work on a single group: then the arrays have no axis g.
  """

  tokens: Int[Array, 'b *g w t']  # of the running beams, valid before the row's length
  scores: Float[Array, 'b *g w']  # summed log-probabilities, best first
  finished: Int[Array, 'b *g w t']  # pad id after each end
  finished_scores: Float[Array, 'b *g w']  # divided by the length penalty, best first
  finished_lengths: Int[Array, 'b *g w']
  pad_id: int = struct.static()

  @classmethod
  def empty(
    cls, shape: tuple[int, int, int], max_len: int, pad_id: int, dtype: DTypeLike
  ) -> 'Beams':
    """Makes beams of shape (b, g, w) before the first token.

    Only one beam of each group runs, since equal beams would find the same continuations.
    """
    pad, never = jnp.full((*shape, max_len), pad_id, jnp.int32), jnp.full(shape, NEVER, dtype)
    return cls(pad, never.at[..., 0].set(0.0), pad, never, jnp.zeros(shape, jnp.int32), pad_id)

  def end_at_once(self, rows: Bool[Array, ' b'], eos_id: int) -> 'Beams':
    """Replaces the hypotheses of these rows by a single one: only the end token, with score 0."""
    tokens = jnp.full_like(self.finished, self.pad_id).at[:, 0, 0, 0].set(eos_id)
    scores = jnp.full_like(self.scores, NEVER).at[:, 0, 0].set(0.0)
    lengths = jnp.zeros_like(self.finished_lengths).at[:, 0, 0].set(1)
    where_b11 = rows[:, None, None]
    return dataclasses.replace(
      self,
      finished=jnp.where(where_b11[..., None], tokens, self.finished),
      finished_scores=jnp.where(where_b11, scores, self.finished_scores),
      finished_lengths=jnp.where(where_b11, lengths, self.finished_lengths),
    )

  def extend(
    self,
    log_p: Float[Array, 'b w v'],
    length: Int[Array, ' b'],
    limit: Int[Array, ' b'],
    eos_ids: tuple[int, ...],
    penalty: LengthPenalty,
  ) -> tuple['Beams', Int[Array, 'b w']]:
    """Adds one more token to one group.

    Only the best w continuations can finish, as in fairseq and Hugging Face; the best w of the
    others continue.

    Args:
      log_p: the log-probability of each token after each beam; minus infinity if it is ruled out.
      length: tokens of the running beams.
      limit: a continuation that reaches this number of tokens is finished, with any last token.
      eos_ids: the end tokens.
      penalty: divides the scores of finished hypotheses.

    Returns:
      The group, and the beam that each of its running beams continues.
    """
    b, w, t = self.tokens.shape
    v = log_p.shape[-1]

    # The best continuations of each beam, and of all: enough that w of them continue.
    count = min(w * (1 + len(eos_ids)), w * v)
    few = min(count, v)
    scores, ids = sampling.best(self.scores[..., None] + log_p, few)
    scores, index = sampling.rank(scores.reshape(b, -1), count)
    origin = index // few
    token = jnp.take_along_axis(ids.reshape(b, -1), index, axis=1)
    n = length + 1
    is_end = sampling.is_among(token, eos_ids) | (n >= limit)[:, None]
    is_new = jnp.arange(t, dtype=length.dtype)[None, None] == length[:, None, None]
    tokens = jnp.where(
      is_new, token[..., None], jnp.take_along_axis(self.tokens, origin[..., None], axis=1)
    )

    # Hypotheses that finish now join the finished ones, of which the best w stay.
    divisor = penalty(n).astype(scores.dtype)
    ended = jnp.where(is_end & (jnp.arange(count) < w)[None], scores / divisor[:, None], NEVER)

    def join(old: Array, new: Array) -> Array:
      return jnp.concatenate([old, new.astype(old.dtype)], axis=1)

    finished_scores, order = jax.lax.top_k(join(self.finished_scores, ended), w)
    finished = jnp.take_along_axis(join(self.finished, tokens), order[..., None], axis=1)
    lengths = join(self.finished_lengths, jnp.broadcast_to(n[:, None], ended.shape))

    # The best w of the others run on.
    running, kept = jax.lax.top_k(jnp.where(is_end, NEVER, scores), w)
    beams = dataclasses.replace(
      self,
      tokens=jnp.take_along_axis(tokens, kept[..., None], axis=1),
      scores=running,
      finished=finished,
      finished_scores=finished_scores,
      finished_lengths=jnp.take_along_axis(lengths, order, axis=1),
    )
    return beams, jnp.take_along_axis(origin, kept, axis=1)

  def is_over(
    self,
    n: Int[Array, ' b'],
    limit: Int[Array, ' b'],
    penalty: LengthPenalty,
    early_stopping: bool | str,
  ) -> Bool[Array, ' b']:
    """True if the search of one group has ended: no beam runs, or none can win (`Beam`)."""
    best, worst = self.scores[:, 0], self.finished_scores[:, -1]
    full = worst > NEVER
    if early_stopping is True:
      return full | (best == NEVER)
    divisor = penalty(n)
    if early_stopping == 'never':
      divisor = jnp.maximum(divisor, penalty(limit))  # log-probabilities are negative
    return (full & (best / divisor.astype(best.dtype) <= worst)) | (best == NEVER)

  def best(self, n: int) -> tuple[Int[Array, 'b n t'], Float[Array, 'b n'], Int[Array, 'b n']]:
    """Returns tokens, scores and lengths of the n best different hypotheses over all groups.

    Missing ones have only padding, score minus infinity and length 0.
    """
    b, g, w, t = self.finished.shape
    scores, order = jax.lax.top_k(self.finished_scores.reshape(b, -1), g * w)
    tokens = jnp.take_along_axis(self.finished.reshape(b, -1, t), order[..., None], axis=1)
    lengths = jnp.take_along_axis(self.finished_lengths.reshape(b, -1), order, axis=1)
    if g > 1:  # groups may find the same text: the better one stays
      same = (tokens[:, :, None] == tokens[:, None]).all(-1)
      again = (same & jnp.tri(g * w, k=-1, dtype=bool)[None]).any(-1)
      scores, order = jax.lax.top_k(jnp.where(again, NEVER, scores), g * w)
      is_there = scores > NEVER
      tokens = jnp.take_along_axis(tokens, order[..., None], axis=1)
      tokens = jnp.where(is_there[..., None], tokens, self.pad_id)
      lengths = jnp.where(is_there, jnp.take_along_axis(lengths, order, axis=1), 0)
    return tokens[:, :n], scores[:, :n], lengths[:, :n]
