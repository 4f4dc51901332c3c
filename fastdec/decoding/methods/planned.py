"""Trees of a static shape that are filled level by level: with a draft's guesses, or with draws.

A drawn tree must not choose its shape by what was drawn below a node: that would bend the law.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec.decoding.methods.growing import take_ids
from fastdec.decoding.rules.recursive import Siblings, divide
from fastdec.decoding.sampling import best, draw, fold_keys
from fastdec.decoding.topology import Topology


@dataclasses.dataclass(frozen=True)
class Drawing:
  """How the nodes of a tree are drawn."""

  siblings: Siblings
  log_probs: Callable[[Array], Array]  # from scores to log q (`Sampling.log_probs`)
  keys: Array | None  # one for each row
  words: int  # size of the vocabulary


@dataclasses.dataclass(frozen=True)
class Planned:
  """A static tree, filled down to the level `depth`, whose nodes with children are its frontier.

  The members that a drafter reads are those of `growing.Growing`.
  """

  topology: Topology
  filled: Int[Array, 'b n']  # tokens; the root's where nothing is filled in yet
  drawing: Drawing | None = None  # None: the draft's best guesses, by their ranks
  laws: Float[Array, 'b n v'] | None = None  # what nodes were drawn from
  depth: int = 0

  @property
  def tokens(self) -> Int[Array, 'b f']:
    return self.filled[:, parents_at(self.topology, self.depth)]

  @property
  def origin(self) -> Int[Array, 'b f']:
    above = self.topology.parents[parents_at(self.topology, self.depth)]
    places = np.searchsorted(parents_at(self.topology, self.depth - 1), above).astype(np.int32)
    return jnp.broadcast_to(places, (len(self.filled), len(above)))

  @property
  def sees(self) -> Bool[Array, 'b f s']:
    levels = [parents_at(self.topology, level) for level in range(1, self.depth + 1)]
    mask = self.topology.mask[levels[-1]][:, np.concatenate(levels)]
    return jnp.broadcast_to(mask, (len(self.filled), *mask.shape))

  def advance(
    self, scores: Float[Array, 'b #f v'], ids: Int[Array, ' v'] | Int[Array, 'b #f v'] | None = None
  ) -> 'Planned':
    """Fills one more level by scores of the token after each node of the frontier, or after all.

    `ids` are the tokens of the scores, as in `growing.start`.
    """
    topology, drawing, b = self.topology, self.drawing, len(scores)
    parents = parents_at(topology, self.depth)
    (nodes,) = np.nonzero(topology.depths == self.depth + 1)
    of, rank = np.searchsorted(parents, topology.parents[nodes]), topology.ranks[nodes]
    scores = jnp.broadcast_to(scores, (b, len(parents), scores.shape[-1]))
    count, laws = int(rank.max()) + 1, self.laws
    if drawing is None:
      choice = best(scores, count)[1]
    else:
      keys = fold_keys(drawing.keys, self.depth)
      choice, q = draw_children(keys, scores, drawing.log_probs, count, drawing.siblings)
      q = q[:, of, rank]
      if laws is None:
        laws = jnp.zeros((b, topology.n, drawing.words), q.dtype)

      # From the laws of candidates to those of all words
      whole = jnp.zeros((*q.shape[:-1], drawing.words), q.dtype)
      if ids is None:
        whole = q
      elif ids.ndim == 1:
        whole = whole.at[..., ids].set(q)
      else:
        ids_bcv = jnp.broadcast_to(ids, scores.shape)[:, of]
        whole = jnp.put_along_axis(whole, ids_bcv, q, axis=-1, inplace=False)
      laws = laws.at[:, nodes].set(whole)
    tokens = take_ids(ids, choice).astype(self.filled.dtype)[:, of, rank]
    filled = self.filled.at[:, nodes].set(tokens)
    return dataclasses.replace(self, filled=filled, laws=laws, depth=self.depth + 1)


def plan(topology: Topology, root: Int[Array, ' b'], drawing: Drawing | None = None) -> Planned:
  """Returns a tree of which only the root is filled in."""
  return Planned(topology, jnp.broadcast_to(root[:, None], (len(root), topology.n)), drawing)


def parents_at(topology: Topology, depth: int) -> Int[np.ndarray, ' f']:
  """Returns the nodes of a level that have children."""
  return np.intersect1d(np.flatnonzero(topology.depths == depth), topology.parents)


def draw_children(
  keys: Array,
  scores: Float[Array, 'b p v'],
  log_probs: Callable[[Array], Array],
  count: int,
  siblings: Siblings,
) -> tuple[Int[Array, 'b p c'], Float[Array, 'b p c v']]:
  """Draws children of each node: their indices, and the law of each, given those before it.

  Where q has fewer words than there are children, the law of the last ones is 0: they are never
  accepted. Mixed siblings are sorted by their chances if p were q.
  """
  q_bpv, choices, laws, chances = jnp.exp(log_probs(scores)), [], [], []
  guesses = best(scores, max(count - 1, 1))[1]  # of mixed siblings
  for i in range(count):
    is_guess = siblings == 'mixed' and i < count - 1
    total_bp1 = q_bpv.sum(-1, keepdims=True)
    law_bpv = divide(q_bpv, total_bp1, 0)
    choice_bp = guesses[..., i] if is_guess else draw(fold_keys(keys, i), jnp.log(law_bpv))
    word_bpv = jax.nn.one_hot(choice_bp, q_bpv.shape[-1], dtype=q_bpv.dtype)
    choices.append(choice_bp)
    laws.append(word_bpv if is_guess else law_bpv)
    chances.append((q_bpv * word_bpv).sum(-1) if is_guess else total_bp1[..., 0])
    if siblings != 'independent':
      q_bpv = q_bpv * (1 - word_bpv)

  choice_bpc, laws_bpcv = jnp.stack(choices, axis=2), jnp.stack(laws, axis=2)
  if siblings == 'mixed':
    order_bpc = jnp.argsort(-jnp.stack(chances, axis=2), axis=2)
    choice_bpc = jnp.take_along_axis(choice_bpc, order_bpc, axis=2)
    laws_bpcv = jnp.take_along_axis(laws_bpcv, order_bpc[..., None], axis=2)
  return choice_bpc, laws_bpcv
