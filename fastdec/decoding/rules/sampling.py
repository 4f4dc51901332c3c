"""Rule that draws the next token from the target's law, and keeps drafts that equal the draw."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Promise
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.sampling import draw, warp
from fastdec.decoding.settings import SMALLEST, is_zero, real, temperature, whole


@struct.pytree
class Sampling(Exact):
  """Draws the target's choice from its law, and accepts a draft that equals it.

  The law is warped by temperature, top-k and top-p (`sampling.warp`). Lossless in distribution for
  drafts that are guesses without a law: a draft x is accepted with probability p(x), and its
  replacement has the law p given that it is not x.
  """

  temperature: Any = 1.0  # float32 scalar
  top_k: Any = 0  # int32 scalar
  top_p: Any = 1.0  # float32 scalar

  def __post_init__(self) -> None:
    struct.assign(
      self,
      temperature=temperature(self.temperature, '1e-6 to 1e6, or decode by Greedy()'),
      top_k=whole(self.top_k, 0, 'sampling takes top_k'),
      top_p=real('top_p', self.top_p, SMALLEST, 1.0, 'more than 0 and at most 1'),
    )

  @property
  def promise(self) -> Promise:
    return 'law'

  def law(self, logits: Float[Array, '*b v']) -> Float[Array, '*b v']:
    """Returns log-probabilities of the law to draw from."""
    return warp(logits, self.temperature, self.top_k, self.top_p)

  def choose(self, keys: Array | None, logits: Float[Array, 'b n v']) -> Int[Array, 'b n']:
    return draw(keys, self.law(logits))


def greedy_or_sampling(value: Any, top_k: Any, top_p: Any) -> dict[str, Any]:
  """Returns fields of a strategy that is greedy at temperature 0, and else samples.

  Args:
    value: the temperature, 0 or as in `Sampling`; a traced one counts as above 0.
    top_k, top_p: as in `Sampling`; checked at temperature 0 too.

  Returns:
    `is_greedy`, which must be static, as another rule is another program; and temperature, top_k
    and top_p as arrays.

  Raises:
    UserError: a setting is out of range.
  """
  is_greedy = is_zero(value)
  warmth = temperature(1.0 if is_greedy else value, '0 for greedy decoding, or 1e-6 to 1e6')
  law = Sampling(warmth, top_k, top_p)
  return {
    'is_greedy': is_greedy,
    'temperature': jnp.zeros_like(warmth) if is_greedy else warmth,
    'top_k': law.top_k,
    'top_p': law.top_p,
  }
