"""Key/value cache: one entry per layer, one length per row, rollback by length.

Rows are left-aligned. Slots from a row's length on hold garbage that every mask hides. `write` puts
n nodes there, and `commit` keeps a path of them by raising the length: a chain is not copied. The
layers are a tuple and not one stacked array, which a `lax.while_loop` would copy in every step.

`write` needs n free slots. `lax.dynamic_update_slice` clamps its start, so a write after slot
slots - n would silently overwrite committed entries. Make the cache with slots >= padded prompt
+ max_len + n.
"""

import dataclasses
import operator
from typing import SupportsIndex, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from fastdec import struct
from fastdec.kernels.sharding import constrain

T = TypeVar('T', bound='RowsFirst')
Own = tuple[Array, Array]  # a call's keys and values, [b, g, n, p], as `LayerKV.write` takes them


@struct.pytree
class LayerKV:
  """Keys and values of one layer, in the order in which attention multiplies them.

  A head's keys have their slots last: queries [m, p] times keys [p, s] are scores [m, s], and these
  times values [s, p] are the output. XLA's CPU backend multiplies keys [s, p] several times slower.
  """

  k: Float[Array, 'b g p s']
  v: Float[Array, 'b g s p']

  @classmethod
  def empty(cls, rows: int, heads: int, slots: int, width: int, dtype: DTypeLike) -> 'LayerKV':
    """Returns an empty entry; see `KVCache.empty`."""
    k = constrain(jnp.zeros((rows, heads, width, slots), dtype), 'data', 'model')
    v = constrain(jnp.zeros((rows, heads, slots, width), dtype), 'data', 'model')
    return cls(k, v)

  @classmethod
  def of(cls, k: Float[Array, 'b g s p'], v: Float[Array, 'b g s p']) -> 'LayerKV':
    """Returns an entry that is full of these keys and values."""
    return cls(k.swapaxes(2, 3), v)

  @property
  def slots(self) -> int:
    return self.v.shape[2]

  def write(
    self, k: Float[Array, 'b g n p'], v: Float[Array, 'b g n p'], start: Int[Array, ' b']
  ) -> 'LayerKV':
    """Puts n new entries at slots start..start+n-1 of each row."""
    k, v = _put(self.k, k.swapaxes(2, 3), start, 3), _put(self.v, v, start, 2)
    return dataclasses.replace(self, k=k, v=v)

  def move(self, source: Int[Array, 'b m'], start: Int[Array, ' b']) -> 'LayerKV':
    """Copies the entries at slots `source` to start..start+m-1."""
    k = jnp.take_along_axis(self.k, source[:, None, None, :], axis=3)
    v = jnp.take_along_axis(self.v, source[:, None, :, None], axis=2)
    return self.write(k.swapaxes(2, 3), v, start)


class RowsFirst:
  """A cache whose arrays all have rows first, so that rows are chosen by an index."""

  def gather(self: T, rows: Int[Array, ' w']) -> T:
    """Returns the cache whose row i is row rows[i] of this one."""
    return jax.tree.map(lambda x: x[rows], self)


@struct.pytree
class KVCache(RowsFirst):
  """Memory of a decoder's self-attention; slots before `length` are committed."""

  layers: tuple[LayerKV, ...]
  length: Int[Array, ' b']

  @classmethod
  def empty(
    cls, layers: int, rows: int, heads: int, slots: SupportsIndex, width: int, dtype: DTypeLike
  ) -> 'KVCache':
    """Returns an empty cache of `layers` entries, see `LayerKV`.

    `slots` is an integer, or the `models.api.Capacity` that the loop passes to `init_cache`. On
    a mesh (`kernels.sharding`) rows are split over 'data' and heads over 'model'.
    """
    entries = []
    for _ in range(layers):
      entries.append(LayerKV.empty(rows, heads, operator.index(slots), width, dtype))
    return cls.of(tuple(entries), rows)

  @classmethod
  def of(cls, layers: tuple[LayerKV, ...], rows: int) -> 'KVCache':
    """Returns an empty cache with these empty entries."""
    return cls(layers, constrain(jnp.zeros(rows, jnp.int32), 'data'))

  @property
  def slots(self) -> int:
    return self.layers[0].slots

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'KVCache':
    """See `models.api.Cache.commit`."""
    layers = self.layers
    if path is not None:
      slots = self.length[:, None] + path
      layers = tuple(layer.move(slots, self.length) for layer in layers)
    return dataclasses.replace(self, layers=layers, length=self.length + count)


def _put(
  entry: Float[Array, 'b g _ _'], new: Float[Array, 'b g _ _'], start: Int[Array, ' b'], axis: int
) -> Float[Array, 'b g _ _']:
  put, new = jax.lax.dynamic_update_slice_in_dim, new.astype(entry.dtype)

  # One row and one token: write the shape that loops carry, see `fastdec.cache.loops`.
  if len(entry) == 1 and new.shape[axis] == 1:
    return put(entry[0], new[0], start[0], axis - 1)[None]
  if len(entry) == 1:
    return put(entry, new, start[0], axis)
  return jax.vmap(lambda row, new_row, at: put(row, new_row, at, axis - 1))(entry, new, start)
