"""Grows trees for one's own heads from the ranks of their guesses (Cai et al. 2024, 2.3.3).

The paper multiplies the accuracies of single heads over all tokens. Here accepted paths are
counted instead: heads err in clusters, and calls often begin at hard tokens, so averages over all
tokens promise more than decoding achieves. The ranks of all heads are kept token by token, along
texts that the model has written. They say which path of a tree a call accepts at a token, and where
the next call begins.
"""

import dataclasses
import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fastdec.decoding.inputs import make_prompt
from fastdec.decoding.methods.heads import head_logits
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.score import POSITIONS, read_targets
from fastdec.heads.words import in_target_words
from fastdec.struct import Bound

NOTHING = -1  # rank of a token after the end
NEVER = 2**30  # rank of a token that a head cannot guess, so no tree can contain it
TURNS = 4  # trees that are grown, each for the calls of the one before
Ranks = Int[np.ndarray, '_ h']  # of a text: a row for each token but the last, a column a head


@dataclasses.dataclass(frozen=True)
class Tree:
  """Paths of ranks, the best first: the first n - 1 and the root are a good tree of n nodes.

  choices ((0,), (0, 0), (1,), ...)      rates (0.61, 0.34, 0.12, ...)
  """

  choices: tuple[tuple[int, ...], ...]
  rates: tuple[float, ...]  # share of calls on the whole tree that accept each path; falling

  def cut(self, nodes: int) -> 'Tree':
    """Cuts the tree to at most `nodes` nodes, the root included."""
    return Tree(self.choices[: nodes - 1], self.rates[: nodes - 1])


def rank_guesses(
  target: tuple[Any, Any],
  heads: tuple[Any, Any],
  inputs: Any,
  texts: Decoded,
  prompt_lengths: Any = None,
) -> list[Ranks]:
  """Returns the ranks that the heads gave to the tokens of each text, one array for each text.

  An array has a row for each token but the last, for a call whose root is that token: head i (from
  0) guesses the token i + 1 places later. Rank 0 is the head's first choice. `NOTHING` means that
  the text has ended before that place, `NEVER` that the head cannot draft the token.

  Args:
    target, heads: (module, params).
    inputs, prompt_lengths: as in `decode`.
    texts: the target's output; greedy output shows what exact acceptance would take.
  """
  prompt = make_prompt(target[0], inputs, prompt_lengths, None)
  ranks = np.asarray(_ranks(Bound(*target), Bound(*heads), prompt, jnp.asarray(texts.tokens)))
  lengths = np.asarray(texts.lengths)
  place = np.arange(ranks.shape[1])[:, None]
  known = place + 1 + np.arange(ranks.shape[2]) < lengths[:, None, None]
  rows = np.where(known, ranks, NOTHING)
  return [row[: max(int(length) - 1, 0)] for row, length in zip(rows, lengths, strict=True)]


@jax.jit
def _ranks(
  target: Bound, heads: Bound, prompt: Prompt, texts: Int[Array, 'b t']
) -> Int[Array, 'b t h']:
  t, h = texts.shape[1], heads.module.depth
  hidden = read_targets(target.module, target.params, prompt, texts)
  after = jnp.arange(t)[:, None] + 1 + jnp.arange(h)[None]
  wanted = texts[:, after.clip(0, t - 1)]  # b t h

  def ranks_at(place: tuple[Array, Array, Array]) -> Int[Array, 'b h']:
    hidden_bd, root_b, wanted_bh = place
    logits = head_logits(heads, target, hidden_bd, root_b)
    # A guess is accepted only after correct ones, so each head follows the tokens of the text.
    if heads.module.markov:
      before_bh = jnp.concatenate([root_b[:, None], wanted_bh[:, :-1]], axis=1)
      logits += heads.module.bias(heads.params, before_bh).astype(logits.dtype)
    logits = in_target_words(heads.params, logits, target.module.vocab_size)
    index = jnp.arange(logits.shape[-1], dtype=wanted_bh.dtype)[None, None]
    own = jnp.take_along_axis(logits, wanted_bh[..., None], axis=-1)
    is_before = (logits > own) | ((logits == own) & (index < wanted_bh[..., None]))  # as top_k
    return jnp.where(own[..., 0] == -jnp.inf, NEVER, is_before.sum(-1))

  places = (hidden.swapaxes(0, 1), texts.T, wanted.swapaxes(0, 1))
  return jax.lax.map(ranks_at, places, batch_size=min(t, POSITIONS)).swapaxes(0, 1)


