"""UniVer (2026, arXiv 2605.04543): of a node's children one is drawn, the others are guesses.

The drawn child x has the law q, from which the guesses F are taken out. UniVer accepts the children
of a node of weight t with these probabilities in all, and the bonus from norm(max(0, t p - q))
without F if all fail:

  a(x) = min(1, t p(x) / q(x))
  a(f) = t p(f) (1 - a(x)) / z,   z = 1 - t + sum max(0, t p - q), for each f in F

These follow from `Traversal` if a guess has the law that is 1 at its token, and is tested after x.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fastdec import struct
from fastdec.decoding.protocol import Draft, Promise
from fastdec.decoding.rules.recursive import DrawnTree, Siblings
from fastdec.decoding.rules.traversal import weigh_upwards
from fastdec.decoding.topology import with_rows


@struct.pytree
class UniVer(DrawnTree):
  """`Traversal` of trees in which one child of each node is drawn, the others are the likeliest.

  Lossless in distribution. The children of a node are in the order of their chances by the draft:
  the likeliest one has the deepest branch of a tree, be it drawn or not. On a chain, where each
  token is drawn, it is `BlockVerification()`.
  """

  siblings: ClassVar[Siblings] = 'mixed'
  promise: ClassVar[Promise] = 'law'

  def weigh(
    self, draft: Draft, logits: Float[Array, 'b n v'], acceptable: Bool[Array, 'b n']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n v']]:
    depths_bn = jnp.broadcast_to(with_rows(draft.topology.depths, 2), draft.tokens.shape)
    is_guess_bn = jnp.zeros_like(acceptable)
    if draft.probabilities is not None:
      q_bn = jnp.take_along_axis(draft.probabilities, draft.tokens[..., None], axis=-1)[..., 0]
      is_guess_bn = q_bn == 1
    order_bn = jnp.argsort(2 * depths_bn + is_guess_bn.astype(jnp.int32), axis=1)
    return weigh_upwards(draft, logits, acceptable, order_bn)
