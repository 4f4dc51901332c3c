"""The layers that models share: products that no backend handles badly, norms, positions."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int

# T2T's uniform_unit_scaling: the variance of the output is that of the input.
unit_scaling = nn.initializers.variance_scaling(1.0, 'fan_in', 'uniform')


def contract(x: Float[Array, '*b d'], kernel: Float[Array, 'd f']) -> Float[Array, '*b f']:
  """x @ kernel in x's dtype; a single row in half precision goes in twice.

  XLA's CPU backend sends a one-row bfloat16 product to a generated matrix-vector loop that is three times slower than
  the two-row product, which it hands to the matrix units.
  """
  *lead, d = x.shape
  rows = int(np.prod(lead))
  x_rd = x.reshape(rows, d)
  if rows == 1 and x.dtype.itemsize < 4:
    x_rd = jnp.concatenate([x_rd, x_rd])
  return (x_rd @ kernel.astype(x.dtype))[:rows].reshape(*lead, kernel.shape[1])


def project(hidden: Float[Array, '*b d'], embedding: Float[Array, 'v d']) -> Float[Array, '*b v']:
  """Logits hidden @ embedding^T in float32 at least, contracted on the embedding's last axis (no transposed copy)."""
  *lead, d = hidden.shape
  rows = int(np.prod(lead))
  x_rd = hidden.reshape(rows, d)
  if rows == 1 and x_rd.dtype.itemsize < 4:
    x_rd = jnp.concatenate([x_rd, x_rd])
  wide = jnp.promote_types(x_rd.dtype, jnp.float32)
  logits = jax.lax.dot_general(
    x_rd, embedding.astype(x_rd.dtype), (((1,), (1,)), ((), ())), preferred_element_type=wide
  )
  return logits[:rows].reshape(*lead, embedding.shape[0])


class Dense(nn.Module):
  """A projection from the last axis to `features` axes, computed in `dtype`; parameters stay float32."""

  features: tuple[int, ...]
  use_bias: bool
  dtype: DTypeLike
  kernel_init: Any = unit_scaling

  @nn.compact
  def __call__(self, x: Float[Array, '*b d']) -> Float[Array, '*b f']:
    """Returns the features flattened into the last axis."""
    width = int(np.prod(self.features))
    kernel = self.param('kernel', self.kernel_init, (x.shape[-1], width))
    y = contract(x.astype(self.dtype), kernel)
    if self.use_bias:
      bias = self.param('bias', nn.initializers.zeros, (width,))
      y = y + bias.astype(self.dtype).reshape((1,) * (y.ndim - 1) + (width,))
    return y


def sinusoids(positions: Int[Array, '*b n'], d: int) -> Float[Array, '*b n d']:
  """T2T's and fairseq's position signal: sines, then cosines, of geometrically spaced wavelengths 2 pi .. 2e4 pi."""
  inverse_timescales = np.exp(-np.arange(d // 2) * np.log(1e4) / max(d // 2 - 1, 1)).astype(np.float32)
  angles = positions[..., None].astype(jnp.float32) * inverse_timescales.reshape((1,) * positions.ndim + (-1,))
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
