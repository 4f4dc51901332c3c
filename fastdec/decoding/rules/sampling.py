"""Draws the next token from the law of the target; drafts are kept where they are what was drawn."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.rules.matching import SMALLEST, Exact, _number, is_outside
from fastdec.decoding.sampling import draw, warp
from fastdec.errors import UserError


@struct.pytree
class Sampling(Exact):
  """The target's choice is drawn from its law, warped by temperature, top-k and top-p (`sampling.warp`), and a draft is
  accepted where it is what was drawn. Lossless in distribution for drafts that are guesses without a law of their own:
  a draft x is accepted with probability p(x), and what replaces it is drawn from p given that it is not x.
  """

  temperature: Any = 1.0  # float32 scalar
  top_k: Any = 0  # int32 scalar
  top_p: Any = 1.0  # float32 scalar

  def __post_init__(self) -> None:
    if is_outside(self.temperature, lambda t: 1e-6 <= t <= 1e6):  # beyond, float32 logits overflow to a law of NaN
      raise UserError(f'temperature={self.temperature} is not possible: give 1e-6 to 1e6, or decode by Greedy()')
    if is_outside(self.top_p, lambda p: SMALLEST <= p <= 1):
      raise UserError(f'top_p={self.top_p} is not possible: give more than 0 and at most 1')
    object.__setattr__(self, 'top_k', _number(self.top_k, 0, 'sampling takes top_k'))
    for name in ('temperature', 'top_p'):
      object.__setattr__(self, name, jnp.asarray(getattr(self, name), jnp.float32))

  def law(self, logits: Float[Array, '*b v']) -> Float[Array, '*b v']:
    """Log-probabilities of what is drawn."""
    return warp(logits, self.temperature, self.top_k, self.top_p)

  def choose(self, keys: Array | None, logits: Float[Array, 'b n v']) -> Int[Array, 'b n']:
    return draw(keys, self.law(logits))
