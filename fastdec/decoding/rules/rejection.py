"""Acceptance rules that compare two distributions of a token: p, the target's, and q, the draft's.

  Rejection           token by token (Leviathan et al. 2022, algorithm 1, with lenience, A.5; Chen
                      et al. 2023)
  BlockVerification   the block as a whole (Sun et al. 2024, arXiv 2403.10444, algorithm 2)

Both are lossless in distribution if p and q are processed by the same temperature, top-k and top-p:
the emitted tokens have the distribution of tokens sampled from p one by one, for any q. Both need
chains. Where nothing was drafted, as after the last draft, q is 0: nothing can be accepted there,
and the bonus is drawn from all of p.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Accepted, Draft, Promise, Rule, promise_of
from fastdec.decoding.rules.matching import Exact, Matching, at_parent
from fastdec.decoding.sampling import Sampling, draw, fold_keys
from fastdec.decoding.settings import SMALLEST, real
from fastdec.decoding.topology import take_node
from fastdec.errors import UserError


@runtime_checkable
class ComparingRule(Rule, Protocol):
  """A rule that compares the distributions of target and draft."""

  @property
  def greedy(self) -> Rule:
    """The rule at temperature 0, where drafts have no q."""
    ...


@struct.pytree
class Warped:
  """A comparing rule for which `sampling` processes p, as it has processed q."""

  rule: ComparingRule
  sampling: Sampling

  @property
  def promise(self) -> Promise:
    return promise_of(self.rule)

  def __call__(
    self,
    keys: Array | None,
    draft: Draft,
    logits: Float[Array, 'b n v'],
    acceptable: Bool[Array, 'b n'],
  ) -> Accepted:
    return self.rule(keys, draft, self.sampling.log_probs(logits), acceptable)


@struct.pytree
class Rejection:
  """Accepts a draft x with probability min(1, p(x) / (lenience q(x))).

  The first rejected draft is replaced by a draw from norm(max(0, p - q)). After the last draft a
  token is drawn from p. Lossless in distribution at lenience 1.

  Args:
    lenience: above 0, at most 1. Smaller is looser, and not lossless: the probability of a token is
      at most p(x) / lenience, and rare tokens may become rarer. (A.5 multiplies q by it in the
      comparison, but not in the draw of the replacement.) At temperature 0 a draft is accepted if
      p(x) >= lenience max p.
  """

  lenience: Any = 1.0  # float32 scalar

  def __post_init__(self) -> None:
    allowed = 'more than 0 and at most 1, which is lossless'
    struct.assign(self, lenience=real('lenience', self.lenience, SMALLEST, 1.0, allowed))

  @property
  def promise(self) -> Promise:
    return 'law' if self.lenience == 1 else 'relaxed'

  @property
  def greedy(self) -> Rule:
    return NearlyBest(self.lenience)

  def __call__(
    self,
    keys: Array | None,
    draft: Draft,
    logits: Float[Array, 'b n v'],
    acceptable: Bool[Array, 'b n'],
  ) -> Accepted:
    p_bnv, q_bnv = distributions(draft, logits, acceptable)
    p_of_draft, q_of_draft = _of_drafts(p_bnv, draft), _of_drafts(q_bnv, draft)
    chance = draw_uniform(keys, p_of_draft)
    passed = chance * self.lenience.astype(chance.dtype) * q_of_draft < p_of_draft
    matching = passed & (q_of_draft > 0)
    node = jnp.cumprod(matching, axis=1).sum(axis=1, dtype=jnp.int32)
    p_bv, q_bv = take_node(p_bnv, node), take_node(q_bnv, node)
    return Accepted(node, draw_rest(keys, jnp.maximum(p_bv - q_bv, 0), p_bv))


@struct.pytree
class BlockVerification:
  """Accepts drafts x1..xg up to the last i that passes its own test (Sun et al. 2024, algorithm 2).

  Lossless in distribution. On average it accepts at least as many as `Rejection`: later tokens can
  make up for an unlikely one. p and q below are of the token after x_i; q = 0 after the last.

    w_0 = 1,   w_i = min(1, w_{i-1} p(x_i) / q(x_i))
    e_i = sum_x max(0, w_i p(x) - q(x))
    x_i passes with probability e_i / (e_i + 1 - w_i), which is w_i for the last
    the bonus after x_i is drawn from norm(max(0, w_i p - q))

  At temperature 0 it is `Exact`.
  """

  promise: ClassVar[Promise] = 'law'
  greedy: ClassVar[Rule] = Exact()

  def __call__(
    self,
    keys: Array | None,
    draft: Draft,
    logits: Float[Array, 'b n v'],
    acceptable: Bool[Array, 'b n'],
  ) -> Accepted:
    p_bnv, q_bnv = distributions(draft, logits, acceptable)
    p_of_draft, q_of_draft = _of_drafts(p_bnv, draft), _of_drafts(q_bnv, draft)
    drafted = q_of_draft > 0

    # w_i of each node
    ratio = jnp.where(drafted, p_of_draft / jnp.where(drafted, q_of_draft, 1), 0)
    weights = [jnp.ones_like(p_bnv[:, 0, 0])]
    for i in range(ratio.shape[1]):
      weights.append(jnp.minimum(weights[-1] * ratio[:, i], 1))
    weight_bn = jnp.stack(weights, axis=1)

    # e_i of each node, and the last draft that passes
    excess_bnv = jnp.maximum(weight_bn[..., None] * p_bnv - q_bnv, 0)
    excess_bn = excess_bnv.sum(-1)
    missing = jnp.where(weight_bn < 1, 1 - weight_bn, 1)
    passing = jnp.where(weight_bn < 1, excess_bn / (excess_bn + missing), 1)[:, 1:]
    passed = (draw_uniform(keys, passing) < passing) & drafted
    index = jnp.arange(1, draft.tokens.shape[1], dtype=jnp.int32)[None]
    node = jnp.where(passed, index, 0).max(axis=1, initial=0)
    return Accepted(node, draw_rest(keys, take_node(excess_bnv, node), take_node(p_bnv, node)))


@struct.pytree
class NearlyBest(Matching):
  """Accepts a draft if it is the target's argmax, or p(x) >= lenience max p (A.5).

  At lenience 1 it is `Exact`: among equally likely tokens only the lowest id is accepted.
  """

  lenience: Any  # float32 scalar

  @property
  def promise(self) -> Promise:
    return 'exact' if self.lenience == 1 else 'relaxed'

  def matches(
    self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']
  ) -> Bool[Array, 'b n']:
    predicted = at_parent(logits, draft.topology)
    own = jnp.take_along_axis(predicted, draft.tokens[..., None], axis=-1)[..., 0]
    near = own >= predicted.max(axis=-1) + jnp.log(self.lenience).astype(own.dtype)
    best = draft.tokens == at_parent(choice, draft.topology)
    return best | (near & (self.lenience < 1))


def distributions(
  draft: Draft, logits: Float[Array, 'b n v'], acceptable: Bool[Array, 'b n']
) -> tuple[Float[Array, 'b n v'], Float[Array, 'b n v']]:
  """Returns p and q of the token after each node of a chain; q is 0 before unacceptable ones.

  Raises:
    UserError: a tree, or drafts without q.
  """
  if not draft.topology.is_chain:
    raise UserError(
      'Rejection and BlockVerification need a chain of drafts, not a tree: use another rule'
    )
  p_bnv = jax.nn.softmax(logits, axis=-1)
  if draft.topology.n == 1:
    return p_bnv, jnp.zeros_like(p_bnv)
  if draft.probabilities is None:
    raise UserError(
      'Rejection and BlockVerification need the distributions that drafts were drawn from, which'
      ' only a draft model or a draft network gives: leave out the rule, and give'
      ' sampling=fd.Sampling(...) to sample'
    )
  q_bnv = jnp.where(acceptable[..., None], draft.probabilities, 0).astype(p_bnv.dtype)
  return p_bnv, jnp.pad(q_bnv[:, 1:], ((0, 0), (0, 1), (0, 0)))


def _of_drafts(p: Float[Array, 'b n v'], draft: Draft) -> Float[Array, 'b g']:
  """Returns the probability of each draft of a chain, by the distribution after the node before."""
  return jnp.take_along_axis(p[:, :-1], draft.tokens[:, 1:, None], axis=-1)[..., 0]


def draw_uniform(keys: Array | None, like: Float[Array, 'b g']) -> Float[Array, 'b g']:
  """Draws numbers from 0 to below 1."""
  row_keys = fold_keys(keys, 0)
  return jax.vmap(lambda key: jax.random.uniform(key, like.shape[1:], like.dtype))(row_keys)


def draw_rest(
  keys: Array | None, rest: Float[Array, 'b *n v'], p: Float[Array, 'b *n v']
) -> Int[Array, 'b *n']:
  """Draws from norm(rest), or from p if rounding has left nothing, as it may where p == q."""
  return draw(fold_keys(keys, 1), jnp.log(jnp.where(rest.sum(-1, keepdims=True) > 0, rest, p)))
