"""Ring cache for local attention: positions that have left the window are overwritten.

In 1D local attention with blocks of B positions, a position sees its own block up to itself and
the whole block before: at most the last 2B - 1 committed positions. With n more nodes, a ring of
2B + n - 1 slots is enough at any length. Position p of a chain is in slot p mod size. Example:
5 committed positions in 7 slots (B = 2, n = 4), nodes at 5, 6, 7, 8:

    slot      0  1  2  3  4  5  6
    holds     7  8  2  3  4  5  6        0 and 1 are gone: no node sees further back than position 2

Rollback is by length, as in `cache.kv`: rejected nodes have overwritten only positions that no node
sees any more.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.cache.kv import LayerKV


@struct.pytree
class LayerRing(LayerKV):
  """Keys and values of one layer; a slot's number is taken modulo the number of slots."""

  def write(
    self, k: Float[Array, 'b g n p'], v: Float[Array, 'b g n p'], start: Int[Array, ' b']
  ) -> LayerKV:
    """Puts n new entries at slots start..start+n-1 of each row; after the last comes slot 0."""
    if k.shape[2] == 1:
      return super().write(k, v, start % self.slots)

    slots_bn = (start[:, None] + jnp.arange(k.shape[2], dtype=start.dtype)[None]) % self.slots
    set_k = jax.vmap(lambda ring, new, slots: ring.at[:, :, slots].set(new, unique_indices=True))
    set_v = jax.vmap(lambda ring, new, slots: ring.at[:, slots].set(new, unique_indices=True))
    k = set_k(self.k, k.swapaxes(2, 3).astype(self.k.dtype), slots_bn)
    v = set_v(self.v, v.astype(self.v.dtype), slots_bn)
    return dataclasses.replace(self, k=k, v=v)

  def move(self, source: Int[Array, 'b m'], start: Int[Array, ' b']) -> LayerKV:
    """See `LayerKV.move`."""
    return super().move(source % self.slots, start)
