"""Attention over a cache: its masks, and the product itself."""

import functools
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

READING = 16  # tokens of a call that reads a prompt, at least
LONG = 1024  # slots


def node_mask(nodes: Nodes, length: Int[Array, ' b'], slots: int) -> Bool[Array, 'b n s']:
  """Mask of the slots that each node sees, with the n nodes at slots length..length+n-1.

  A row with 2 committed slots of 6, nodes root, a, b, aa as in `Nodes`:
      slot  0 1 | 2=root 3=a 4=b 5=aa
    aa    [ 1 1   1      1   0   1 ]
  """
  node_bs = _beyond(length, slots)
  committed_bs = node_bs < 0
  return committed_bs[:, None, :] | _among_nodes(nodes, node_bs)


def slot_positions(nodes: Nodes, length: Int[Array, ' b'], slots: int) -> Int[Array, 'b s']:
  """Returns the position of each slot's token, for `node_mask`; a node's follows from its depth.

    slot      0 1 | 2=root 3=a 4=b 5=aa
  position    0 1     2     3   3   4
  """
  n = nodes.n
  node_bs = _beyond(length, slots)
  depths_bn = jnp.broadcast_to(nodes.depths, (length.shape[0], n))
  depth_bs = jnp.take_along_axis(depths_bn, node_bs.clip(0, n - 1), axis=1)
  return length[:, None] + jnp.where(node_bs < 0, node_bs, depth_bs)


