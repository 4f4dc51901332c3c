"""Rotary positions (Su et al. 2021): pairs of a head's entries are rotated by the position.

So the score of a query and a key depends on their distance. For longer contexts wavelengths are
stretched: linear (Chen et al. 2023), dynamic, Llama 3.1's, yarn (Peng et al. 2023) and longrope
(Ding et al. 2024).
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

ROPES = ('default', 'linear', 'dynamic', 'llama3', 'yarn', 'longrope')
Turns = tuple[Float[Array, '*b n p'], Float[Array, '*b n p']]  # cosines and sines


@dataclasses.dataclass(frozen=True)
class Rope:
  """Wavelengths of the pairs; see `LMConfig`."""

  kind: str
  theta: float
  factor: float = 1.0
  low: float = 1.0
  high: float = 4.0
  original: int = 8192
  truncate: bool = True
  share: float = 1.0
  scale: float = 1.0
  short: tuple[float, ...] = ()
  long: tuple[float, ...] = ()

  def turns(
    self, positions: Int[Array, '*b n'], width: int, text: Int[Array, '*b #n'] | None = None
  ) -> Turns:
    """Returns cosines and sines of the rotated pairs' angles, float32, times `scale`."""
    angles = self.angles(positions, width, text)
    return jnp.cos(angles) * self.scale, jnp.sin(angles) * self.scale

  def angles(
    self, positions: Int[Array, '*b n'], width: int, text: Int[Array, '*b #n'] | None = None
  ) -> Float[Array, '*b n p']:
    """Returns the angle of each rotated pair at each position, in radians, float32.

    Args:
      positions: of the tokens.
      width: of a head.
      text: length of the text when each token was read, for dynamic and longrope; None: the text
        ended with the token.
    """
    if text is None:
      text = positions + 1
    dims = int(width * self.share)
    lead = (1,) * positions.ndim
    exponents = -np.arange(0, dims, 2) / dims
    if self.kind == 'dynamic':
      # the base grows with a text that is longer than `original`
      longer = jnp.maximum(text, self.original).astype(jnp.float32) / self.original
      base = self.theta * (self.factor * longer - (self.factor - 1)) ** (dims / (dims - 2))
      frequencies = base[..., None] ** exponents.astype(np.float32).reshape(*lead, -1)
    elif self.kind == 'longrope':
      long = (self.theta**exponents / self.long).astype(np.float32).reshape(*lead, -1)
      short = (self.theta**exponents / self.short).astype(np.float32).reshape(*lead, -1)
      frequencies = jnp.where(text[..., None] > self.original, long, short)
    else:
      frequencies = self.frequencies(dims).astype(np.float32).reshape(*lead, -1)
    return positions[..., None].astype(jnp.float32) * frequencies

  def frequencies(self, dims: int) -> np.ndarray:
    """Returns each pair's radians per position, float64, of ropes that ignore the text's length."""
    plain = self.theta ** (-np.arange(0, dims, 2) / dims)
    if self.kind == 'default':
      return plain
    stretched = plain / self.factor
    if self.kind == 'linear':
      return stretched

    # `kept` is 1 for short waves, which are not stretched, and 0 for long ones.
    if self.kind == 'yarn':
      # the pairs, as fractions, that make `high` and `low` turns within `original` positions
      first = dims * math.log(self.original / (2 * np.pi * self.high)) / (2 * math.log(self.theta))
      last = dims * math.log(self.original / (2 * np.pi * self.low)) / (2 * math.log(self.theta))
      if self.truncate:
        first, last = math.floor(first), math.ceil(last)
      first, last = max(first, 0), min(last, dims - 1)
      kept = 1 - ((np.arange(dims // 2) - first) / (last - first or 1e-3)).clip(0, 1)
    else:
      turns = self.original * plain / (2 * np.pi)  # of each wave within `original` positions
      kept = ((turns - self.low) / (self.high - self.low)).clip(0, 1)
    return kept * plain + (1 - kept) * stretched


def rotate(x: Float[Array, 'b n h w'], turns: Turns | None) -> Float[Array, 'b n h w']:
  """Rotates the entries i and i + p of each head by angle i, in float32 or wider.

  Entries after the p pairs are not changed; None rotates nothing.
  """
  if turns is None:
    return x
  wide = x.astype(np.promote_types(x.dtype, np.float32))
  cos, sin = turns
  cos, sin = cos[:, :, None].astype(wide.dtype), sin[:, :, None].astype(wide.dtype)
  pairs = cos.shape[-1]
  a, b, rest = jnp.split(wide, (pairs, 2 * pairs), axis=-1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1).astype(x.dtype)
