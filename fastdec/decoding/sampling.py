"""Choosing a token from logits."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def argmax(x: Float[Array, '*b v']) -> Int[Array, '*b']:
  """The index of the largest entry, the lowest among equals.

  Two plain reductions, which XLA's CPU backend vectorises; `jnp.argmax` is one reduction over pairs, which it does not.
  """
  v = x.shape[-1]
  at_max = x == x.max(axis=-1, keepdims=True)
  return jnp.where(at_max, jnp.arange(v, dtype=jnp.int32), v - 1).min(axis=-1)


def suppress(logits: Float[Array, '*b v'], ids: tuple[int, ...]) -> Float[Array, '*b v']:
  """The logits with `ids` at minus infinity: never drafted, never emitted."""
  if not ids:
    return logits
  banned = np.zeros(logits.shape[-1], bool)
  banned[list(ids)] = True
  return jnp.where(banned.reshape((1,) * (logits.ndim - 1) + (-1,)), -jnp.inf, logits)
