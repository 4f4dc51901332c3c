"""Recursive rejection on trees whose nodes were drawn, and what the rules for such trees share.

Each node's law q is what it was drawn from, given the siblings before it (`Draft.probabilities`).
So one formula serves trees drawn with replacement (SpecInfer: Miao et al. 2023, arXiv 2305.09781),
without it (Jeon et al. 2024, arXiv 2402.14160), and guesses, whose q is 1 at one token.
"""

from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Accepted, Draft, Promise, Rule
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.rejection import ComparingRule
from fastdec.decoding.sampling import draw, fold_keys
from fastdec.decoding.topology import take_node, with_rows
from fastdec.errors import UserError
from fastdec.fields import list_known, quote

# How the children of a node are drawn from q: so that they differ, each from q without those before
# it; independently; or one, from q without the likeliest tokens, which are the other children.
Siblings = Literal['distinct', 'independent', 'mixed']


@runtime_checkable
class TreeRule(ComparingRule, Protocol):
  """A rule for drawn trees, and how their nodes must be drawn."""

  siblings: Siblings


class DrawnTree:
  """A rule made of `weigh`, the law of its verdict, from which one draw takes the verdict."""

  greedy: ClassVar[Rule] = Exact()

  def weigh(
    self, draft: Draft, logits: Float[Array, 'b n v'], acceptable: Bool[Array, 'b n']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n v']]:
    """Returns the probability of each node to be the last one kept, and the bonus's law after it.

    Raises:
      UserError: drafts without q.
    """
    raise NotImplementedError

  def __call__(
    self,
    keys: Array | None,
    draft: Draft,
    logits: Float[Array, 'b n v'],
    acceptable: Bool[Array, 'b n'],
  ) -> Accepted:
    chance_bn, rest_bnv = self.weigh(draft, logits, acceptable)
    node = draw(fold_keys(keys, 0), jnp.log(chance_bn))
    return Accepted(node, draw(fold_keys(keys, 1), jnp.log(take_node(rest_bnv, node))))


@struct.pytree
class RecursiveRejection(DrawnTree):
  """Goes down from the root: accepts one child of each node after the other, or none.

  A child x is accepted with probability min(1, p(x) / q(x)), and p is that of its own node then. If
  it is not, p becomes norm(max(0, p - q)), for its siblings and the bonus. Lossless in
  distribution. On a chain it is `Rejection()`.

  Args:
    siblings: 'distinct': the children of a node are drawn without replacement; 'independent': with
      it, so that they may be equal.
  """

  siblings: Siblings = struct.static(default='distinct')
  promise: ClassVar[Promise] = 'law'

  def __post_init__(self) -> None:
    check_siblings(self.siblings)

  def weigh(
    self, draft: Draft, logits: Float[Array, 'b n v'], acceptable: Bool[Array, 'b n']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n v']]:
    order_bn = jnp.broadcast_to(jnp.arange(draft.topology.n, dtype=jnp.int32), draft.tokens.shape)
    chance_bn, _, rest_bnv = compare(draft, logits, acceptable, order_bn, weighs=False)

    # A node is reached if its path is accepted, and no sibling before one of its nodes was.
    failed_bn = 1 - chance_bn
    earlier_bnn, below_bnn = find_earlier(draft, order_bn), find_children(draft)
    chosen_bn = chance_bn * multiply(earlier_bnn, failed_bn)
    reached_bn = multiply(with_rows(draft.topology.mask, 3), chosen_bn)
    return reached_bn * multiply(below_bnn, failed_bn), rest_bnv


def check_siblings(siblings: Any) -> None:
  """Raises UserError unless `siblings` can be chosen: 'distinct' or 'independent'."""
  known = ('distinct', 'independent')
  if siblings not in known:
    raise UserError(f'siblings={quote(siblings)} is not possible: {list_known(known)}')


def compare(
  draft: Draft,
  logits: Float[Array, 'b n v'],
  acceptable: Bool[Array, 'b n'],
  order: Int[Array, 'b n'],
  weighs: bool,
) -> tuple[Float[Array, 'b n'], Float[Array, 'b n'], Float[Array, 'b n v']]:
  """Compares each node with what its parent's law leaves for it. Below, w is 1 unless `weighs`.

    a child x of u begins with w_x = min(1, w_u p_u(x) / q_x(x)), the chance that it is returned
    if it fails, s = sum max(0, w_u p_u - q_x); p_u = max(0, w_u p_u - q_x) / s
    and w_u becomes s / (s + 1 - w_u), which is 1 for the root

  Args:
    draft: its q is 0 where nothing was drawn: such a node is never accepted, and changes nothing.
    order: the nodes in the order of the tests, parents first.
    weighs: a node's w is its chance (`Traversal`), instead of 1.

  Returns:
    The chance of each node; w and p of each node after all its children have failed.
  """
  n, q_bnv = draft.topology.n, draft.probabilities
  if q_bnv is None and n > 1:
    raise UserError(
      'this rule needs the distributions that drafts were drawn from, which only draft networks'
      ' and heads give: leave out the rule, and give sampling=fd.Sampling(...) to sample'
    )
  p_bnv = jax.nn.softmax(logits, axis=-1)
  q_bnv = jnp.zeros_like(p_bnv) if q_bnv is None else q_bnv.astype(p_bnv.dtype)
  q_bnv = jnp.where(acceptable[..., None], q_bnv, 0)
  parents_bn = jnp.broadcast_to(with_rows(draft.topology.parents, 2), draft.tokens.shape)
  rows = jnp.arange(len(draft.tokens))

  def test(i: Int[Array, ''], state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    chance_bn, weight_bn, p_bnv = state
    node, token = order[:, i], take_node(draft.tokens, order[:, i])
    parent = take_node(parents_bn, node)
    weight_b, before_bv = take_node(weight_bn, parent), take_node(p_bnv, parent)
    p_bv, q_bv = weight_b[:, None] * before_bv, take_node(q_bnv, node)
    p_b, q_b = p_bv[rows, token], q_bv[rows, token]
    chance_b = jnp.where(q_b > 0, jnp.minimum(p_b / jnp.where(q_b > 0, q_b, 1), 1), 0)

    # What the child leaves. It may leave nothing only where it cannot fail, up to rounding.
    left_bv = jnp.maximum(p_bv - q_bv, 0)
    left_b = left_bv.sum(-1)
    total_b = left_b + 1 - weight_b
    after_b = jnp.where(total_b > 0, left_b / jnp.where(total_b > 0, total_b, 1), 1)
    is_left = (left_b > 0)[:, None]
    after_bv = jnp.where(is_left, left_bv / jnp.where(is_left, left_b[:, None], 1), before_bv)

    weight_bn = weight_bn.at[rows, parent].set(after_b)
    if weighs:
      weight_bn = weight_bn.at[rows, node].set(chance_b)
    return chance_bn.at[rows, node].set(chance_b), weight_bn, p_bnv.at[rows, parent].set(after_bv)

  ones_bn = jnp.ones_like(p_bnv[..., 0])
  return jax.lax.fori_loop(1, n, test, (ones_bn, ones_bn, p_bnv))


def find_children(draft: Draft) -> Bool[Array, 'rows n n']:
  """Returns a mask: [i, j] is true if j is a child of i."""
  parents_bn = with_rows(draft.topology.parents, 2)
  return parents_bn[:, None] == jnp.arange(draft.topology.n, dtype=jnp.int32)[None, :, None]


def find_earlier(draft: Draft, order: Int[Array, 'b n']) -> Bool[Array, 'b n n']:
  """Returns a mask: [i, j] is true if j is a sibling of i that is tested before it."""
  place_bn = jnp.argsort(order, axis=1)
  parents_bn = with_rows(draft.topology.parents, 2)
  is_sibling = parents_bn[:, :, None] == parents_bn[:, None]
  return is_sibling & (place_bn[:, None] < place_bn[:, :, None])


def multiply(of_bnn: Bool[Array, '#b n n'], x_bn: Float[Array, 'b n']) -> Float[Array, 'b n']:
  """Returns for each node i the product of the x of all j with of[i, j]."""
  return jnp.where(of_bnn, x_bn[:, None], 1).prod(-1)
