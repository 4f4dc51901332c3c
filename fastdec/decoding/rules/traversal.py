"""Traversal verification of drawn trees (Weng et al. 2025, arXiv 2505.12398): leaves first."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Promise
from fastdec.decoding.rules.recursive import (
  DrawnTree,
  Siblings,
  check_siblings,
  compare,
  find_earlier,
  multiply,
)
from fastdec.decoding.topology import with_rows


@struct.pytree
class Traversal(DrawnTree):
  """Tests nodes from the leaves up; the first that passes is kept, with its path.

  A node passes with its weight w (`compare`), after its children have failed and before its next
  sibling. The weight belongs to its path as a whole, so that a likely token makes up for an
  unlikely one before it. Lossless in distribution. On a chain it is `BlockVerification()`, and on
  average it accepts at least as many tokens as `RecursiveRejection`.

  Args:
    siblings: as in `RecursiveRejection`.
  """

  siblings: Siblings = struct.static(default='distinct')
  promise: ClassVar[Promise] = 'law'

  def __post_init__(self) -> None:
    check_siblings(self.siblings)

  def weigh(
    self, draft: Draft, logits: Float[Array, 'b n v'], acceptable: Bool[Array, 'b n']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n v']]:
    order_bn = jnp.broadcast_to(jnp.arange(draft.topology.n, dtype=jnp.int32), draft.tokens.shape)
    return weigh_upwards(draft, logits, acceptable, order_bn)


def weigh_upwards(
  draft: Draft,
  logits: Float[Array, 'b n v'],
  acceptable: Bool[Array, 'b n'],
  order: Int[Array, 'b n'],
) -> tuple[Float[Array, 'b n'], Float[Array, 'b n v']]:
  """Returns the result of `weigh` if siblings are tested in this order."""
  _, weight_bn, rest_bnv = compare(draft, logits, acceptable, order, weighs=True)

  # Before a node come its descendants, and the siblings before it or its ancestors with theirs.
  sees_bnn = with_rows(draft.topology.mask, 3)
  earlier_bnn = find_earlier(draft, order)
  aside_bnn = _join(_join(sees_bnn, earlier_bnn), sees_bnn.swapaxes(1, 2))
  below_bnn = sees_bnn.swapaxes(1, 2) & ~sees_bnn
  return weight_bn * multiply(aside_bnn | below_bnn, 1 - weight_bn), rest_bnv


def _join(first: Bool[Array, '#b n n'], then: Bool[Array, '#b n n']) -> Bool[Array, 'b n n']:
  """Returns a mask: [i, j] is true if a node is `first` of i, and j is `then` of it."""
  return first.astype(jnp.float32) @ then.astype(jnp.float32) > 0
