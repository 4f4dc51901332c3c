"""Traversal verification of drawn trees (Weng et al. 2025, arXiv 2505.12398): leaves first."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fastdec import struct
from fastdec.decoding.protocol import Draft, Promise
from fastdec.decoding.rules.recursive import TreeRule, compare, find_earlier, multiply
from fastdec.decoding.topology import with_rows


@struct.pytree
class Traversal(TreeRule):
  """Tests nodes from the leaves up; the first that passes is kept, with its path.

  A node passes with its weight w (`compare`), after its children have failed and before its next
  sibling. The weight belongs to its path as a whole, so that a likely token makes up for an
  unlikely one before it. Lossless in distribution. On a chain it is `BlockVerification()`, and on
  average it accepts at least as many tokens as `RecursiveRejection`.

  Args:
    siblings: as in `RecursiveRejection`.
  """

  promise: ClassVar[Promise] = 'law'

  def weigh(
    self, draft: Draft, logits: Float[Array, 'b n v'], acceptable: Bool[Array, 'b n']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n v']]:
    order_bn = self.order(draft)
    _, weight_bn, rest_bnv = compare(draft, logits, acceptable, order_bn, weighs=True)

    # Before a node come its descendants, and the siblings before it or its ancestors with theirs.
    sees_bnn = with_rows(draft.topology.mask, 3)
    below_bnn = sees_bnn.swapaxes(1, 2) & ~sees_bnn
    before_bnn = _join(_join(sees_bnn, find_earlier(draft, order_bn)), sees_bnn.swapaxes(1, 2))
    return weight_bn * multiply(before_bnn | below_bnn, 1 - weight_bn), rest_bnv


def _join(first: Bool[Array, '#b n n'], then: Bool[Array, '#b n n']) -> Bool[Array, 'b n n']:
  """Returns a mask: [i, j] is true if a node is `first` of i, and j is `then` of it."""
  return first.astype(jnp.float32) @ then.astype(jnp.float32) > 0
