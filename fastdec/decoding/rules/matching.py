"""Acceptance rules that compare a draft with the target's prediction.

See Stern et al. 2018, sections 3 and 5. Each rule says which nodes match if their parents do, and
`find_longest` finds the longest path of matching nodes. The bonus is the target's choice after that
path: its argmax, or a draw (`Drawn`). `Exact` and `Drawn` are lossless; the others
trade fidelity for longer blocks.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Accepted, Draft, Promise, promise_of
from fastdec.decoding.sampling import Sampling, argmax, draw
from fastdec.decoding.settings import whole
from fastdec.decoding.topology import Topology, take_node, with_rows
from fastdec.errors import UserError


class Matching:
  """A rule made of `matches`, a mask of nodes that agree with the target's prediction."""

  # True if the rule accepts one token after each node, so that all deepest paths are the same text.
  names_one = False

  def matches(
    self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']
  ) -> Bool[Array, 'b n']:
    """Returns the nodes that the rule accepts if it accepts their parents."""
    raise NotImplementedError

  def choose(self, keys: Array | None, logits: Float[Array, 'b n v']) -> Int[Array, 'b n']:
    """Returns the target's own choice of the token after each node."""
    return argmax(logits)

  def __call__(
    self,
    keys: Array | None,
    draft: Draft,
    logits: Float[Array, 'b n v'],
    acceptable: Bool[Array, 'b n'],
  ) -> Accepted:
    choice = self.choose(keys, logits)
    matching = self.matches(draft, logits, choice) & acceptable

    # The target must be able to write the token: its logit is above minus infinity. Lossless rules
    # accept no other tokens anyway. Rules that compare p and q have no such mask, because they draw
    # the replacement of a draft from what q leaves of p.
    parents = jnp.broadcast_to(with_rows(draft.topology.parents, 2), draft.tokens.shape).clip(0)
    own = jax.vmap(lambda row, parent, token: row[parent, token])(logits, parents, draft.tokens)
    matching &= own > -jnp.inf
    node = find_longest(matching, draft, None if self.names_one else logits)
    return Accepted(node=node, bonus=take_node(choice, node))


@struct.pytree
class Exact(Matching):
  """Accepts a draft if it is the target's argmax. Lossless: the target's greedy output."""

  names_one = True
  promise: ClassVar[Promise] = 'exact'

  def matches(
    self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']
  ) -> Bool[Array, 'b n']:
    return draft.tokens == at_parent(choice, draft.topology)


@struct.pytree
class Drawn(Exact):
  """Draws a token from the target's distribution p, and accepts a draft that equals it.

  Lossless in distribution for drafts that were guessed, not drawn: a draft x is accepted with
  probability p(x). If it is not, the token that replaces it is drawn from p given that it is not x.
  """

  sampling: Sampling
  promise: ClassVar[Promise] = 'law'

  def choose(self, keys: Array | None, logits: Float[Array, 'b n v']) -> Int[Array, 'b n']:
    return draw(keys, self.sampling.log_probs(logits))


@struct.pytree
class TopN(Matching):
  """Accepts a draft among the target's n most likely tokens (section 5.1). Not lossless."""

  n: Any  # int32 scalar

  def __post_init__(self) -> None:
    struct.assign(self, n=whole(self.n, 1, 'TopN takes n'))

  @property
  def promise(self) -> Promise:
    return 'exact' if self.n == 1 else 'relaxed'

  def matches(
    self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']
  ) -> Bool[Array, 'b n']:
    predicted = at_parent(logits, draft.topology)
    own = jnp.take_along_axis(predicted, draft.tokens[..., None], axis=-1)
    # The draft's rank. Among equally likely tokens the lowest id comes first.
    index = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None]
    before = (predicted == own) & (index < draft.tokens[..., None])
    return ((predicted > own) | before).sum(-1) < self.n


@struct.pytree
class Distance(Matching):
  """Accepts a draft whose id is within tau of the target's argmax (section 5.2). Not lossless.

  It is for ordered ids, such as intensities.
  """

  tau: Any  # int32 scalar

  def __post_init__(self) -> None:
    struct.assign(self, tau=whole(self.tau, 0, 'Distance takes tau'))

  @property
  def promise(self) -> Promise:
    return 'exact' if self.tau == 0 else 'relaxed'

  def matches(
    self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']
  ) -> Bool[Array, 'b n']:
    return jnp.abs(draft.tokens - at_parent(choice, draft.topology)) <= self.tau


