"""Anchors: the places of packed sentences at which drafts and heads learn.

An anchor is a place t whose token is the root of a call: decoding has accepted it, the target has
read all before it, and the draft guesses the tokens after it. So a draft learns exactly the task
that it has in decoding:

  target     a b c d . 0      segments   1 1 1 1 1 0
  anchor     t = 1: the root is b; features of places 0 and 1 are known
             (the target predicted b at place 1)
  guesses    c d .

The last place of a sentence cannot be an anchor, because nothing follows it. The anchors are all
other places or a sample of them: the logits of a guess cost more than the rest of a training step.
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
  is_real: Bool[Array, 'b a']  # false pads rows that have fewer anchors
  weight: Float[Array, ' b']  # a row's number of anchors, divided by the number in the sample

  def take(self, x: Array, ahead: int | Int[Array, ''] = 0) -> Array:
    """Returns the entries of x [b, t, ...] at `ahead` places after the anchors.

    Beyond the end of a row it takes the last place.
    """
    place = jnp.minimum(self.place + ahead, x.shape[1] - 1)
    place = place.reshape(*place.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, place, axis=1)

  def follows(self, segments: Int[Array, 'b t'], ahead: int) -> Bool[Array, 'b a']:
    """Marks the anchors whose sentence has a token `ahead` places after them."""
    is_inside = self.place + ahead < segments.shape[1]
    return self.is_real & is_inside & (self.take(segments, ahead) == self.take(segments))


def anchors_of(batch: Mapping[str, Any], count: int = 0, key: Array | None = None) -> Anchors:
  """Returns all anchors of a batch, or a sample of `count` in each row (0: all)."""
  segments = jnp.asarray(batch['target_segment'])
  b, t = segments.shape
  place = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32), segments.shape)
  everywhere = Anchors(place, segments != 0, jnp.ones(b))
  everywhere = dataclasses.replace(everywhere, is_real=everywhere.follows(segments, 1))
  if not count or count >= t:
    return everywhere
  assert key is not None, 'a sample is drawn by a key'
  lots = jnp.where(everywhere.is_real, jax.random.uniform(key, segments.shape), -1.0)

  lot, place = by_rows(lambda lots: jax.lax.top_k(lots, count))(lots)
  is_real = lot >= 0
  weight = everywhere.is_real.sum(1) / jnp.maximum(is_real.sum(1), 1)
  return Anchors(place, is_real, weight.astype(everywhere.weight.dtype))
