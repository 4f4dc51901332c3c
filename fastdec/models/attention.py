"""Attention over a cache: who sees what, and the product itself."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec.cache.kv import LayerKV
from fastdec.models.api import Nodes


def node_mask(nodes: Nodes, length: Int[Array, ' b'], slots: int) -> Bool[Array, 'b n s']:
  """Which slots each node sees once the n nodes stand at slots length..length+n-1.

  A row with 2 committed slots of 6, nodes root, a, b, aa as in `Nodes`:
      slot  0 1 | 2=root 3=a 4=b 5=aa
    aa    [ 1 1   1      1   0   1 ]
  """
  n = nodes.mask.shape[-1]
  node_bs = jnp.arange(slots) - length[:, None]  # which node stands in a slot
  inside_bs = (node_bs >= 0) & (node_bs < n)
  node_bs = jnp.clip(node_bs, 0, n - 1)
  if nodes.mask.ndim == 2:
    sees_bns = jnp.moveaxis(jnp.asarray(nodes.mask)[:, node_bs], 0, 1)
  else:
    sees_bns = jnp.take_along_axis(jnp.asarray(nodes.mask), node_bs[:, None, :], axis=2)
  committed_bs = jnp.arange(slots) < length[:, None]
  return committed_bs[:, None, :] | (inside_bs[:, None, :] & sees_bns)


def attend(
  q: Float[Array, 'b n h p'],
  kv: LayerKV,
  mask: Bool[Array, '#b #n s'],
  drop: Callable[[Array], Array] = lambda weights: weights,
) -> Float[Array, 'b n h p']:
  """Scaled dot-product attention; h query heads share g key heads in groups of h / g. Weights in float32 at least.

  `drop` is training's dropout on the weights. A row that may see nothing (an empty source) gets the mean of what is
  there: finite, and never read.
  """
  b, n, h, p = q.shape
  g = kv.k.shape[1]
  q = q.reshape(b, n, g, h // g, p) * p**-0.5
  wide = jnp.promote_types(q.dtype, jnp.float32)
  scores = jnp.einsum('bngrp,bgsp->bgrns', q, kv.k, preferred_element_type=wide)
  weights = drop(jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e30), axis=-1).astype(q.dtype))
  return jnp.einsum('bgrns,bgsp->bngrp', weights, kv.v).reshape(b, n, h, p)
