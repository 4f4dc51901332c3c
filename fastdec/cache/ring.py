"""Ring cache for local attention: what nobody sees any more is overwritten, so its size is that of the window.

1D local attention with blocks of B positions sees its own block up to the position, and the whole block before: at most
the last 2B - 1 committed positions. With n nodes more, a ring of 2B + n - 1 slots is enough, whatever the length.
Position p of a chain lies in slot p mod size. A row with 5 committed of 7 slots (B = 2, n = 4), nodes at 5, 6, 7, 8:

    slot      0  1  2  3  4  5  6
    holds     7  8  2  3  4  5  6        0 and 1 are gone: no node sees further back than position 2

Rollback is by length, as in `cache.kv`: rejected nodes took the places of positions that nobody sees any more.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from fastdec import struct
from fastdec.cache.kv import KVCache, LayerKV


class Slots(int):
  """The slots that a decode needs (prompt, output and nodes), and how many tokens one call of it has at most.

  A cache that remembers everything reads the number; a ring needs `nodes` alone.
  """

  nodes: int

  def __new__(cls, total: int, nodes: int) -> 'Slots':
    slots = super().__new__(cls, total)
    slots.nodes = nodes
    return slots


def ring_size(block: int, slots: int) -> int:
  """Slots of a ring for local attention in blocks of `block`; of a plain number of slots, all of them."""
  return 2 * block + slots.nodes - 1 if isinstance(slots, Slots) else max(slots, 2 * block)


@struct.pytree
class LayerRing(LayerKV):
  """Keys and values of one layer; slots are counted modulo their number."""

  def write(self, k: Float[Array, 'b g n p'], v: Float[Array, 'b g n p'], start: Int[Array, ' b']) -> 'LayerRing':
    """Puts n new entries at slots start..start+n-1 of each row, going round."""
    slots_bn = (start[:, None] + jnp.arange(k.shape[2], dtype=start.dtype)[None]) % self.k.shape[2]
    put = jax.vmap(lambda ring, new, slots: ring.at[:, slots].set(new, unique_indices=True))
    return LayerRing(put(self.k, k.astype(self.k.dtype), slots_bn), put(self.v, v.astype(self.v.dtype), slots_bn))

  def moved(self, source: Int[Array, 'b m'], start: Int[Array, ' b']) -> 'LayerRing':
    """See `LayerKV.moved`."""
    return super().moved(source % self.k.shape[2], start)


@struct.pytree
class LocalCache(KVCache):
  """What local self-attention remembers; verbs as `KVCache`, of which the last 2B - 1 committed positions are kept."""

  block: int = struct.static()

  @classmethod
  def empty(
    cls, layers: int, rows: int, heads: int, slots: int, width: int, dtype: DTypeLike, block: int
  ) -> 'LocalCache':
    """An empty ring of `slots` slots (see `ring_size`), laid out on a mesh as `KVCache.empty`."""
    whole = KVCache.empty(layers, rows, heads, slots, width, dtype)
    return cls(tuple(LayerRing(layer.k, layer.v) for layer in whole.layers), whole.length, block)
