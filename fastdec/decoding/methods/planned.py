"""Trees of a static shape that are filled level by level: with a draft's guesses, or with draws.

A drawn tree must not choose its shape by what was drawn below a node: that would bend the law. So
its shape is static, and a node's children are drawn from q in one of three ways (`Siblings`).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec.decoding.methods.growing import take_ids
from fastdec.decoding.rules.recursive import Siblings
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
  def expanded(self) -> int:
    return sum(len(parents_at(self.topology, level)) for level in range(1, self.depth))

  @property
  def sees(self) -> Bool[Array, 'b f s']:
    nodes = np.concatenate([parents_at(self.topology, level) for level in range(1, self.depth + 1)])
    mask = self.topology.mask[parents_at(self.topology, self.depth)][:, nodes]
    return jnp.broadcast_to(mask, (len(self.filled), *mask.shape))

  def advance(
    self, scores: Float[Array, 'b #f v'], ids: Int[Array, ' v'] | Int[Array, 'b #f v'] | None = None
  ) -> 'Planned':
    """Fills one more level.

    Args:
      scores: of the token after each node of the frontier, or the same for all.
      ids: the token of each score, as in `growing.start`.
    """
    topology, level = self.topology, self.depth + 1
    parents, nodes = parents_at(self.topology, self.depth), np.flatnonzero(topology.depths == level)
    scores = jnp.broadcast_to(scores, (len(scores), len(parents), scores.shape[-1]))
    of, rank = np.searchsorted(parents, topology.parents[nodes]), topology.ranks[nodes]
    count, drawing, laws = int(rank.max()) + 1, self.drawing, self.laws
    if drawing is None:
      choice = best(scores, count)[1]
    else:
      keys = fold_keys(drawing.keys, self.depth)
      choice, q = draw_children(keys, scores, drawing.log_probs, count, drawing.siblings)
      q = _over_words(q[:, of, rank], ids, of, drawing.words)
      if laws is None:
        laws = jnp.zeros((len(q), topology.n, drawing.words), q.dtype)
      laws = laws.at[:, nodes].set(q)
    tokens = take_ids(ids, choice).astype(self.filled.dtype)
    filled = self.filled.at[:, nodes].set(tokens[:, of, rank])
    return dataclasses.replace(self, filled=filled, laws=laws, depth=level)


def parents_at(topology: Topology, depth: int) -> Int[np.ndarray, ' f']:
  """Returns the nodes of a level that have children."""
  has_child = np.isin(np.arange(topology.n), topology.parents)
  return np.flatnonzero(has_child & (topology.depths == depth))


def plan(topology: Topology, root: Int[Array, ' b'], drawing: Drawing | None = None) -> Planned:
  """Returns a tree of which only the root is filled in."""
  tokens = jnp.broadcast_to(root[:, None], (len(root), topology.n))
  return Planned(topology, tokens, drawing)


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
  q_bpv, v = jnp.exp(log_probs(scores)), scores.shape[-1]
  if siblings == 'mixed' and count > 1:
    guesses_bpf = best(scores, count - 1)[1]
    guess_bpfv = jax.nn.one_hot(guesses_bpf, v, dtype=q_bpv.dtype)
    chances_bpf = jnp.take_along_axis(q_bpv, guesses_bpf, axis=-1)
    q_bpv = _norm(q_bpv * (1 - guess_bpfv.sum(2)))
    drawn_bp = draw(keys, jnp.log(q_bpv))
    rest_bp = 1 - chances_bpf.sum(-1)
    order = jnp.argsort(-jnp.concatenate([chances_bpf, rest_bp[..., None]], axis=-1), axis=-1)
    choice = jnp.concatenate([guesses_bpf, drawn_bp[..., None]], axis=-1)
    laws = jnp.concatenate([guess_bpfv, q_bpv[:, :, None]], axis=2)
    choice = jnp.take_along_axis(choice, order, axis=-1)
    return choice, jnp.take_along_axis(laws, order[..., None], axis=2)

  choices, laws = [], []
  for i in range(count):
    choices.append(draw(fold_keys(keys, i), jnp.log(q_bpv)))
    laws.append(q_bpv)
    if siblings == 'distinct':
      q_bpv = _norm(q_bpv * (1 - jax.nn.one_hot(choices[-1], v, dtype=q_bpv.dtype)))
  return jnp.stack(choices, axis=2), jnp.stack(laws, axis=2)


def _norm(q: Float[Array, '*b v']) -> Float[Array, '*b v']:
  """Divides by the sum, if there is any."""
  total = q.sum(-1, keepdims=True)
  return jnp.where(total > 0, q / jnp.where(total > 0, total, 1), 0)


def _over_words(
  q: Float[Array, 'b c v'],
  ids: Int[Array, ' v'] | Int[Array, 'b #f v'] | None,
  of: Int[np.ndarray, ' c'],
  words: int,
) -> Float[Array, 'b c w']:
  """Returns q over the vocabulary, 0 outside the candidates `ids` of a node's parent `of`."""
  if ids is None:
    return q
  whole = jnp.zeros((*q.shape[:2], words), q.dtype)
  if ids.ndim == 1:
    return whole.at[..., ids].set(q)
  each = ids[:, of] if ids.shape[1] > 1 else ids
  return jnp.put_along_axis(whole, jnp.broadcast_to(each, q.shape), q, axis=-1, inplace=False)
