"""From logits to a token, or to the law it is drawn from."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.errors import UserError


def argmax(x: Float[Array, '*b v']) -> Int[Array, '*b']:
  """The index of the largest entry, the lowest among equals.

  Two plain reductions, which XLA's CPU backend vectorises; `jnp.argmax` is one reduction over pairs, which it does not.
  """
  v = x.shape[-1]
  at_max = x == x.max(axis=-1, keepdims=True)
  return jnp.where(at_max, jnp.arange(v, dtype=jnp.int32), v - 1).min(axis=-1)


def given(keys: Array | None) -> Array:
  """The keys; without, a UserError."""
  if keys is None:
    raise UserError('sampling needs randomness, and no key was given: give decode key=jax.random.key(0), for example')
  return keys


def draw(keys: Array | None, log_law: Float[Array, 'b *n v']) -> Int[Array, 'b *n']:
  """A token from each law, with the key of its row."""
  return jax.vmap(jax.random.categorical)(given(keys), log_law).astype(jnp.int32)


def warp(
  logits: Float[Array, '*b v'], temperature: Float[Array, ''], top_k: Int[Array, ''], top_p: Float[Array, '']
) -> Float[Array, '*b v']:
  """Log-probabilities of the law to sample from: temperature, then top-k, then top-p.

  Args:
    logits: minus infinity where a token is ruled out.
    temperature: above 0.
    top_k: keeps the k most likely tokens (0: all).
    top_p: keeps the fewest most likely tokens that have at least this probability together (1: all); what is cut by
      top_k does not count.
  Ties go to the lower id. The settings are arrays: one compiled program serves a sweep, and does not sort where neither
  top_k nor top_p asks for it.
  """
  scaled = logits / temperature.astype(logits.dtype)

  def cut(x: Array) -> Array:
    return _cut(x, top_k, top_p)

  scaled = jax.lax.cond((top_k > 0) | (top_p < 1), cut, lambda x: x, scaled)
  return jax.nn.log_softmax(scaled, axis=-1)


def _cut(scaled: Float[Array, '*b v'], top_k: Int[Array, ''], top_p: Float[Array, '']) -> Float[Array, '*b v']:
  """Minus infinity where top-k or top-p leave a token out."""
  v = scaled.shape[-1]
  order = jnp.argsort(scaled, axis=-1, descending=True, stable=True)
  ranked = jnp.take_along_axis(scaled, order, axis=-1)
  ranked = jnp.where(jnp.arange(v, dtype=jnp.int32) < jnp.where(top_k > 0, top_k, v), ranked, -jnp.inf)
  probabilities = jax.nn.softmax(ranked, axis=-1)
  before = jnp.cumsum(probabilities, axis=-1) - probabilities
  ranked = jnp.where((before < top_p.astype(before.dtype)) | (top_p >= 1), ranked, -jnp.inf)
  return jnp.take_along_axis(ranked, jnp.argsort(order, axis=-1), axis=-1)