def grow(texts: Sequence[Ranks], nodes: int) -> Tree:
  """Grows the best tree of `nodes` nodes, or a smaller one if no other guess was ever right.

  For fixed calls it is best to take the most frequent path next, again and again, because a path is
  right at most as often as its beginning. But the places where calls begin depend on the tree. So
  trees are grown a few times, each for the calls of the one before, and the best is kept.

  Args:
    texts: from `rank_guesses`.
    nodes: at least 1, the root included.
  """
  ranks = np.concatenate(texts)
  # At first, assume that a call begins at every token.
  begins, best, rows, fewest = np.ones(len(ranks), bool), (), ranks, math.inf
  for _ in range(TURNS):
    choices = _find_most_frequent(ranks[begins], nodes)
    begins = mark_calls(texts, choices)
    if begins.sum() < fewest:
      best, rows, fewest = choices, ranks[begins], begins.sum()
  rates = {path: float((rows[:, : len(path)] == path).all(1).mean()) for path in best}
  # If rates are equal, the shorter path comes first, so that each path follows its beginning.
  order = sorted(best, key=lambda path: (-rates[path], len(path), path))
  return Tree(tuple(order), tuple(rates[path] for path in order))


def tokens_per_call(texts: Sequence[Ranks], tree: Tree) -> float:
  """Returns tokens per call, without the first token, if the tree decodes these texts exactly."""
  calls = mark_calls(texts, tree.choices)
  return len(calls) / calls.sum()


def mark_calls(
  texts: Sequence[Ranks], choices: Sequence[tuple[int, ...]]
) -> Bool[np.ndarray, ' n']:
  """Marks the tokens at which calls begin, if the tree of these paths decodes these texts.

  It has an entry for each token but the last, text by text.
  """
  known = set(choices)
  marks = []
  for ranks in texts:
    begins, place = np.zeros(len(ranks), bool), 0
    while place < len(ranks):
      begins[place] = True
      # The call accepts the longest path of the tree that the text takes, and writes a bonus token.
      path: tuple[int, ...] = ()
      for rank in ranks[place].tolist():
        if (*path, rank) not in known:
          break
        path = (*path, rank)
      place += len(path) + 1
    marks.append(begins)
  return np.concatenate(marks)


def choose_nodes(tokens: Mapping[int, float], milliseconds: Mapping[int, float]) -> int:
  """Returns the number of nodes that writes the most tokens a second.

  Args:
    tokens: tokens per call, by number of nodes.
    milliseconds: time of a call, by number of nodes.
  """
  return max(milliseconds, key=lambda n: tokens[n] / milliseconds[n])


def accuracy(texts: Sequence[Ranks], top: int) -> tuple[float, ...]:
  """Computes each head's share of tokens among its first `top` choices (0..1); nan without any."""
  ranks = np.concatenate(texts)
  known = ranks != NOTHING
  with np.errstate(invalid='ignore'):
    return tuple(((known & (ranks < top)).sum(0) / known.sum(0)).tolist())


def _find_most_frequent(ranks: Int[np.ndarray, 'n h'], nodes: int) -> tuple[tuple[int, ...], ...]:
  """Returns the `nodes` - 1 paths that are right most often, each after the path it extends."""
  paths: list[tuple[int, ...]] = []
  # a heap of (-count, depth, path, rows where it is right)
  waiting: list[tuple[int, int, tuple[int, ...], Any]] = []

  def add_children(path: tuple[int, ...], where: Int[np.ndarray, ' m']) -> None:
    if len(path) == ranks.shape[1]:
      return
    next_ranks = ranks[where, len(path)]
    for rank in np.unique(next_ranks[(next_ranks != NOTHING) & (next_ranks != NEVER)]):
      right = where[next_ranks == rank]
      heapq.heappush(waiting, (-len(right), len(path) + 1, (*path, int(rank)), right))

  add_children((), np.arange(len(ranks)))
  while waiting and len(paths) < nodes - 1:
    _, _, path, where = heapq.heappop(waiting)
    paths.append(path)
    add_children(path, where)
  return tuple(paths)
