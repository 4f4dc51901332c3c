"""Ring cache for local attention: what nobody sees any more is overwritten, so its size is that of
the window.

1D local attention with blocks of B positions sees its own block up to the position, and the whole
block before: at most the last 2B - 1 committed positions. With n nodes more, a ring of 2B + n - 1
slots is enough, whatever the length. Position p of a chain lies in slot p mod size. A row with 5
committed of 7 slots (B = 2, n = 4), nodes at 5, 6, 7, 8:

    slot      0  1  2  3  4  5  6
    holds     7  8  2  3  4  5  6        0 and 1 are gone: no node sees further back than position 2

Rollback is by length, as in `cache.kv`: rejected nodes took the places of positions that nobody
sees any more.
"""

from typing import SupportsIndex

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from fastdec import struct
from fastdec.cache.kv import KVCache, LayerKV


def ring_size(block: int, nodes: int) -> int:
  """Slots of a ring for local attention in blocks of `block`, when no call has more than `nodes`
  tokens."""
  return 2 * block + nodes - 1


@struct.pytree
class LayerRing(LayerKV):
  """Keys and values of one layer; slots are counted modulo their number."""

  def write(
    self, k: Float[Array, 'b g n p'], v: Float[Array, 'b g n p'], start: Int[Array, ' b']
  ) -> 'LayerRing':
    """Puts n new entries at slots start..start+n-1 of each row, going round."""
    slots_bn = (start[:, None] + jnp.arange(k.shape[2], dtype=start.dtype)[None]) % self.k.shape[2]
    put = jax.vmap(lambda ring, new, slots: ring.at[:, slots].set(new, unique_indices=True))
    return LayerRing(
      put(self.k, k.astype(self.k.dtype), slots_bn), put(self.v, v.astype(self.v.dtype), slots_bn)
    )

  def moved(self, source: Int[Array, 'b m'], start: Int[Array, ' b']) -> LayerKV:
    """See `LayerKV.moved`."""
    return super().moved(source % self.k.shape[2], start)


@struct.pytree
class LocalCache(KVCache):
  """What local self-attention remembers; verbs as `KVCache`, of which the last 2B - 1 committed
  positions are kept."""

  block: int = struct.static()

  @classmethod
  def empty_ring(
    cls,
    layers: int,
    rows: int,
    heads: int,
    slots: SupportsIndex,
    width: int,
    dtype: DTypeLike,
    block: int,
  ) -> 'LocalCache':
    """An empty ring of `slots` slots (see `ring_size`), laid out on a mesh as `KVCache.empty`."""
    whole = KVCache.empty(layers, rows, heads, slots, width, dtype)
    return cls(tuple(LayerRing(layer.k, layer.v) for layer in whole.layers), whole.length, block)
