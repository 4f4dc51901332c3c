"""Attention over a cache: its masks, and the product itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Shaped

from fastdec.cache.kv import LayerKV
from fastdec.cache.ring import LayerRing
from fastdec.kernels.sums import softmax
from fastdec.models.api import Nodes
from fastdec.models.layers import narrow_in_training, narrow_product

LONG = 1024  # slots of a long cache, at least
MOST = 128  # tokens of a decoding call, at most: more are a prompt's
PART = 32  # rows of a product that XLA's CPU backend sums in one order


def node_mask(nodes: Nodes, length: Int[Array, ' b'], slots: int) -> Bool[Array, 'b n s']:
  """Mask of the slots that each node sees. The n nodes are in slots length..length+n-1.

  Example: a row with 6 slots, 2 of them committed, and the nodes root, a, b, aa of `Nodes`:
      slot  0 1 | 2=root 3=a 4=b 5=aa
    aa    [ 1 1   1      1   0   1 ]
  """
  if nodes.paths is not None:
    return nodes.paths.mask
  node_bs = _number_slots(length, slots)
  committed_bs = node_bs < 0
  return committed_bs[:, None, :] | _among_nodes(nodes, node_bs)


def slot_positions(nodes: Nodes, length: Int[Array, ' b'], slots: int) -> Int[Array, 'b s']:
  """Returns the position of each slot's token; the position of a node follows from its depth.

    slot      0 1 | 2=root 3=a 4=b 5=aa
  position    0 1     2     3   3   4
  """
  if nodes.paths is not None:
    return nodes.paths.positions
  n = nodes.n
  node_bs = _number_slots(length, slots)
  depths_bn = jnp.broadcast_to(nodes.depths, (length.shape[0], n))
  depth_bs = jnp.take_along_axis(depths_bn, node_bs.clip(0, n - 1), axis=1)
  return length[:, None] + jnp.where(node_bs < 0, node_bs, depth_bs)


def local_mask(
  nodes: Nodes, length: Int[Array, ' b'], slots: int, block: int
) -> Bool[Array, 'b n s']:
  """Returns `node_mask` for a ring (`cache.ring`): a node sees its own block and the one before."""
  at_bn = length[:, None] + jnp.broadcast_to(nodes.depths, (length.shape[0], nodes.n))
  first_bn = jnp.maximum(at_bn // block - 1, 0) * block
  return ring_mask(nodes, length, slots, first_bn)


def ring_mask(
  nodes: Nodes, length: Int[Array, ' b'], slots: int, first_bn: Int[Array, 'b n']
) -> Bool[Array, 'b n s']:
  """Returns `node_mask` for a ring: a node sees positions from `first_bn` >= 0 on."""
  # A slot holds a node of this call (0..n-1 ahead of the length) or a committed token, which was
  # written one round of the ring earlier.
  n = nodes.n
  ahead_bs = _number_slots(length, slots) % slots
  depths_bn = jnp.broadcast_to(nodes.depths, (length.shape[0], n))
  depth_bs = jnp.take_along_axis(depths_bn, ahead_bs.clip(0, n - 1), axis=1)
  position_bs = length[:, None] + jnp.where(ahead_bs < n, depth_bs, ahead_bs - slots)
  committed_bs = ahead_bs >= n
  sees_bns = committed_bs[:, None, :] | _among_nodes(nodes, ahead_bs)
  return sees_bns & (position_bs[:, None, :] >= first_bn[:, :, None])


def node_window(
  nodes: Nodes, length: Int[Array, ' b'], slots: int, window: int
) -> Bool[Array, 'b n s']:
  """Mask of the last `window` positions up to each node's own; combine it with `node_mask`.

  Window 3 in the example of `node_mask`: aa is at position 4 (depth 2 after two committed slots)
  and sees positions 2, 3 and 4.
      slot  0 1 | 2=root 3=a 4=b 5=aa
    aa    [ 0 0   1      1   1   1 ]
  """
  depths_bn = jnp.broadcast_to(nodes.depths, (length.shape[0], nodes.n))
  position_bs = slot_positions(nodes, length, slots)
  own_bn = length[:, None] + depths_bn
  return position_bs[:, None, :] > own_bn[:, :, None] - window


def layer_mask(
  nodes: Nodes, length: Int[Array, ' b'], layer: LayerKV, window: int
) -> Bool[Array, 'b n s']:
  """Returns the mask of a layer's slots, in a ring or not; a node sees the last `window` positions.

  Window 0: it sees all positions before its own."""
  if isinstance(layer, LayerRing):
    at_bn = length[:, None] + jnp.broadcast_to(nodes.depths, (length.shape[0], nodes.n))
    return ring_mask(nodes, length, layer.slots, jnp.maximum(at_bn - window + 1, 0))
  mask = node_mask(nodes, length, layer.slots)
  if window:
    mask &= node_window(nodes, length, layer.slots, window)
  return mask


def _number_slots(length: Int[Array, ' b'], slots: int) -> Int[Array, 'b s']:
  """Returns the index of the node in each slot; it is negative in committed slots."""
  return jnp.arange(slots, dtype=length.dtype)[None] - length[:, None]


def _among_nodes(nodes: Nodes, node_bs: Int[Array, 'b s']) -> Bool[Array, 'b n s']:
  """True if a node sees the node in a slot; false for slots without a node."""
  n = nodes.n
  inside_bs = (node_bs >= 0) & (node_bs < n)
  if nodes.is_chain:
    index_n = jnp.arange(n, dtype=node_bs.dtype)
    return inside_bs[:, None, :] & (node_bs[:, None, :] <= index_n[None, :, None])

  # A tree's mask: take the column of each slot's node.
  node_bs, mask = node_bs.clip(0, n - 1), jnp.asarray(nodes.mask)
  if mask.ndim == 2:
    sees_bns = jnp.moveaxis(mask[:, node_bs], 0, 1)
  else:
    sees_bns = jnp.take_along_axis(mask, node_bs[:, None, :], axis=2)
  return inside_bs[:, None, :] & sees_bns


def attend(
  q: Float[Array, 'b n h p'],
  kv: LayerKV,
  mask: Bool[Array, '#b #n s'],
  drop: Callable[[Array], Array] = lambda weights: weights,
  bias: Float[Array, '#b h #n s'] | None = None,
  scale: float | None = None,
  cap: float | None = None,
  sinks: Float[Array, ' h'] | None = None,
) -> Float[Array, 'b n h p']:
  """Scaled dot-product attention: values mixed by weights. Training drops some weights (`drop`)."""
  return mix(drop(weights_of(q, kv.k, mask, bias, scale, cap, sinks)), kv.v)


def attend_to_used(
  q: Float[Array, 'b n h p'],
  kv: LayerKV,
  mask: Bool[Array, '#b #n s'],
  used: Int[Array, ''],
  **settings: Any,
) -> Float[Array, 'b n h p']:
  """Returns `attend`, but skips slots that are hidden from all nodes: those from `used` on.

  A CPU that reads a prompt into a long cache reads only a quarter or a half of the cache, if that
  is enough. In calls on few tokens, and on other devices, this choice would cost more than it
  saves.
  """
  if q.shape[1] <= MOST or kv.slots < LONG:
    return attend(q, kv, mask, **settings)

  def attend_to_part() -> Array:
    ends = (kv.slots // 4, kv.slots // 2, kv.slots)
    branches = []
    for end in ends:
      part = LayerKV(kv.k[..., :end], kv.v[:, :, :end])
      seen = mask[:, :, :end]
      branches.append(lambda part=part, seen=seen: attend(q, part, seen, **settings))
    choice = sum((used > end).astype(jnp.int32) for end in ends[:-1])
    return jax.lax.switch(choice, branches)

  return jax.lax.platform_dependent(
    cpu=attend_to_part, default=lambda: attend(q, kv, mask, **settings)
  )


def weights_of(
  q: Float[Array, 'b n h p'],
  k: Float[Array, 'b g p s'],
  mask: Bool[Array, '#b #n s'],
  bias: Float[Array, '#b h #n s'] | None = None,
  scale: float | None = None,
  cap: float | None = None,
  sinks: Float[Array, ' h'] | None = None,
) -> Float[Array, 'b g r n s']:
  """Weight of each slot for each query: the softmax of scaled dot products, in float32 or wider.

  h query heads share g key heads, r = h / g each. `bias` is added to the scaled scores (relative
  positions); `scale` is 1 / sqrt(p) by default; `cap` bounds the scaled scores. `sinks` has a score
  for each head that competes with the slots' scores: its share of the weights goes to no slot.
  A row that sees nothing (an empty source) gets equal weights: finite, and never read.
  """
  b, n, h, p = q.shape
  g, s = k.shape[1], k.shape[3]
  r = h // g
  wide = np.promote_types(q.dtype, np.float32)

  def rows(x: Shaped[Array, '#b #g #r #n s']) -> Shaped[Array, '#b #g m s']:
    """Joins the axes r and n: XLA's gradient of a softmax takes twice as long over five axes."""
    if r == 1:
      return x[:, :, 0]
    x = jnp.broadcast_to(x, (*x.shape[:2], r, n, s))
    return x.reshape(*x.shape[:2], r * n, s)

  # Scale the scores and not the queries, which in half precision would be rounded once more.
  q_bgmp = jnp.moveaxis(q.reshape(b, n, g, r, p), 1, 3).reshape(b, g, r * n, p)
  scores = narrow_in_training(_product(q_bgmp, k, wide, n), q.dtype)
  scores *= p**-0.5 if scale is None else scale
  if cap is not None:
    scores = cap * jnp.tanh(scores / cap)
  if bias is not None:
    scores += rows(bias.reshape(bias.shape[0], g, r, *bias.shape[2:])).astype(wide)
  scores = jnp.where(rows(mask[:, None, None]), scores, -1e30)

  # The sink is one more slot, whose weight is dropped after the softmax.
  if sinks is not None:
    sink = jnp.repeat(sinks.astype(wide).reshape(1, g, r), n, axis=-1)[..., None]
    scores = jnp.concatenate([scores, jnp.broadcast_to(sink, (b, g, r * n, 1))], axis=-1)
  weights = softmax(scores)[..., :s]
  return weights.astype(q.dtype).reshape(b, g, r, n, s)


