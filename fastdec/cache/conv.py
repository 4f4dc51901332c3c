"""Convolution cache: the last inputs of causal convolutions. Its size does not grow with the text.

A convolution of width w reads a position's own input and the w - 1 inputs before it. So each layer
keeps its last w - 1 committed inputs, oldest first. Between `write` and `commit` they are followed
by the inputs of the call's n nodes:

    w = 3, nodes root, a, b, aa as in `models.api.Nodes`
    slot      0  1 | 2=root 3=a 4=b 5=aa         commit of root, a, aa keeps slots 3 and 5

The inputs before the first token are zeros, like the padding in training. Nothing is overwritten
before `commit`, so any path of nodes can be kept. (fairseq's `LinearizedConvolution` advances by
one position at a time.) The cache of a draft model can take back up to `Capacity.back` committed
tokens. For this it keeps `back` older inputs too, and shifts all of them right by the number of
tokens that are taken back.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from fastdec import struct
from fastdec.cache.kv import RowsFirst
from fastdec.kernels.sharding import constrain


@struct.pytree
class LayerConv:
  """Inputs of one convolution: `past` committed ones, then those of the nodes written last."""

  inputs: Float[Array, 'b s c']
  width: int = struct.static()  # w, of the convolution
  # older committed inputs, which are read only after newer ones have been taken back
  back: int = struct.static()

  @property
  def past(self) -> int:
    """Number of committed inputs."""
    return self.back + self.width - 1

  def write(self, x: Float[Array, 'b n c']) -> 'LayerConv':
    """Puts the inputs of n nodes after the committed ones."""
    committed = self.inputs[:, : self.past]
    inputs = jnp.concatenate([committed, x.astype(committed.dtype)], axis=1)
    return dataclasses.replace(self, inputs=inputs)

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'LayerConv':
    """Keeps the last `past` inputs of the sequence: committed inputs, `count` nodes of `path`."""
    # A negative count would need inputs older than the cache has, but nothing reads these again.
    slots = count[:, None] + jnp.arange(self.past, dtype=count.dtype)[None]
    slots = jnp.maximum(slots, 0)

    # Slots from `past` on count along the path: look up which node each of them is.
    if path is not None:
      node = jnp.take_along_axis(path, (slots - self.past).clip(0, path.shape[1] - 1), axis=1)
      slots = jnp.where(slots < self.past, slots, self.past + node)
    inputs = jnp.take_along_axis(self.inputs, slots[:, :, None], axis=1)
    return dataclasses.replace(self, inputs=inputs)


@struct.pytree
class ConvCache(RowsFirst):
  """Memory of a decoder's convolutions, with the methods of `cache.kv.KVCache`."""

  layers: tuple[LayerConv, ...]
  length: Int[Array, ' b']

  @classmethod
  def empty(
    cls, layers: Sequence[tuple[int, int]], rows: int, dtype: DTypeLike, back: int = 0
  ) -> 'ConvCache':
    """Returns a cache without tokens.

    Args:
      layers: (input channels, kernel width) of each layer.
      rows: sequences of the batch; on a mesh they are split over 'data'.
      dtype: type of the inputs.
      back: tokens that a negative `commit` may take back, as in `models.api.Capacity`.
    """
    entries = []
    for channels, width in layers:
      inputs = jnp.zeros((rows, back + width - 1, channels), dtype)
      entries.append(LayerConv(constrain(inputs, 'data'), width, back))
    return cls(tuple(entries), constrain(jnp.zeros(rows, jnp.int32), 'data'))

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'ConvCache':
    """See `models.api.Cache.commit`."""
    layers = []
    for layer in self.layers:
      layers.append(layer.commit(path, count))
    return ConvCache(tuple(layers), self.length + count)
