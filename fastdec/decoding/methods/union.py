"""Two drafters as one: the guesses of both are in one tree, which one call of the target scores.

A path that both guess is in the tree once. If the paths to two nodes are the same tokens, the
children of the second drafter's node become children of the first one's. The number of nodes is
static, so the second node keeps its slot, but it is not acceptable.

    first    root - the - cat - sat            tree   root - the - cat - sat
    second   root - the - dog                                  `-- dog          (the)
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Step
from fastdec.decoding.sampling import Sampling
from fastdec.decoding.strategy import Combined
from fastdec.decoding.topology import Topology
from fastdec.models.taps import Taps
from fastdec.struct import Bound


@struct.pytree
class UnionDrafter:
  """Drafter of the guesses of two drafters. Its state is a list of both states."""

  parts: tuple[Any, Any]

  @property
  def nodes(self) -> int:
    return self.parts[0].nodes + self.parts[1].nodes - 1

  @property
  def taps(self) -> Taps:
    taps: dict[int, None] = {}  # each once, in order
    for part in self.parts:
      taps |= dict.fromkeys(getattr(part, 'taps', ()))
    return tuple(taps)

  def init(self, target: Bound, prefill: Prefill) -> list[Any]:
    return [part.init(target, self._select_taps(part, prefill)) for part in self.parts]

  def propose(
    self, target: Bound, state: list[Any], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, list[Any]]:
    first, state_1 = self.parts[0].propose(target, state[0], root, None)
    second, state_2 = self.parts[1].propose(target, state[1], root, None)
    return merge_drafts(first, second), [state_1, state_2]

  def observe(self, target: Bound, state: list[Any], step: Step) -> list[Any]:
    states = []
    for part, own in zip(self.parts, state, strict=True):
      states.append(part.observe(target, own, self._select_taps(part, step)))
    return states

  def _select_taps(self, part: Any, results: Any) -> Any:
    """Returns a `Prefill` or `Step` with only the taps that one of the drafters reads."""
    taps = tuple(results.taps[self.taps.index(tap)] for tap in getattr(part, 'taps', ()))
    return dataclasses.replace(results, taps=taps)


def merge_drafts(first: Draft, second: Draft) -> Draft:
  """Returns the guesses of two drafts below the same root as one draft."""
  rows = []
  for draft in (first, second):
    tree, (b, n) = draft.topology, draft.tokens.shape
    parents = jnp.broadcast_to(tree.parents, (b, n))
    depths = jnp.broadcast_to(tree.depths, (b, n))
    acceptable = jnp.broadcast_to(tree.acceptable, (b, n))
    mask = jnp.broadcast_to(tree.mask, (b, n, n))
    rows.append((draft.tokens, parents, depths, acceptable, mask))
  tokens, parents, acceptable = jax.vmap(_merge_row)(*rows)
  depth = max(first.topology.max_depth, second.topology.max_depth)
  tree = dataclasses.replace(Topology.from_parents(parents, None, acceptable), max_depth=depth)
  return Draft(tokens, tree, calls=first.calls + second.calls)


def _merge_row(first: tuple[Array, ...], second: tuple[Array, ...]) -> tuple[Array, ...]:
  """Merges one row's trees: tokens, parents, depths, acceptable [n] or [m], and masks."""
  tokens_n, parents_n, depths_n, ok_n, mask_nn = first
  tokens_m, parents_m, depths_m, ok_m, mask_mm = second

  # Two nodes are the same if all their ancestors, themselves included, agree: a count of those that
  # agree is their depth + 1.
  agree_mn = (tokens_m[:, None] == tokens_n[None]) & (depths_m[:, None] == depths_n[None])
  agree_mn &= ok_m[:, None] & ok_n[None]
  above_mm, agreeing_mn = mask_mm.astype(jnp.float32), agree_mn.astype(jnp.float32)
  number_mn = (above_mm @ agreeing_mn @ mask_nn.T.astype(jnp.float32)).astype(jnp.int32)
  same_mn = agree_mn & (number_mn == depths_m[:, None] + 1)

  # The second tree's nodes come after the first tree's, except for the root, which is the same.
  is_same_m = same_mn.any(-1)
  own_place_m = len(tokens_n) - 1 + jnp.arange(len(tokens_m), dtype=jnp.int32)
  place_m = jnp.where(is_same_m, same_mn.argmax(-1).astype(jnp.int32), own_place_m)
  tokens = jnp.concatenate([tokens_n, tokens_m[1:]])
  parents = jnp.concatenate([parents_n, place_m[parents_m][1:]])
  return tokens, parents, jnp.concatenate([ok_n, (ok_m & ~is_same_m)[1:]])


@struct.pytree
class Union(Combined):
  """Decoding with the guesses of two strategies in one tree, such as prompt lookup and EAGLE.

  It is lossless: the output is that of greedy decoding or, with `sampling`, has the distribution of
  `Sample`. A call accepts at least as many tokens as it would with either draft, and costs the
  nodes and the draft calls of both.

  Args:
    first, second: `PromptLookup`, `Suffix`, `Forced`, `Eagle`, `BlockDraft`, `Blockwise` or
      `Medusa`, without a rule or a sampling of its own.
    sampling: how tokens are drawn, for which `decode` needs a key; None: greedy decoding.

  Raises:
    UserError: a strategy that is none of these, has a rule or draws.
  """

  first: Any
  second: Any
  sampling: Sampling | None = None

  parts = 'first', 'second'
  takes = 'PromptLookup, Suffix, Forced, Eagle, BlockDraft, Blockwise or Medusa'
  example = 'two drafters: write union(prompt_lookup(k=6), eagle(depth=5))'

  @property
  def drafter(self) -> Drafter:
    return UnionDrafter((self.first.drafter, self.second.drafter))
