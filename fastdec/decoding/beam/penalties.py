"""What beam search adds to the model's scores: length penalties, and tokens that would repeat."""

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.settings import number

ALPHA = 'a number alpha, or PowerPenalty(alpha)'


@runtime_checkable
class LengthPenalty(Protocol):
  """A frozen pytree: n tokens whose log-probabilities sum to s have the score s / penalty(n)."""

  def __call__(self, n: Int[Array, '*b']) -> Float[Array, '*b']:
    """Returns the divisor for n generated tokens, the end token included."""
    ...


@struct.pytree
class GNMTPenalty:
  """((5 + n) / 6) ^ alpha (Wu et al. 2016, equation 14). Vaswani et al. 2017 have alpha = 0.6.

  >>> print(GNMTPenalty(1.0)(jnp.array([1, 7, 13])))
  [1. 2. 3.]
  """

  alpha: Any  # float scalar

  def __post_init__(self) -> None:
    struct.assign(self, alpha=number('a length penalty of ', self.alpha, ALPHA))

  def __call__(self, n: Int[Array, '*b']) -> Float[Array, '*b']:
    base = (5.0 + n.astype(float)) / 6.0
    return base ** jnp.asarray(self.alpha, base.dtype)


@struct.pytree
class PowerPenalty:
  """n ^ alpha, as fairseq's `--lenpen` and Hugging Face's `length_penalty`.

  >>> print(PowerPenalty(1.0)(jnp.array([1, 2, 4])))
  [1. 2. 4.]
  """

  alpha: Any  # float scalar

  def __post_init__(self) -> None:
    struct.assign(self, alpha=number('a length penalty of ', self.alpha, ALPHA))

  def __call__(self, n: Int[Array, '*b']) -> Float[Array, '*b']:
    base = n.astype(float)
    return base ** jnp.asarray(self.alpha, base.dtype)


def repeats(
  tokens: Int[Array, 'r t'], length: Int[Array, ' r'], ngram: int, vocab_size: int
) -> Bool[Array, 'r v']:
  """Returns a mask of next tokens that would repeat an n-gram of the first `length` tokens.

  tokens a b c a b, ngram 3 -> c
  """
  t = tokens.shape[1]
  place = jnp.arange(t, dtype=length.dtype)
  # an n-gram begins here and ends before `length`
  complete = place[None, :] + ngram <= length[:, None]
  for i in range(ngram - 1):
    own = jnp.take_along_axis(tokens, (length - ngram + 1 + i).clip(0, t - 1)[:, None], axis=1)
    complete &= jnp.roll(tokens, -i, axis=1) == own
  last = jnp.roll(tokens, 1 - ngram, axis=1)  # of the n-gram that begins here
  rows = jnp.arange(len(tokens))[:, None]
  return jnp.zeros((len(tokens), vocab_size), bool).at[rows, last].max(complete)
