"""Key/value cache: one entry per layer, one length per row, rollback by length.

Rows are left-aligned. Slots at and after a row's length are garbage that every mask hides. `write`
puts n nodes there, and `commit` keeps a path of them by moving the length: a chain is not copied.
The layers stay a tuple: a `lax.while_loop` would copy one stacked array whole at every step.

A writer needs free slots. `lax.dynamic_update_slice` clamps its start, so n entries at a slot later
than slots - n would silently overwrite committed ones. Build the cache with slots >= padded prompt
+ max_len + n.
"""

import dataclasses
import operator
from typing import SupportsIndex

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from fastdec import struct
from fastdec.kernels.sharding import constrain


@struct.pytree
class LayerKV:
  """Keys and values of one layer: heads before slots, so a head's slots lie together."""

  k: Float[Array, 'b g s p']
  v: Float[Array, 'b g s p']

  @classmethod
  def empty(cls, rows: int, heads: int, slots: int, width: int, dtype: DTypeLike) -> 'LayerKV':
    """Returns an empty entry; see `KVCache.empty`."""
    shape = (rows, heads, slots, width)
    return cls(*(constrain(jnp.zeros(shape, dtype), 'data', 'model') for _ in range(2)))

  @property
  def slots(self) -> int:
    return self.k.shape[2]

  def write(
    self, k: Float[Array, 'b g n p'], v: Float[Array, 'b g n p'], start: Int[Array, ' b']
  ) -> 'LayerKV':
    """Puts n new entries at slots start..start+n-1 of each row."""
    return dataclasses.replace(self, k=_put(self.k, k, start), v=_put(self.v, v, start))

  def moved(self, source: Int[Array, 'b m'], start: Int[Array, ' b']) -> 'LayerKV':
    """Copies the entries at slots `source` to start..start+m-1."""

    def take(entry: Array) -> Array:
      return jnp.take_along_axis(entry, source[:, None, :, None], axis=2)

    return self.write(take(self.k), take(self.v), start)


@struct.pytree
class KVCache:
  """Memory of a decoder's self-attention; slots before `length` are committed."""

  layers: tuple[LayerKV, ...]
  length: Int[Array, ' b']

  @classmethod
  def empty(
    cls, layers: int, rows: int, heads: int, slots: SupportsIndex, width: int, dtype: DTypeLike
  ) -> 'KVCache':
    """Returns an empty cache of `layers` times [rows, heads, slots, width].

    `slots` is an integer, or the `models.api.Capacity` that the loop gives to `init_cache`.
    On a mesh (`kernels.sharding`) it is created in parts: rows along 'data', heads along 'model'.
    """
    size = (rows, heads, operator.index(slots), width, dtype)
    return cls.of(tuple(LayerKV.empty(*size) for _ in range(layers)), rows)

  @classmethod
  def of(cls, layers: tuple[LayerKV, ...], rows: int) -> 'KVCache':
    """Returns an empty cache of these empty entries."""
    return cls(layers, constrain(jnp.zeros(rows, jnp.int32), 'data'))

  @property
  def slots(self) -> int:
    return self.layers[0].slots

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'KVCache':
    """Keeps the first `count` nodes of `path` among the nodes written last, and forgets the rest.

    Args:
      path: node indices from the root down; None for a chain, whose nodes already stand in order.
      count: nodes to keep in each row; 0 leaves a row as it was.
    """
    layers = self.layers
    if path is not None:
      layers = tuple(layer.moved(self.length[:, None] + path, self.length) for layer in layers)
    return dataclasses.replace(self, layers=layers, length=self.length + count)

  def gather(self, rows: Int[Array, ' w']) -> 'KVCache':
    """Returns the cache whose row i is row rows[i] of this one; beam search reorders with it."""
    return jax.tree.map(lambda x: x[rows], self)

  def take(self, rows: Int[Array, ' r'], beams: int) -> 'KVCache':
    """Returns the cache of these sources alone; each has `beams` rows here."""
    return self.gather(
      (rows[:, None] * beams + jnp.arange(beams, dtype=rows.dtype)[None]).reshape(-1)
    )


def _put(
  entry: Float[Array, 'b g s p'], new: Float[Array, 'b g n p'], start: Int[Array, ' b']
) -> Float[Array, 'b g s p']:
  zero, new = jnp.zeros((), start.dtype), new.astype(entry.dtype)
  if len(entry) == 1 and new.shape[2] == 1:  # as it lies in a loop: see `fastdec.cache.loops`
    return jax.lax.dynamic_update_slice(entry[0], new[0], (zero, start[0], zero))[None]
  if len(entry) == 1:
    return jax.lax.dynamic_update_slice(entry, new, (zero, zero, start[0], zero))

  def write_row(row: Array, new_row: Array, at: Array) -> Array:
    return jax.lax.dynamic_update_slice(row, new_row, (zero, at, zero))

  return jax.vmap(write_row)(entry, new, start)
