"""Drafts from a lattice: one pass scores candidates, few words or all, for the next g tokens.

A bias from the token before may reorder the candidates of each token (DSpark's Markov head). The
best path of the lattice is a chain of guesses, and its best paths together are a tree. The network
does not run again: a draft costs g small steps on arrays of m candidates.
"""

import dataclasses
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fastdec.decoding.methods import growing
from fastdec.decoding.methods.growing import take_ids
from fastdec.decoding.methods.planned import Planned
from fastdec.decoding.sampling import best, scale, score_windows
from fastdec.decoding.topology import Topology

Carry = PyTree[Array]
Bias = Callable[[int, Array, Carry], tuple[Array, Carry]]


@dataclasses.dataclass(frozen=True)
class Lattice:
  """m different candidates for each of the g tokens after the root. If scores tie, the first wins.

  `bias(i, before, carry)` returns what the tokens `before` the i-th, [b, w], add to the scores of
  its candidates, [b, w, m], and the carry for the bias of the next token, arrays [b, w, ...]. The
  bias of the first token gets `carry`, [b, 1, ...]. None: there is no bias.
  """

  scores: Float[Array, 'b g m']  # logits, or log-probabilities
  # the candidates' tokens, for each guess or for all guesses; None: 0, 1, ...
  ids: Int[Array, 'b g m'] | Int[Array, ' m'] | None = None
  bias: Bias | None = None
  carry: Carry = None
  # how many ids around a candidate count for it, see `sampling.score_windows`; if any, ids is None
  window: int = 0

  def correct(
    self, i: int, before: Int[Array, 'b w'], carry: Carry
  ) -> tuple[Float[Array, 'b #w m'], Carry]:
    """Returns the scores of the i-th token's candidates after each token before, and the carry.

    i counts from 0. Without a bias the scores do not depend on the token before: the axis has
    length 1.
    """
    scores_b1m = self.scores[:, i : i + 1]
    if self.bias is None:
      return score_windows(scores_b1m, self.window), carry
    added_bwm, carry = self.bias(i, before, carry)
    return score_windows(scores_b1m + added_bwm.astype(scores_b1m.dtype), self.window), carry

  def ids_of(self, i: int) -> Int[Array, 'b 1 m'] | Int[Array, ' m'] | None:
    """Returns the i-th token's candidates, with an axis for the tokens before."""
    if self.ids is None or self.ids.ndim == 1:
      return self.ids
    return self.ids[:, i : i + 1]


def link(
  ids: Int[Array, 'b g m'], before: Float[Array, 'b g m r'], after: Float[Array, 'b g m r']
) -> Lattice:
  """Returns a lattice whose scores are products of two vectors.

  Args:
    ids: the candidates.
    before: of each candidate of the guess before; of the root for the first guess.
    after: of each candidate.
  """

  def score(i: int, tokens: Int[Array, 'b w'], carry: Carry) -> tuple[Float[Array, 'b w m'], Carry]:
    place = (ids[:, None, max(i - 1, 0)] == tokens[..., None]).argmax(-1)
    of_tokens = jnp.take_along_axis(before[:, i], place[..., None], axis=1)
    return jnp.einsum('bwr,bmr->bwm', of_tokens, after[:, i]), carry

  return Lattice(jnp.zeros(ids.shape, after.dtype), ids, score)


def grow(
  lattice: Lattice,
  root: Int[Array, ' b'],
  width: int,
  nodes: int,
  temperatures: Float[Array, ' g'] | None = None,
  families: bool = False,
) -> tuple[Int[Array, 'b n'], Topology, Float[Array, 'b n']]:
  """Returns the tree of the most likely paths by the corrected scores (`growing`), g levels deep.

  The last result is the chance of each node: q of the path to it.

  Args:
    lattice, root: the candidates, and the token that they follow.
    width, nodes: sizes as in `growing.check_sizes`, with depth g and m choices.
    temperatures: divide the corrected scores of each level, to calibrate them. None: 1.
    families: the children of a node enter together.
  """

  def log_q(
    i: int, before: Int[Array, 'b w'], carry: Carry
  ) -> tuple[Float[Array, 'b #w m'], Carry]:
    scores, carry = lattice.correct(i, before, carry)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if temperatures is not None:
      scores = scale(scores, temperatures[i])
    return jax.nn.log_softmax(scores, axis=-1), carry

  first, carry = log_q(0, root[:, None], lattice.carry)
  tree = growing.start(first[:, 0], width, nodes, lattice.ids_of(0), families)
  depth = lattice.scores.shape[1]
  if families:
    depth = min(depth, growing.count_families(width, nodes))
  for i in range(1, depth):
    origin = tree.origin
    of_parents = jax.tree.map(lambda x, at=origin: jax.vmap(operator.getitem)(x, at), carry)
    level_log_q, carry = log_q(i, tree.tokens, of_parents)
    tree = growing.advance(tree, level_log_q, lattice.ids_of(i))
  return growing.finish(tree, root)


def fill(lattice: Lattice, tree: Planned) -> Planned:
  """Fills a static tree, or a chain: with the r-th choice after its parent at a node of rank r, or
  with draws.

  Args:
    lattice: the candidates.
    tree: with the token that they follow. Where it is drawn, its `laws` become q: 0 outside the
      candidates, and at the root, which is not drawn. Each depends on the tokens drawn before, as
      rules need it.
  """
  # Without a bias, one ranking serves all levels.
  if lattice.bias is None and tree.drawing is None:
    depths, ranks = tree.topology.depths[1:], tree.topology.ranks[1:]
    choice_bgr = best(score_windows(lattice.scores, lattice.window), int(ranks.max()) + 1)[1]
    tokens_bgr = take_ids(lattice.ids, choice_bgr).astype(tree.filled.dtype)
    tokens_bn = tokens_bgr[:, depths - 1, ranks]
    filled = jnp.concatenate([tree.filled[:, :1], tokens_bn], axis=1)
    return dataclasses.replace(tree, filled=filled)

  carry = lattice.carry
  for i in range(tree.topology.max_depth):
    scores, carry = lattice.correct(i, tree.tokens, carry)
    tree = tree.advance(scores, lattice.ids_of(i))
    carry = jax.tree.map(lambda x, at=tree.origin: jax.vmap(operator.getitem)(x, at), carry)
  return tree