def local_mask(
  nodes: Nodes, length: Int[Array, ' b'], slots: int, block: int
) -> Bool[Array, 'b n s']:
  """Returns `node_mask` for a ring (`cache.ring`): a node sees its own block and the one before."""
  at_bn = length[:, None] + jnp.broadcast_to(nodes.depths, (length.shape[0], nodes.n))
  return ring_mask(nodes, length, slots, jnp.maximum(at_bn // block - 1, 0) * block)


def ring_mask(
  nodes: Nodes, length: Int[Array, ' b'], slots: int, first_bn: Int[Array, 'b n']
) -> Bool[Array, 'b n s']:
  """Returns `node_mask` for a ring: a node sees positions from `first_bn` on, which are from 0."""
  # A slot holds a node of this call (0..n-1 ahead of the length), else a token of the round before.
  n = nodes.n
  ahead_bs = _beyond(length, slots) % slots
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

  Window 3 in the example of `node_mask`: aa stands at position 4 (depth 2 after two slots), and
  sees 2, 3 and 4.
      slot  0 1 | 2=root 3=a 4=b 5=aa
    aa    [ 0 0   1      1   1   1 ]
  """
  depths_bn = jnp.broadcast_to(nodes.depths, (length.shape[0], nodes.n))
  position_bs = slot_positions(nodes, length, slots)
  return position_bs[:, None, :] > (length[:, None] + depths_bn)[:, :, None] - window


def layer_mask(
  nodes: Nodes, length: Int[Array, ' b'], layer: LayerKV, window: int
) -> Bool[Array, 'b n s']:
  """Returns the mask of a layer's slots, of a ring or not; a node sees the last `window` positions.

  Window 0: all positions before it."""
  if isinstance(layer, LayerRing):
    at_bn = length[:, None] + jnp.broadcast_to(nodes.depths, (length.shape[0], nodes.n))
    return ring_mask(nodes, length, layer.slots, jnp.maximum(at_bn - window + 1, 0))
  mask = node_mask(nodes, length, layer.slots)
  return mask & node_window(nodes, length, layer.slots, window) if window else mask


def _beyond(length: Int[Array, ' b'], slots: int) -> Int[Array, 'b s']:
  """Number of the node in each slot: the slot less the row's length, negative before it."""
  return jnp.arange(slots, dtype=length.dtype)[None] - length[:, None]


def _among_nodes(nodes: Nodes, node_bs: Int[Array, 'b s']) -> Bool[Array, 'b n s']:
  """True if a node sees the node in a slot; false for slots without a node."""
  n = nodes.n
  inside_bs = (node_bs >= 0) & (node_bs < n)
  if nodes.is_chain:
    return inside_bs[:, None, :] & (
      node_bs[:, None, :] <= jnp.arange(n, dtype=node_bs.dtype)[None, :, None]
    )
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
  """Scaled dot-product attention: values mixed by weights; training drops weights (`drop`)."""
  return mix(drop(weights_of(q, kv.k, mask, bias, scale, cap, sinks)), kv.v)


def attend_to_used(
  q: Float[Array, 'b n h p'],
  kv: LayerKV,
  mask: Bool[Array, '#b #n s'],
  used: Int[Array, ''],
  **settings: Any,
) -> Float[Array, 'b n h p']:
  """Returns `attend`, and leaves out slots that nobody sees: only the first `used` may be seen.

  A CPU that reads a prompt into a long cache reads a quarter or a half of it, if that is enough. In
  calls on few tokens, and on other devices, choosing would take longer.
  """
  if q.shape[1] < READING or kv.slots < LONG or jax.default_backend() != 'cpu':
    return attend(q, kv, mask, **settings)

  def within(end: int) -> Callable[[], Array]:
    part = LayerKV(kv.k[:, :, :end], kv.v[:, :, :end])
    return lambda: attend(q, part, mask[:, :, :end], **settings)

  ends = (kv.slots // 4, kv.slots // 2)
  choice = sum((used > end).astype(jnp.int32) for end in ends)
  return jax.lax.switch(choice, [within(end) for end in (*ends, kv.slots)])


def weights_of(
  q: Float[Array, 'b n h p'],
  k: Float[Array, 'b g s p'],
  mask: Bool[Array, '#b #n s'],
  bias: Float[Array, '#b h #n s'] | None = None,
  scale: float | None = None,
  cap: float | None = None,
  sinks: Float[Array, ' h'] | None = None,
) -> Float[Array, 'b g r n s']:
  """Weight of each slot for each query: the softmax of scaled dot products, in float32 at least.

  h query heads share g key heads, r = h / g each. `bias` is added to the scaled scores (relative
  positions); `scale` is 1 / sqrt(p) unless given; `cap` bounds the scaled scores. `sinks` are the
  scores of nothing: heads give it a share of their weights. A row that sees nothing (an empty
  source) gets equal weights: finite, and never read.
  """
  b, n, h, p = q.shape
  g, s = k.shape[1:3]
  r = h // g
  wide = np.promote_types(q.dtype, np.float32)

  def rows(x: Shaped[Array, '#b #g #r #n s']) -> Shaped[Array, '#b #g m s']:
    """Lays x out as the scores: XLA's gradient of a softmax takes twice as long over five axes."""
    return (
      x[:, :, 0]
      if r == 1
      else jnp.broadcast_to(x, (*x.shape[:2], r, n, s)).reshape(*x.shape[:2], r * n, s)
    )

  q_bgmp = jnp.moveaxis(q.reshape(b, n, g, r, p), 1, 3).reshape(b, g, r * n, p)
  scores = _product(q_bgmp, k, 3, wide)
  # not the queries: half-precision ones would be rounded once more
  scores *= p**-0.5 if scale is None else scale
  if cap is not None:
    scores = cap * jnp.tanh(scores / cap)
  if bias is not None:
    scores += rows(bias.reshape(bias.shape[0], g, r, *bias.shape[2:])).astype(wide)
  scores = jnp.where(rows(mask[:, None, None]), scores, -1e30)
  if sinks is not None:
    of_nothing = jnp.repeat(sinks.astype(wide).reshape(1, g, r), n, axis=-1)[..., None]
    scores = jnp.concatenate([scores, jnp.broadcast_to(of_nothing, (b, g, r * n, 1))], axis=-1)
  weights = softmax(scores)[..., :s]
  return weights.astype(q.dtype).reshape(b, g, r, n, s)


def mix(weights: Float[Array, 'b g r n s'], v: Float[Array, 'b g s p']) -> Float[Array, 'b n h p']:
  """Returns the values mixed by these weights."""
  b, g, r, n, s = weights.shape
  mixed = _product(weights.reshape(b, g, r * n, s), v, 2, v.dtype)
  return jnp.moveaxis(mixed.reshape(b, g, r, n, -1), 3, 1).reshape(b, n, g * r, -1)


def _product(
  x: Float[Array, 'b g m k'], y: Float[Array, 'b g _ _'], axis: int, dtype: DTypeLike
) -> Float[Array, 'b g m _']:
  """Returns x times y, summed over x's last axis and this one of y.

  On a CPU a single row goes in twice: the loop for one row sums in another order than products of
  several, and a text in int8 would depend on how many of its tokens are read at once.
  """
  axes = (((3,), (axis,)), ((0, 1), (0, 1)))
  product = functools.partial(
    jax.lax.dot_general, dimension_numbers=axes, preferred_element_type=dtype
  )
  if x.shape[2] > 1:
    return product(x, y)
  return jax.lax.platform_dependent(
    x, y,
    cpu=lambda x, y: product(jnp.concatenate([x, x], axis=2), y)[:, :, :1],
    default=product,
  )  # fmt: skip


def attend_locally(
  q: Float[Array, 'b t h p'],
  kv: LayerKV,
  block: int,
  drop: Callable[[Array], Array] = lambda weights: weights,
) -> Float[Array, 'b t h p']:
  """1D local attention over whole sequences (Parmar et al. 2018).

  Position i sees positions up to i of its own block of `block` positions, and all of the block
  before. It takes memory for t * 2 * block weights, not t * t.
  """
  b, t, h, p = q.shape
  blocks = -(-t // block)
  pad = blocks * block - t

  def cut(x, axis):
    return jnp.pad(x, [(0, pad if i == axis else 0) for i in range(4)])

  q = cut(q, 1).reshape(b * blocks, block, h, p)

  def windows(x: Float[Array, 'b g t p']) -> Float[Array, 'c g s p']:
    x = cut(x, 2).reshape(b, -1, blocks, block, p)
    before = jnp.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)))[:, :, :-1]
    return jnp.concatenate([before, x], axis=3).swapaxes(1, 2).reshape(b * blocks, -1, 2 * block, p)

  has_before = np.arange(blocks)[:, None, None] > 0
  mask = np.concatenate(np.broadcast_arrays(has_before, np.tri(block, dtype=bool)[None]), axis=2)
  mask = jnp.tile(mask, (b, 1, 1))
  return attend(q, LayerKV(windows(kv.k), windows(kv.v)), mask, drop).reshape(b, -1, h, p)[:, :t]
