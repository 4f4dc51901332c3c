"""Convolution cache: the last inputs of causal convolutions. Its size does not grow with the text.

A convolution of width w reads a position's own input and the w - 1 before it. So each layer keeps
its last w - 1 committed inputs, oldest first. From `write` to `commit` the inputs of the call's n
nodes follow them:

    w = 3, nodes root, a, b, aa as in `models.api.Nodes`
    slot      0  1 | 2=root 3=a 4=b 5=aa         commit of root, a, aa keeps slots 3 and 5

Before the first token there are zeros, the padding of training. Nothing is overwritten before
`commit`, so any path of nodes can be kept. (fairseq's `LinearizedConvolution` takes one step at a
time.) The cache of a draft model can take back up to `Capacity.back` committed tokens. For these it
keeps `back` more inputs before the w - 1, and shifts them right by the number of tokens taken back.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from fastdec import struct
from fastdec.kernels.sharding import constrain


@struct.pytree
class LayerConv:
  """Inputs of one convolution: `past` committed ones, then those of the nodes written last."""

  inputs: Float[Array, 'b s c']
  width: int = struct.static()  # w, of the convolution
  # committed inputs that no convolution reads, unless newer ones are taken back
  back: int = struct.static()

  @property
  def past(self) -> int:
    return self.back + self.width - 1

  def write(self, x: Float[Array, 'b n c']) -> 'LayerConv':
    """Puts the inputs of n nodes after the committed ones."""
    committed = self.inputs[:, : self.past]
    return dataclasses.replace(
      self, inputs=jnp.concatenate([committed, x.astype(committed.dtype)], axis=1)
    )

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'LayerConv':
    """Keeps the last `past` of the committed inputs and the first `count` nodes of `path`."""
    # slots among the committed inputs, followed by those of the path
    slots = count[:, None] + jnp.arange(self.past, dtype=count.dtype)[None]
    # A negative count would need older inputs than the cache has, but nothing reads these again.
    slots = jnp.maximum(slots, 0)
    if path is not None:
      node = jnp.take_along_axis(path, (slots - self.past).clip(0, path.shape[1] - 1), axis=1)
      slots = jnp.where(slots < self.past, slots, self.past + node)
    return dataclasses.replace(
      self, inputs=jnp.take_along_axis(self.inputs, slots[:, :, None], axis=1)
    )


@struct.pytree
class ConvCache:
  """Memory of a decoder's convolutions, with the methods of `cache.kv.KVCache`."""

  layers: tuple[LayerConv, ...]
  length: Int[Array, ' b']

  @classmethod
  def empty(
    cls, layers: Sequence[tuple[int, int]], rows: int, dtype: DTypeLike, back: int = 0
  ) -> 'ConvCache':
    """A cache without tokens.

    Args:
      layers: (input channels, kernel width) of each.
      rows: sequences of the batch; they lie along 'data' on a mesh.
      dtype: type of the inputs.
      back: tokens that a negative `commit` may take back, as in `models.api.Capacity`.
    """

    def empty(channels: int, width: int) -> LayerConv:
      inputs = jnp.zeros((rows, back + width - 1, channels), dtype)
      return LayerConv(constrain(inputs, 'data'), width, back)

    entries = tuple(empty(channels, width) for channels, width in layers)
    return cls(entries, constrain(jnp.zeros(rows, jnp.int32), 'data'))

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'ConvCache':
    """Keeps the first `count` nodes of `path` among the nodes written last, and forgets the rest.

    Args:
      path: node indices from the root down; None for a chain, whose nodes already stand in order.
      count: nodes to keep in each row. 0 leaves a row as it was; a negative count takes tokens
        back, at most `back`.
    """
    return ConvCache(tuple(layer.commit(path, count) for layer in self.layers), self.length + count)

  def gather(self, rows: Int[Array, ' w']) -> 'ConvCache':
    """See `KVCache.gather`."""
    return jax.tree.map(lambda x: x[rows], self)

  def take(self, rows: Int[Array, ' r'], beams: int) -> 'ConvCache':
    """See `KVCache.take`."""
    return self.gather(
      (rows[:, None] * beams + jnp.arange(beams, dtype=rows.dtype)[None]).reshape(-1)
    )