@struct.pytree
class MinBlock(Matching):
  """Keeps at least `size` tokens per call, the root included (section 5.3).

  So it keeps the first size - 1 drafts without a test, or all of a shorter block. It needs a chain.
  Not lossless for size > 1.
  """

  rule: Any  # a rule of this file
  size: Any  # int32 scalar

  def __post_init__(self) -> None:
    if not isinstance(self.rule, Matching):
      raise UserError(
        f'MinBlock needs a rule that matches drafts, not {self.rule!r}: give Exact() or TopN(2),'
        ' for example'
      )
    struct.assign(self, size=whole(self.size, 1, 'MinBlock takes size'))

  @property
  def promise(self) -> Promise:
    return promise_of(self.rule) if self.size == 1 else 'relaxed'

  def choose(self, keys: Array | None, logits: Float[Array, 'b n v']) -> Int[Array, 'b n']:
    return self.rule.choose(keys, logits)

  def matches(
    self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']
  ) -> Bool[Array, 'b n']:
    if not draft.topology.is_chain:
      raise UserError(
        'MinBlock needs a chain of drafts, not a tree: use another rule, or draft a chain'
      )
    return self.rule.matches(draft, logits, choice) | (draft.topology.depths < self.size)[None]


def at_parent(x: Array, topology: Topology) -> Array:
  """Returns x [b, n, ...] at each node's parent. The root's entry means nothing."""
  if topology.is_chain:
    return jnp.concatenate([x[:, :1], x[:, :-1]], axis=1)
  if topology.is_static:
    return x[:, topology.parents.clip(0)]
  parents = topology.parents.clip(0)
  return jnp.take_along_axis(x, parents.reshape(*parents.shape, *([1] * (x.ndim - 2))), axis=1)


def find_longest(
  matching: Bool[Array, 'b n'], draft: Draft, logits: Float[Array, 'b n v'] | None
) -> Int[Array, ' b']:
  """Returns the last node of the longest path of matching nodes from the root; 0 if none matches.

  Among equally long paths the one with the highest summed log-probability of the target wins, then
  the lowest node. A row with the nodes a and b below the root, aa and ab below a, and ba below b:

               root    a     b    aa    ab    ba
    matching          yes   yes   no    yes   yes
    is_whole    yes   yes   yes   no    yes   yes     all nodes of its path match; the root does
    depth        0     1     1    -1     2     2      so ab and ba are the deepest
    log_p        0   -0.2  -0.5  -2.0  -0.9  -0.4     of each draft after its parent, by the target
    score        0   -0.2  -0.5  -2.2  -1.1  -0.9     sums of log_p along the paths: ba is returned

  Args:
    matching: nodes that the rule accepts if it accepts their parents. The root's entry is not read.
    draft: its tokens and their topology.
    logits: the target's, of the token after each node; only read to choose among equally long
      paths. None: equally long paths are the same text, and the lowest node wins.
  """
  topology = draft.topology
  depths = with_rows(topology.depths, 2)
  is_root = depths == 0
  matching = matching | is_root
  if topology.is_chain:  # the only path ends before the first draft that does not match
    return jnp.cumprod(matching, axis=1).sum(axis=1, dtype=jnp.int32) - 1

  # The deepest nodes whose whole path matches. on_path[b, i, j]: j is on the path to i.
  on_path = with_rows(topology.mask, 3)
  is_whole = (matching[:, None, :] | ~on_path).all(-1)
  depth = jnp.where(is_whole, depths, -1)
  is_deepest = depth == depth.max(axis=1, keepdims=True)
  if logits is None:
    return argmax(is_deepest.astype(jnp.float32))

  # Among several, the most likely path.
  own = jnp.take_along_axis(at_parent(logits, topology), draft.tokens[..., None], axis=-1)[..., 0]
  log_p = jnp.where(is_root, 0, own - at_parent(jax.nn.logsumexp(logits, axis=-1), topology))
  score = jnp.where(on_path, log_p[:, None, :], 0).sum(-1)
  return argmax(jnp.where(is_deepest, score, -jnp.inf))
