"""Rule that draws the next token from the target's law, and keeps drafts that equal the draw."""

from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Promise
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.sampling import Sampling, draw


@struct.pytree
class Drawn(Exact):
  """Draws the target's choice from its law, and accepts a draft that equals it.

  Lossless in distribution for drafts that are guesses without a law: a draft x is accepted with
  probability p(x), and its replacement has the law p given that it is not x.
  """

  sampling: Sampling

  @property
  def promise(self) -> Promise:
    return 'law'

  def choose(self, keys: Array | None, logits: Float[Array, 'b n v']) -> Int[Array, 'b n']:
    return draw(keys, self.sampling.law(logits))
