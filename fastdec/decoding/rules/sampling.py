"""Rule that draws the next token from the target's law, and keeps drafts that equal the draw."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Promise
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.sampling import draw, warp
from fastdec.decoding.settings import COLDEST, HOTTEST, LARGEST, SMALLEST, each, is_traced, is_zero
from fastdec.errors import UserError
from fastdec.fields import shown


@struct.pytree
class Sampling(Exact):
  """Draws the target's choice from its law, and accepts a draft that equals it.

  The law is warped by temperature, top-k, top-p and min-p (`sampling.warp`). Lossless in
  distribution for drafts that are guesses without a law: a draft x is accepted with probability
  p(x), and its replacement has the law p given that it is not x.
  """

  temperature: Any = 1.0  # float32, as all but top_k: one number, or one for each row
  top_k: Any = 0  # int32
  top_p: Any = 1.0
  min_p: Any = 0.0

  def __post_init__(self) -> None:
    struct.assign(
      self,
      temperature=_temperature(self.temperature, '1e-6 to 1e6, or decode by Greedy()'),
      top_k=jnp.asarray(each('top_k', self.top_k, 0, LARGEST, 'a whole number from 0', True)),
      top_p=jnp.asarray(each('top_p', self.top_p, SMALLEST, 1.0, 'more than 0 and at most 1')),
      min_p=jnp.asarray(each('min_p', self.min_p, 0.0, 1.0, '0 to 1')),
    )

  @property
  def promise(self) -> Promise:
    return 'law'

  def law(self, logits: Float[Array, '*b v']) -> Float[Array, '*b v']:
    """Returns log-probabilities of the law to draw from."""
    return warp(logits, self.temperature, self.top_k, self.top_p, self.min_p)

  def choose(self, keys: Array | None, logits: Float[Array, 'b n v']) -> Int[Array, 'b n']:
    return draw(keys, self.law(logits))


def _temperature(value: Any, allowed: str) -> Array:
  """Returns temperatures above 0; where each row has one, some may be 0, for greedy rows."""
  found = each('temperature', value, 0.0, HOTTEST, allowed)
  if not is_traced(found) and ((found < COLDEST) & ((found > 0) | (not found.ndim))).any():
    raise UserError(f'temperature={shown(value)} is not possible: give {allowed}')
  return jnp.asarray(found)


def greedy_or_sampling(value: Any, top_k: Any, top_p: Any, min_p: Any) -> dict[str, Any]:
  """Returns fields of a strategy that is greedy at temperature 0, and else samples.

  Args:
    value: the temperature, 0 or as in `Sampling`; a traced one, or one for each row, counts as
      above 0.
    top_k, top_p, min_p: as in `Sampling`; checked at temperature 0 too.

  Returns:
    `is_greedy`, which must be static, as another rule is another program; and the four settings as
    arrays.

  Raises:
    UserError: a setting is out of range.
  """
  is_greedy = is_zero(value)
  warmth = _temperature(1.0 if is_greedy else value, '0 for greedy decoding, or 1e-6 to 1e6')
  law = Sampling(warmth, top_k, top_p, min_p)
  return {
    'is_greedy': is_greedy,
    'temperature': jnp.zeros_like(warmth) if is_greedy else warmth,
    'top_k': law.top_k,
    'top_p': law.top_p,
    'min_p': law.min_p,
  }
