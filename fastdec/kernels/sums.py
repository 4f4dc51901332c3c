"""Sums over the last axis in one order, however many rows are computed at once.

XLA's CPU backend sums up to 4,096 entries by loops of its own, and more by a library, which adds in
a different order and has a different exponential. So norms and softmaxes of a call on eight tokens
would differ in the last bit from those of a call on one. Rounding to int8 enlarges the difference,
and in the end the texts differ. Here entries are added by halves. That takes as long as the library
does, or less for few rows.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fastdec.kernels.mesh import is_split

Sum = Callable[[Array, Array], Array]


@jax.custom_jvp
def row_sum(x: Float[Array, '*b d']) -> Float[Array, '*b']:
  """Returns the sum over the last axis."""
  return jax.lax.platform_dependent(
    x, cpu=lambda x: _by_halves(x, jnp.add), default=lambda x: x.sum(axis=-1)
  )


@row_sum.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  return row_sum(*primals), tangents[0].sum(axis=-1)


def row_mean(x: Float[Array, '*b d']) -> Float[Array, '*b 1']:
  """Returns the mean over the last axis, which is kept with size 1."""
  return row_sum(x)[..., None] / x.shape[-1]


def row_max(x: Float[Array, '*b d']) -> Float[Array, '*b']:
  """Returns the largest entry of the last axis, which a mesh may split."""
  if is_split():
    return x.max(axis=-1)
  return jax.lax.platform_dependent(
    x, cpu=lambda x: _by_halves(x, jnp.maximum), default=lambda x: x.max(axis=-1)
  )


@jax.custom_jvp
def softmax(x: Float[Array, '*b d']) -> Float[Array, '*b d']:
  """Returns `jax.nn.softmax` over the last axis."""

  def on_cpu(x: Array) -> Array:
    # The clip makes XLA compute the exponential itself instead of calling the library.
    below = x - x.max(axis=-1, keepdims=True)
    exponentials = jnp.exp(jnp.clip(below, jnp.finfo(x.dtype).min, 0))
    return exponentials / _by_halves(exponentials, jnp.add)[..., None]

  return jax.lax.platform_dependent(x, cpu=on_cpu, default=jax.nn.softmax)


@softmax.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  y, (dx,) = softmax(*primals), tangents
  return y, y * (dx - (y * dx).sum(axis=-1, keepdims=True))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def normalize(x: Float[Array, '*b d'], epsilon: float) -> Float[Array, '*b d']:
  """Returns x over the root of the mean square of its last axis plus `epsilon`."""

  def in_one_kernel(x: Array) -> Array:
    # XLA fuses this on a GPU. For a single row, it does so only without constants after the sum.
    squares = (jnp.square(x) + epsilon) / x.shape[-1]
    return x * jax.lax.rsqrt(squares.sum(axis=-1, keepdims=True))

  return jax.lax.platform_dependent(x, cpu=lambda x: _over_root(x, epsilon), default=in_one_kernel)


@normalize.defjvp
def _(epsilon: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  return jax.jvp(lambda x: _over_root(x, epsilon), primals, tangents)


def _over_root(x: Float[Array, '*b d'], epsilon: float) -> Float[Array, '*b d']:
  return x * (1 / jnp.sqrt(row_mean(jnp.square(x)) + epsilon))


def _by_halves(x: Float[Array, '*b d'], operation: Sum) -> Float[Array, '*b']:
  """Combines each entry of the first half with one of the second half, until one entry is left.

  Halves are those of the next power of two. So zeros at the end, for example from hidden slots, do
  not change a bit of the sum, however many there are.
  """
  half = 1 << (x.shape[-1] - 1).bit_length()
  while half > 1:
    half //= 2
    beyond = x.shape[-1] - half
    first = operation(x[..., :beyond], x[..., half:])
    if beyond < half:
      first = jnp.concatenate([first, x[..., beyond:half]], axis=-1)
    x = first
  return x[..., 0]