def mix(weights: Float[Array, 'b g r n s'], v: Float[Array, 'b g s p']) -> Float[Array, 'b n h p']:
  """Returns the values mixed by these weights."""
  b, g, r, n, s = weights.shape
  weights_bgms = weights.reshape(b, g, r * n, s)
  mixed_bgmp = _product(weights_bgms, v, v.dtype, n)
  mixed_bngrp = jnp.moveaxis(mixed_bgmp.reshape(b, g, r, n, -1), 3, 1)
  return mixed_bngrp.reshape(b, n, g * r, -1)


def _product(
  x: Float[Array, 'b g m k'], y: Float[Array, 'b g k _'], dtype: DTypeLike, tokens: int
) -> Float[Array, 'b g m _']:
  """Returns x times y, in the type `dtype`; `tokens` is how many a call reads.

  On a CPU the rows of a decoding call are multiplied in parts, and a single row twice. XLA's
  loop for one row, and its products of more than `PART` rows, sum in different orders: a text in
  int8 would depend on how many tokens are read at once.
  """
  axes = (((3,), (2,)), ((0, 1), (0, 1)))

  def multiply(x: Array, y: Array) -> Array:
    if x.dtype == y.dtype == jnp.bfloat16 != dtype:
      return jax.vmap(jax.vmap(lambda x, y: narrow_product(x, y.T, dtype)))(x, y)
    return jax.lax.dot_general(x, y, axes, preferred_element_type=dtype)

  def multiply_in_parts(x: Array, y: Array) -> Array:
    m = x.shape[2]
    if m == 1:
      return multiply(jnp.concatenate([x, x], axis=2), y)[:, :, :1]
    size = -(-m // -(-m // PART))  # equal parts, so that none is a single row
    parts = [multiply(x[:, :, i : i + size], y) for i in range(0, m, size)]
    return jnp.concatenate(parts, axis=2)

  # Without the barrier, XLA finds no tiles on a GPU for 120 tokens by 4 heads of one key head.
  if tokens > MOST or 1 < x.shape[2] <= PART:
    return multiply(x, y)
  return jax.lax.platform_dependent(
    x, y, cpu=multiply_in_parts, default=lambda x, y: multiply(jax.lax.optimization_barrier(x), y)
  )


def attend_locally(
  q: Float[Array, 'b t h p'],
  kv: LayerKV,
  block: int,
  drop: Callable[[Array], Array] = lambda weights: weights,
) -> Float[Array, 'b t h p']:
  """1D local attention over whole sequences (Parmar et al. 2018).

  Position i sees its own block of `block` positions up to i, and the whole block before. This needs
  memory for t * 2 * block weights, not t * t.
  """
  # Cut the queries into blocks, as rows of their own.
  b, t, h, p = q.shape
  blocks = -(-t // block)
  pad = (0, blocks * block - t)
  q = jnp.pad(q, ((0, 0), pad, (0, 0), (0, 0))).reshape(b * blocks, block, h, p)

  # Each block reads the keys and values of two blocks: the one before and its own.
  read = []
  for x in (kv.k.swapaxes(2, 3), kv.v):
    x = jnp.pad(x, ((0, 0), (0, 0), pad, (0, 0))).reshape(b, -1, blocks, block, p)
    before = jnp.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)))[:, :, :-1]
    both = jnp.concatenate([before, x], axis=3).swapaxes(1, 2)
    read.append(both.reshape(b * blocks, -1, 2 * block, p))

  # The first block has none before it.
  has_before = np.arange(blocks)[:, None, None] > 0
  mask = np.concatenate(np.broadcast_arrays(has_before, np.tri(block, dtype=bool)[None]), axis=2)
  mask = jnp.tile(mask, (b, 1, 1))
  return attend(q, LayerKV.of(*read), mask, drop).reshape(b, -1, h, p)[:, :t]
