"""A drafter's own words: a part of the target's, with their own output matrix.

`params` may have

  output   [w, d], the drafter's own vocabulary projection; without it, it uses the target's
  ids      int32[w], the target's id of each word; without it, the words are the target's
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.models.api import Params, suppress

OWN = ('output', 'ids')


def ids_of(params: Params, drafted: Int[Array, '*b']) -> Int[Array, '*b']:
  """Returns the target's ids of a drafter's words."""
  if 'ids' not in params:
    return drafted
  return params['ids'][drafted].astype(jnp.int32)


def in_target_words(
  params: Params, logits: Float[Array, '*b w'], vocab_size: int
) -> Float[Array, '*b v']:
  """Returns logits over the target's words, minus infinity for words that the drafter lacks."""
  if 'ids' not in params:
    return logits
  whole = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
  return whole.at[..., params['ids']].set(logits)


def suppress_words(
  params: Params, logits: Float[Array, '*b w'], ids: tuple[int, ...]
) -> Float[Array, '*b w']:
  """Returns logits over the drafter's words, minus infinity for these ids of the target."""
  if 'ids' not in params or not ids:
    return suppress(logits, ids)
  is_banned = jnp.isin(params['ids'], jnp.array(ids, params['ids'].dtype))
  is_banned = is_banned.reshape((1,) * (logits.ndim - 1) + (-1,))
  return jnp.where(is_banned, -jnp.inf, logits)
