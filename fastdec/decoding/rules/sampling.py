"""The rule of sampling: it draws the next token, and accepts the drafts that equal the draw."""

from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Promise
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.sampling import Sampling, draw


@struct.pytree
class Drawn(Exact):
  """Draws a token from the target's distribution p, and accepts a draft that equals it.

  Lossless in distribution for drafts that were guessed, not drawn: a draft x is accepted with
  probability p(x). If it is not, the token that replaces it is drawn from p given that it is not x.
  """

  sampling: Sampling

  @property
  def promise(self) -> Promise:
    return 'law'

  def choose(self, keys: Array | None, logits: Float[Array, 'b n v']) -> Int[Array, 'b n']:
    return draw(keys, self.sampling.log_probs(logits))
