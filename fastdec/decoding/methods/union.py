"""Two drafters as one: the guesses of both stand in one tree, which one call of the target scores.

A path that both guess stands there once. The second's node is the first's if the paths to them are
the same tokens, and what the second guesses behind it follows there. The node that this leaves over
keeps its slot, and is not acceptable: the number of nodes is static.

    first    root - the - cat - sat            tree   root - the - cat - sat
    second   root - the - dog                                  `-- dog          (the)
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Step
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.sampling import Sampling, check_sampling
from fastdec.decoding.strategy import LoopStrategy, check_strategy
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.models.api import Model
from fastdec.models.taps import Taps
from fastdec.struct import Bound


@struct.pytree
class UnionDrafter:
  """Drafter of the guesses of two drafters. Its state is the states of both."""

  parts: tuple[Any, Any]

  @property
  def nodes(self) -> int:
    return self.parts[0].nodes + self.parts[1].nodes - 1

  @property
  def taps(self) -> Taps:
    return tuple(dict.fromkeys(tap for one in self.parts for tap in getattr(one, 'taps', ())))

  def init(self, target: Bound, prefill: Prefill) -> list[Any]:
    return [one.init(target, self._seen_by(one, prefill)) for one in self.parts]

  def propose(
    self, target: Bound, state: list[Any], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, list[Any]]:
    parts = zip(self.parts, state, strict=True)
    (first, one), (second, other) = [part.propose(target, own, root, None) for part, own in parts]
    return merge_drafts(first, second), [one, other]

  def observe(self, target: Bound, state: list[Any], step: Step) -> list[Any]:
    parts = zip(self.parts, state, strict=True)
    return [one.observe(target, own, self._seen_by(one, step)) for one, own in parts]

  def _seen_by(self, one: Any, seen: Any) -> Any:
    """Returns a `Prefill` or `Step` with the taps that one of the drafters reads."""
    taps = tuple(seen.taps[self.taps.index(tap)] for tap in getattr(one, 'taps', ()))
    return dataclasses.replace(seen, taps=taps)


def merge_drafts(first: Draft, second: Draft) -> Draft:
  """Returns the guesses of two drafts below the same root as one draft."""
  rows = []
  for one in (first, second):
    tree, b = one.topology, len(one.tokens)
    arrays = ((tree.parents, 1), (tree.depths, 1), (tree.acceptable, 1), (tree.mask, 2))
    rows.append((one.tokens, *(jnp.broadcast_to(x, (b, *x.shape[-axes:])) for x, axes in arrays)))
  tokens, parents, acceptable = jax.vmap(_merge_row)(*rows)
  depth = max(first.topology.max_depth, second.topology.max_depth)
  tree = dataclasses.replace(Topology.from_parents(parents, None, acceptable), max_depth=depth)
  return Draft(tokens, tree, calls=first.calls + second.calls)


def _merge_row(first: tuple[Array, ...], second: tuple[Array, ...]) -> tuple[Array, ...]:
  """Merges one row's trees: tokens, parents, depths, acceptable [n] or [m], and masks."""
  tokens_n, parents_n, depths_n, ok_n, mask_nn = first
  tokens_m, parents_m, depths_m, ok_m, mask_mm = second

  # Nodes are the same if as many of their ancestors, themselves included, agree as there are.
  agree_mn = (tokens_m[:, None] == tokens_n[None]) & (depths_m[:, None] == depths_n[None])
  agree_mn &= ok_m[:, None] & ok_n[None]
  above_mm, agreeing_mn, below_nn = (x.astype(jnp.float32) for x in (mask_mm, agree_mn, mask_nn.T))
  number_mn = (above_mm @ agreeing_mn @ below_nn).astype(jnp.int32)
  same_mn = agree_mn & (number_mn == depths_m[:, None] + 1)

  # The second's other nodes stand behind the first's. The roots are the same.
  is_same_m = same_mn.any(-1)
  behind_m = len(tokens_n) - 1 + jnp.arange(len(tokens_m), dtype=jnp.int32)
  place_m = jnp.where(is_same_m, same_mn.argmax(-1).astype(jnp.int32), behind_m)
  pairs = ((tokens_n, tokens_m), (parents_n, place_m[parents_m]), (ok_n, ok_m & ~is_same_m))
  return tuple(jnp.concatenate([x, y[1:]]) for x, y in pairs)


@struct.pytree
class Union(LoopStrategy):
  """Decoding with the guesses of two strategies in one tree, such as prompt lookup and EAGLE.

  It is lossless: without `sampling` it is greedy decoding, with it the law of `Sample`. A call
  accepts at least as many tokens as either draft alone would have there, and costs the nodes and
  the draft calls of both.

  Args:
    first, second: `PromptLookup`, `Forced`, `Eagle`, `BlockDraft`, `Blockwise` or `Medusa`, without
      a rule or a sampling of its own.
    sampling: how tokens are drawn, for which `decode` needs a key; None: greedy decoding.

  Raises:
    UserError: a strategy of another kind, or one that has a rule or draws.
  """

  first: Any
  second: Any
  sampling: Sampling | None = None

  def __post_init__(self) -> None:
    for one in (self.first, self.second):
      check_strategy(one)
      if not getattr(one, 'joins', False) or type(one.effective_rule) is not Exact:
        raise UserError(
          f'this {type(one).__name__} cannot be a part of Union: give PromptLookup, Forced, Eagle,'
          ' BlockDraft, Blockwise or Medusa without a rule or sampling, and sampling to Union'
        )
    struct.assign(self, sampling=check_sampling(self.sampling))

  @property
  def drafter(self) -> Drafter:
    return UnionDrafter((self.first.drafter, self.second.drafter))

  @property
  def most_accepted(self) -> int:
    return max(self.first.most_accepted, self.second.most_accepted)

  @property
  def part(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
    return self.first.part or self.second.part

  def __getattr__(self, name: str) -> Any:
    """Returns `heads` or `draft` of the part that has them."""
    if name not in ('heads', 'draft'):
      raise AttributeError(name)
    return getattr(self.first if self.first.part else self.second, name)

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    for one in (self.first, self.second):
      one.check(model, prompt, max_len)
