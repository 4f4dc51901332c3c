"""Convolutions over tokens: the frames of inputs in packed rows, in chains and in trees.

A frame is one vector of a token's own input and its neighbours', oldest first. A convolution is a
linear layer on frames, and its kernel always has that layer's shape, [outputs, width * channels].
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fastdec.cache.conv import LayerConv
from fastdec.models.api import NO_PARENT, Nodes


def packed_frames(
  x: Float[Array, 'b t c'], segment: Int[Array, 'b t'], offsets: Iterable[int]
) -> Float[Array, 'b t f']:
  """Frames of whole rows: each token's inputs at these offsets, zeros beyond its own segment.

  Args:
    x: the layer's inputs.
    segment: numbers of the sentences in a row; 0 is padding.
    offsets: (-2, -1, 0) for a causal convolution of width 3, (-1, 0, 1) for a centred one.
  """
  return jnp.concatenate([_shifted(x, segment, offset) for offset in offsets], axis=-1)


def node_frames(layer: LayerConv, nodes: Nodes) -> Float[Array, 'b n f']:
  """Frames of the nodes in the cache: each reads its path in the tree, then committed inputs."""
  n, width = layer.inputs.shape[1] - layer.past, layer.width
  inputs = layer.inputs[:, layer.back :]
  if nodes.is_chain:
    return jnp.concatenate([inputs[:, i : i + n] for i in range(width)], axis=-1)
  slots = reads(nodes, width)
  frames = (
    inputs[:, slots] if slots.ndim == 2 else jax.vmap(lambda row, slot: row[slot])(inputs, slots)
  )
  return frames.reshape(*frames.shape[:2], -1)


def reads(nodes: Nodes, width: int) -> Int[Array | np.ndarray, '*b n w']:
  """Slots of `cache.conv.LayerConv` in each node's frame, oldest first.

  Slot 0 is the first of the w - 1 committed inputs.
  Width 3 in the example of `Nodes`:
      slot  0 1 | 2=root 3=a 4=b 5=aa
    root    0 1 2
    b         1 2 4
    aa          2 3 5
  """
  past, parents = width - 1, nodes.parents
  xp: Any = np if isinstance(parents, np.ndarray) else jnp
  above = xp.where(parents == NO_PARENT, past - 1, past + parents)  # the slot before each node's
  slots = [xp.broadcast_to(past + xp.arange(parents.shape[-1], dtype=parents.dtype), parents.shape)]
  for _ in range(past):
    of_node = xp.take_along_axis(above, (slots[0] - past).clip(0), axis=-1)
    slots.insert(0, xp.where(slots[0] < past, slots[0] - 1, of_node))
  return xp.stack(slots, axis=-1)


def _shifted(
  x: Float[Array, 'b t c'], segment: Int[Array, 'b t'], offset: int
) -> Float[Array, 'b t c']:
  if offset == 0:
    return x

  def move(y):
    return _moved(y, offset)

  return jnp.where((move(segment) == segment)[:, :, None], move(x), 0)


def _moved(x: Array, offset: int) -> Array:
  """Returns x[:, t + offset] at t, zeros beyond the ends."""
  t, n = x.shape[1], min(abs(offset), x.shape[1])
  zeros = jnp.zeros_like(x[:, :n])
  return jnp.concatenate([zeros, x[:, : t - n]] if offset < 0 else [x[:, n:], zeros], axis=1)
