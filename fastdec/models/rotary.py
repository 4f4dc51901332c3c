"""Rotary positions (Su et al. 2021): pairs of a head's entries turn with the position.

So the score of a query and a key depends on their distance. Longer waves serve longer contexts:
linear (Chen et al. 2023) and Llama 3.1's.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

ROPES = ('default', 'linear', 'llama3')


@dataclasses.dataclass(frozen=True)
class Rope:
  """Wavelengths of the pairs; see `LMConfig`."""

  kind: str
  theta: float
  factor: float
  low: float
  high: float
  original: int

  def angles(self, positions: Int[Array, '*b n'], width: int) -> Float[Array, '*b n p']:
    """Returns the turn of each of the width / 2 pairs at each position, in radians, float32."""
    frequencies = self.frequencies(width).astype(np.float32)
    return positions[..., None].astype(jnp.float32) * frequencies.reshape(
      (1,) * positions.ndim + (-1,)
    )

  def frequencies(self, width: int) -> np.ndarray:
    """Returns each pair's radians per position, float64."""
    plain = self.theta ** (-np.arange(0, width, 2) / width)
    if self.kind == 'default':
      return plain
    stretched = plain / self.factor
    if self.kind == 'linear':
      return stretched
    # turns of each wave within the context that the model was first trained on
    passes = self.original * plain / (2 * np.pi)
    kept = ((passes - self.low) / (self.high - self.low)).clip(0, 1)
    return kept * plain + (1 - kept) * stretched


def rotate(x: Float[Array, 'b n h w'], angles: Float[Array, 'b n p']) -> Float[Array, 'b n h w']:
  """Turns the entries i and i + w / 2 of each head by angle i, in float32 at least."""
  wide = x.astype(np.promote_types(x.dtype, np.float32))
  cos, sin = (wave(angles)[:, :, None].astype(wide.dtype) for wave in (jnp.cos, jnp.sin))
  a, b = jnp.split(wide, 2, axis=-1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
