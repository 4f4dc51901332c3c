"""Convolutions over tokens: the frames of inputs in packed rows, in chains and in trees.

A frame joins a token's own input and its neighbours' inputs, oldest first, to one vector.
A convolution is a linear layer on frames: its kernel has the shape [outputs, width * channels].
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
  """Frames of whole rows: each token's inputs at these offsets, zeros outside its own segment.

  Args:
    x: the layer's inputs.
    segment: number of the sentence that each token belongs to; 0 is padding.
    offsets: (-2, -1, 0) for a causal convolution of width 3, (-1, 0, 1) for a centred one.
  """
  frames = []
  for offset in offsets:
    if offset == 0:
      frames.append(x)
    else:
      is_same = _shift(segment, offset) == segment
      frames.append(jnp.where(is_same[:, :, None], _shift(x, offset), 0))
  return jnp.concatenate(frames, axis=-1)


def node_frames(layer: LayerConv, nodes: Nodes) -> Float[Array, 'b n f']:
  """Frames of the nodes in the cache: a node reads committed inputs and its path in the tree."""
  n, width = layer.inputs.shape[1] - layer.past, layer.width
  inputs = layer.inputs[:, layer.back :]
  if nodes.is_chain:
    return jnp.concatenate([inputs[:, i : i + n] for i in range(width)], axis=-1)
  slots = frame_slots(nodes, width)
  if slots.ndim == 2:
    frames = inputs[:, slots]
  else:
    frames = jax.vmap(lambda row, slot: row[slot])(inputs, slots)
  return frames.reshape(*frames.shape[:2], -1)


def frame_slots(nodes: Nodes, width: int) -> Int[Array | np.ndarray, '*b n w']:
  """Returns the slots of `cache.conv.LayerConv` in each node's frame, oldest first.

  Slot 0 is the first of the w - 1 committed inputs that can be read.
  Width 3 in the example of `Nodes`:
      slot  0 1 | 2=root 3=a 4=b 5=aa
    root    0 1 2
    b         1 2 4
    aa          2 3 5
  """
  past, parents = width - 1, nodes.parents
  xp: Any = np if isinstance(parents, np.ndarray) else jnp
  # Begin with each node's own slot, and walk up: to its parent, or to the committed input before.
  parent_slots = xp.where(parents == NO_PARENT, past - 1, past + parents)
  own = past + xp.arange(parents.shape[-1], dtype=parents.dtype)
  slots = [xp.broadcast_to(own, parents.shape)]
  for _ in range(past):
    of_node = xp.take_along_axis(parent_slots, (slots[0] - past).clip(0), axis=-1)
    slots.insert(0, xp.where(slots[0] < past, slots[0] - 1, of_node))
  return xp.stack(slots, axis=-1)


def _shift(x: Array, offset: int) -> Array:
  """Returns x[:, t + offset] at t, zeros beyond the ends."""
  t, n = x.shape[1], min(abs(offset), x.shape[1])
  zeros = jnp.zeros_like(x[:, :n])
  if offset < 0:
    return jnp.concatenate([zeros, x[:, : t - n]], axis=1)
  return jnp.concatenate([x[:, n:], zeros], axis=1)
