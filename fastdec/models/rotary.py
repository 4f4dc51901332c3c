"""Rotary positions (Su et al. 2021): pairs of a head's entries turn with the position.

So the score of a query and a key depends on their distance. Longer waves serve longer contexts:
linear (Chen et al. 2023), dynamic, Llama 3.1's, yarn (Peng et al. 2023) and longrope (Ding et al.
2024).
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
    """Returns the turn of each rotated pair at each position, in radians, float32.

    Args:
      positions: of the tokens.
      width: of a head.
      text: tokens of the text as each token was read; None: those up to its own position.
        Dynamic and longrope turn by it.
    """
    text = positions + 1 if text is None else text
    dims = self.rotated(width)
    if self.kind == 'dynamic':
      frequencies = self._dynamic(text, dims)
    elif self.kind == 'longrope':
      plain = self.theta ** (-np.arange(0, dims, 2) / dims)
      long, short = (_alone(plain / by, positions.ndim) for by in (self.long, self.short))
      frequencies = jnp.where(text[..., None] > self.original, long, short)
    else:
      frequencies = _alone(self.frequencies(dims), positions.ndim)
    return positions[..., None].astype(jnp.float32) * frequencies

  def rotated(self, width: int) -> int:
    """Returns the entries of a head that turn, the first ones."""
    return int(width * self.share)

  def frequencies(self, dims: int) -> np.ndarray:
    """Returns each pair's radians per position, float64, where no text's length changes them."""
    plain = self.theta ** (-np.arange(0, dims, 2) / dims)
    if self.kind == 'default':
      return plain
    stretched = plain / self.factor
    if self.kind == 'linear':
      return stretched
    if self.kind == 'yarn':
      first, last = (self._pair_of(turns, dims) for turns in (self.high, self.low))
      if self.truncate:
        first, last = math.floor(first), math.ceil(last)
      first, last = max(first, 0), min(last, dims - 1)
      kept = 1 - ((np.arange(dims // 2) - first) / (last - first or 1e-3)).clip(0, 1)
    else:
      # turns of each wave within the context that the model was first trained on
      passes = self.original * plain / (2 * np.pi)
      kept = ((passes - self.low) / (self.high - self.low)).clip(0, 1)
    return kept * plain + (1 - kept) * stretched

  def _pair_of(self, turns: float, dims: int) -> float:
    """Returns the pair (a fraction between two) that makes `turns` within `original` positions."""
    return dims * math.log(self.original / (2 * np.pi * turns)) / (2 * math.log(self.theta))

  def _dynamic(self, text: Int[Array, '*b #n'], dims: int) -> Float[Array, '*b #n p']:
    """Returns the frequencies by a base that grows with a text longer than `original`."""
    longer = jnp.maximum(text, self.original).astype(jnp.float32) / self.original
    base = self.theta * (self.factor * longer - (self.factor - 1)) ** (dims / (dims - 2))
    return base[..., None] ** _alone(-np.arange(0, dims, 2) / dims, text.ndim)


def _alone(x: np.ndarray, before: int) -> np.ndarray:
  """Returns x in float32, with `before` axes of 1 in front."""
  return x.astype(np.float32).reshape((1,) * before + (-1,))


def rotate(x: Float[Array, 'b n h w'], turns: Turns | None) -> Float[Array, 'b n h w']:
  """Turns the entries i and i + p of each head by angle i, in float32 at least.

  Entries after the p pairs stay as they are; None turns nothing.
  """
  if turns is None:
    return x
  wide = x.astype(np.promote_types(x.dtype, np.float32))
  cos, sin = (wave[:, :, None].astype(wide.dtype) for wave in turns)
  pairs = cos.shape[-1]
  a, b, rest = jnp.split(wide, (pairs, 2 * pairs), axis=-1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1).astype(x.dtype)
