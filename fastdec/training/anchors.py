"""The places of packed sentences that drafts and heads are learnt at.

An anchor is a place t whose token is taken for the root. Decoding has accepted it, the target has
read all before it, and the draft guesses the tokens behind it. So a draft learns the very task that
decoding gives it there:

  target     a b c d . 0      segments   1 1 1 1 1 0
  anchor     t = 1: the root is b; features of places 0 and 1 are there
             (the target predicted b at place 1)
  guesses    c d .

A place is no anchor where nothing follows in its sentence. Of the others all are taken, or a
sample: the logits of a guess cost more than the rest of a training step.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.kernels.sharding import by_rows


@struct.pytree
class Anchors:
  """Some places of each row of a batch."""

  place: Int[Array, 'b a']
  is_real: Bool[Array, 'b a']  # false: fewer places are anchors than were asked for
  # how many anchors of its row each of them stands for: 1 where none was left out
  weight: Float[Array, ' b']

  def take(self, x: Array, ahead: int | Int[Array, ''] = 0) -> Array:
    """Takes the entries of x [b, t, ...] that lie `ahead` places behind the anchors.

    Beyond the end of a row it takes the last place's.
    """
    place = jnp.minimum(self.place + ahead, x.shape[1] - 1)
    return jnp.take_along_axis(x, place.reshape(*place.shape, *(1,) * (x.ndim - 2)), axis=1)

  def follows(self, segments: Int[Array, 'b t'], ahead: int) -> Bool[Array, 'b a']:
    """Marks the anchors with a token `ahead` places behind them in their sentence."""
    is_inside = self.place + ahead < segments.shape[1]
    return self.is_real & is_inside & (self.take(segments, ahead) == self.take(segments))


def anchors_of(batch: Mapping[str, Any], count: int = 0, key: Array | None = None) -> Anchors:
  """Takes all anchors of a batch, or draws `count` of each row (0: all) without replacement."""
  segments = jnp.asarray(batch['target_segment'])
  b, t = segments.shape
  place = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32), segments.shape)
  everywhere = Anchors(place, segments != 0, jnp.ones(b))
  everywhere = dataclasses.replace(everywhere, is_real=everywhere.follows(segments, 1))
  if not count or count >= t:
    return everywhere
  assert key is not None, 'a sample is drawn by a key'
  lots = jnp.where(everywhere.is_real, jax.random.uniform(key, segments.shape), -1.0)

  def draw(lots: Float[Array, 'b t']) -> tuple[Float[Array, 'b a'], Int[Array, 'b a']]:
    found, place = jax.lax.top_k(lots, count)
    return found, place

  found, place = by_rows(draw)(lots)
  is_real = found >= 0
  weight = everywhere.is_real.sum(1) / jnp.maximum(is_real.sum(1), 1)
  return Anchors(place, is_real, weight.astype(everywhere.weight.dtype))
