"""Trees for one's own heads: how often each guess is right, and which guesses a tree should hold (Cai et al. 2024,
section 2.3.3).

The paper multiplies the accuracies of single heads, as if they were independent. Here the ranks of all heads are kept
together, position by position: how often a whole path of ranks is right is counted, not estimated. A path is right at
most as often as what it begins with; so taking the most frequent path next, again and again, yields for every number of
nodes the tree with the most tokens a call.
"""

import dataclasses
import heapq
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fastdec.decoding.inputs import prompt_of
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.score import POSITIONS, forced
from fastdec.models.api import suppress, vocabulary_projection
from fastdec.struct import Bound

NOTHING = -1  # the rank of a token behind the end


@dataclasses.dataclass(frozen=True)
class Tree:
  """Paths of ranks in the order in which they pay: the first n - 1, with the root, are the best tree of n nodes.

    choices ((0,), (0, 0), (1,), ...)      rates (0.61, 0.34, 0.12, ...)
  """

  choices: tuple[tuple[int, ...], ...]
  rates: tuple[float, ...]  # how often each path was right: falling

  def cut(self, nodes: int) -> 'Tree':
    """The best tree of so many nodes at most, the root included."""
    return Tree(self.choices[: nodes - 1], self.rates[: nodes - 1])

  @property
  def tokens_per_call(self) -> float:
    """Expected: the accepted guesses and the token that a call yields anyway."""
    return 1.0 + sum(self.rates)


def head_ranks(
  target: tuple[Any, Any], heads: tuple[Any, Any], inputs: Any, texts: Decoded, prompt_lengths: Any = None
) -> Int[np.ndarray, 'n h']:
  """Which rank each head gave to what came, at every token of the texts but their last.

  Row by row, a token is the root of a call: head i (from 0) guesses the token i + 1 after it. 0 is the head's first
  choice; `NOTHING` where the text ends before.

  Args:
    target, heads: (module, params).
    inputs, prompt_lengths: as in `decode`.
    texts: what the target wrote: greedily, to know what exact acceptance would take.
  """
  prompt = prompt_of(target[0], np.asarray(inputs), prompt_lengths, None)
  ranks = np.asarray(_ranks(Bound(*target), Bound(*heads), prompt, jnp.asarray(texts.tokens)))
  lengths = np.asarray(texts.lengths)[:, None, None]
  place = np.arange(ranks.shape[1])[:, None]
  known = place + 1 + np.arange(ranks.shape[2]) < lengths
  return np.where(known, ranks, NOTHING)[(place < lengths - 1)[..., 0]]


@jax.jit
def _ranks(target: Bound, heads: Bound, prompt: Prompt, texts: Int[Array, 'b t']) -> Int[Array, 'b t h']:
  t, h = texts.shape[1], heads.module.depth
  project = vocabulary_projection(target.module)
  hidden = forced(target.module, target.params, prompt, texts)
  after = jnp.arange(t)[:, None] + 1 + jnp.arange(h)
  wanted = texts[:, after.clip(0, t - 1)]  # b t h

  def at(one: tuple[Array, Array]) -> Int[Array, 'b h']:
    hidden_bd, wanted_bh = one
    logits = heads.module.logits(heads.params, hidden_bd, lambda x: project(target.params, x))
    logits = suppress(logits, target.module.suppressed_ids)
    own = jnp.take_along_axis(logits, wanted_bh[..., None], axis=-1)
    is_before = (logits > own) | ((logits == own) & (jnp.arange(logits.shape[-1]) < wanted_bh[..., None]))  # as top_k
    return is_before.sum(-1)

  found = jax.lax.map(at, (hidden.swapaxes(0, 1), wanted.swapaxes(0, 1)), batch_size=min(t, POSITIONS))
  return found.swapaxes(0, 1)


def grow(ranks: Int[np.ndarray, 'n h'], nodes: int) -> Tree:
  """The best tree of so many nodes, the root included; smaller where nothing else was ever right.

  Args:
    ranks: of `head_ranks`.
    nodes: at least 1.
  """
  total, found = len(ranks), []
  waiting: list[tuple[int, int, tuple[int, ...], Any]] = []  # -count, depth, path, the positions where it is right

  def add_children(path: tuple[int, ...], where: Int[np.ndarray, ' m']) -> None:
    if len(path) == ranks.shape[1]:
      return
    next_ranks = ranks[where, len(path)]
    for rank in np.unique(next_ranks[next_ranks != NOTHING]):
      right = where[next_ranks == rank]
      heapq.heappush(waiting, (-len(right), len(path) + 1, (*path, int(rank)), right))

  add_children((), np.arange(total))
  while waiting and len(found) < nodes - 1:
    count, _, path, where = heapq.heappop(waiting)
    found.append((path, -count / total))
    add_children(path, where)
  return Tree(tuple(path for path, _ in found), tuple(rate for _, rate in found))


def best_nodes(tree: Tree, milliseconds: Mapping[int, float]) -> int:
  """How many nodes of the tree write the most tokens a second, the root included.

  Args:
    tree: of as many nodes as are considered at most.
    milliseconds: a call's, by its nodes; only these numbers of nodes are considered.
  """
  return max(milliseconds, key=lambda n: tree.cut(n).tokens_per_call / milliseconds[n])


def accuracy(ranks: Int[np.ndarray, 'n h'], top: int) -> tuple[float, ...]:
  """How often each head had the token that came among its first `top` choices (0..1); nan without any."""
  known = ranks != NOTHING
  with np.errstate(invalid='ignore'):
    return tuple(((known & (ranks < top)).sum(0) / known.sum(0)).tolist())
