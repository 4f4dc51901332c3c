"""UniVer (2026, arXiv 2605.04543): of a node's children one is drawn, the others are guesses.

The drawn child x has the law q, from which the guesses F are taken out. UniVer accepts the children
of a node of weight t with these probabilities in all, and the bonus from norm(max(0, t p - q))
without F if all fail:

  a(x) = min(1, t p(x) / q(x))
  a(f) = t p(f) (1 - a(x)) / z,   z = 1 - t + sum max(0, t p - q), for each f in F

That is `Traversal` if a guess has the law that is 1 at its token, and is tested after x.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Promise
from fastdec.decoding.rules.recursive import Siblings
from fastdec.decoding.rules.traversal import Traversal
from fastdec.decoding.topology import with_rows


@struct.pytree
class UniVer(Traversal):
  """`Traversal` of trees in which one child of each node is drawn, the others are the likeliest.

  Lossless in distribution. The likeliest child by the draft, be it drawn or not, has the deepest
  branch of a tree. On a chain, where each token is drawn, it is `BlockVerification()`.
  """

  siblings: Siblings = struct.static(default='mixed', init=False)
  promise: ClassVar[Promise] = 'law'

  def order(self, draft: Draft) -> Int[Array, 'b n']:
    if draft.probabilities is None:
      return super().order(draft)
    q_bn = jnp.take_along_axis(draft.probabilities, draft.tokens[..., None], axis=-1)[..., 0]
    late_bn = (q_bn == 1).astype(jnp.int32)
    return jnp.argsort(2 * with_rows(draft.topology.depths, 2) + late_bn, axis=1)
