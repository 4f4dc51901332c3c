"""Recursive rejection on drawn trees, and what the rules for drawn trees share.

Each node's law q is what it was drawn from, given the siblings before it (`Draft.probabilities`).
So one formula serves trees drawn with replacement (SpecInfer: Miao et al. 2023, arXiv 2305.09781),
without it (Jeon et al. 2024, arXiv 2402.14160), and guesses, whose q is 1 at one token.
"""

from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Accepted, Draft, Promise, Rule
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.sampling import draw, fold_keys
from fastdec.decoding.topology import take_node, with_rows
from fastdec.errors import UserError
from fastdec.fields import list_known, quote

# How the children of a node are drawn: without replacement; with it, so that they may be equal; or
# one of them, from q without the likeliest tokens, which are the others.
Siblings = Literal['distinct', 'independent', 'mixed']


@struct.pytree
class TreeRule:
  """A rule for drawn trees: it names the law of its verdict, and draws from it."""

  siblings: Siblings = struct.static(default='distinct')
  greedy: ClassVar[Rule] = Exact()

  def __post_init__(self) -> None:
    known = get_args(Siblings)
    if self.siblings not in known:
      raise UserError(f'siblings={quote(self.siblings)} is not possible: {list_known(known)}')

  def weigh(
    self, draft: Draft, logits: Float[Array, 'b n v'], acceptable: Bool[Array, 'b n']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n v']]:
    """Returns each node's probability of being the last one kept, and the bonus's law after it."""
    raise NotImplementedError

  def order(self, draft: Draft) -> Int[Array, 'b n']:
    """Returns the nodes in the order of their tests among siblings; parents come first."""
    return jnp.broadcast_to(jnp.arange(draft.topology.n, dtype=jnp.int32), draft.tokens.shape)

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
class RecursiveRejection(TreeRule):
  """Goes down from the root: accepts one child of each node after the other, or none.

  A child x is accepted with probability min(1, p(x) / q(x)), and p is that of its own node then. If
  it is not, p becomes norm(max(0, p - q)), for its siblings and the bonus. Lossless in
  distribution. On a chain it is `Rejection()`.

  Args:
    siblings: 'distinct': the children of a node are drawn without replacement; 'independent': with
      it; 'mixed': one is drawn, the others are the likeliest.
  """

  promise: ClassVar[Promise] = 'law'

  def weigh(
    self, draft: Draft, logits: Float[Array, 'b n v'], acceptable: Bool[Array, 'b n']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n v']]:
    order_bn = self.order(draft)
    chance_bn, _, rest_bnv = compare(draft, logits, acceptable, order_bn, weighs=False)

    # A node is reached if its path is accepted, and no sibling before one of its nodes was.
    failed_bn, number = 1 - chance_bn, jnp.arange(draft.topology.n, dtype=jnp.int32)
    chosen_bn = chance_bn * multiply(find_earlier(draft, order_bn), failed_bn)
    reached_bn = multiply(with_rows(draft.topology.mask, 3), chosen_bn)
    is_child_bnn = with_rows(draft.topology.parents, 2)[:, None] == number[None, :, None]
    return reached_bn * multiply(is_child_bnn, failed_bn), rest_bnv


def compare(
  draft: Draft,
  logits: Float[Array, 'b n v'],
  acceptable: Bool[Array, 'b n'],
  order: Int[Array, 'b n'],
  weighs: bool,
) -> tuple[Float[Array, 'b n'], Float[Array, 'b n'], Float[Array, 'b n v']]:
  """Compares each node's law with what its parent has left. Below, w is 1 unless `weighs`.

    a child x of u begins with w_x = min(1, w_u p_u(x) / q_x(x)), which is the chance returned
    if it fails, s = sum max(0, w_u p_u - q_x), and p_u becomes max(0, w_u p_u - q_x) / s
    and w_u becomes s / (s + 1 - w_u)

  A node whose q is 0 never passes, and changes nothing. Returns the chance of each node; w and p of
  each node after all its children have failed.
  """
  n, q_bnv, p_bnv = draft.topology.n, draft.probabilities, jax.nn.softmax(logits, axis=-1)
  if q_bnv is None and n > 1:
    raise UserError(
      'this rule needs the distributions that drafts were drawn from, which only draft models and'
      ' draft networks give: leave out the rule, and give sampling=fd.Sampling(...) to sample'
    )
  q_bnv = jnp.zeros_like(p_bnv) if q_bnv is None else q_bnv.astype(p_bnv.dtype)
  q_bnv = jnp.where(acceptable[..., None], q_bnv, 0)
  parents_bn = jnp.broadcast_to(with_rows(draft.topology.parents, 2), draft.tokens.shape)
  rows = jnp.arange(len(draft.tokens))

  def test(i: Int[Array, ''], state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    chance_bn, weight_bn, p_bnv = state
    node, token = order[:, i], take_node(draft.tokens, order[:, i])
    parent = take_node(parents_bn, node)
    weight_b, law_bv = take_node(weight_bn, parent), take_node(p_bnv, parent)
    p_bv, q_bv = weight_b[:, None] * law_bv, take_node(q_bnv, node)
    chance_b = jnp.minimum(divide(p_bv[rows, token], q_bv[rows, token], 0), 1)

    # What the child leaves. It leaves nothing only where it cannot fail, up to rounding.
    left_bv = jnp.maximum(p_bv - q_bv, 0)
    left_b = left_bv.sum(-1)
    after_b = jnp.minimum(divide(left_b, left_b + (1 - weight_b), 1), 1)  # not above by rounding
    weight_bn = weight_bn.at[rows, parent].set(after_b)
    if weighs:
      weight_bn = weight_bn.at[rows, node].set(chance_b)
    p_bnv = p_bnv.at[rows, parent].set(divide(left_bv, left_b[:, None], law_bv))
    return chance_bn.at[rows, node].set(chance_b), weight_bn, p_bnv

  ones_bn = jnp.ones_like(p_bnv[..., 0])
  return jax.lax.fori_loop(1, n, test, (ones_bn, ones_bn, p_bnv))


def find_earlier(draft: Draft, order: Int[Array, 'b n']) -> Bool[Array, 'b n n']:
  """Returns a mask: [i, j] is true if j is a sibling of i that is tested before it."""
  place_bn, parents_bn = jnp.argsort(order, axis=1), with_rows(draft.topology.parents, 2)
  is_sibling = parents_bn[:, :, None] == parents_bn[:, None]
  return is_sibling & (place_bn[:, None] < place_bn[:, :, None])


def multiply(of_bnn: Bool[Array, '#b n n'], x_bn: Float[Array, 'b n']) -> Float[Array, 'b n']:
  """Returns for each node i the product of the x of all j with of[i, j]."""
  return jnp.where(of_bnn, x_bn[:, None], 1).prod(-1)


def divide(x: Float[Array, '...'], by: Float[Array, '...'], other: Array | int) -> Array:
  """Returns x / by, or `other` where `by` is 0."""
  return jnp.where(by > 0, x / jnp.where(by > 0, by, 1), other)
