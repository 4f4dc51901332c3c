"""Two drafters as one: the guesses of both stand in one tree, which one call of the target scores.

A path that both guess stands there once. The second's node is the first's if the paths to them are
the same tokens, and what the second guesses behind it follows there. The node that this leaves over
keeps its slot, and is not acceptable: the number of nodes is static.

    first    root - the - cat - sat            tree   root - the - cat - sat
    second   root - the - dog                                  `-- dog          (the)
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Step
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.sampling import Sampling, drawn_by
from fastdec.decoding.strategy import LoopStrategy, check_strategy
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.models.api import Model
from fastdec.models.taps import Taps
from fastdec.struct import Bound


@struct.pytree
class UnionDrafter:
  """Drafter of the guesses of two. Its state is the states of both."""

  first: Any
  second: Any

  @property
  def nodes(self) -> int:
    return self.first.nodes + self.second.nodes - 1

  @property
  def taps(self) -> Taps:
    return tuple(dict.fromkeys((*_taps(self.first), *_taps(self.second))))

  def init(self, target: Bound, prefill: Prefill) -> list[Any]:
    return [one.init(target, seen) for one, seen in self._seeing(prefill)]

  def propose(
    self, target: Bound, state: list[Any], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, list[Any]]:
    first, first_state = self.first.propose(target, state[0], root, None)
    second, second_state = self.second.propose(target, state[1], root, None)
    tokens, topology = merged(first, second)
    draft = Draft(tokens, topology, calls=first.calls + second.calls)
    return draft, [first_state, second_state]

  def observe(self, target: Bound, state: list[Any], step: Step) -> list[Any]:
    parts = zip(self._seeing(step), state, strict=True)
    return [one.observe(target, own, seen) for (one, seen), own in parts]

  def _seeing(self, seen: Any) -> list[tuple[Any, Any]]:
    """Returns each drafter, and a `Prefill` or `Step` with the taps that it reads."""
    at = {tap: states for tap, states in zip(self.taps, seen.taps, strict=True)}
    own = [tuple(at[tap] for tap in _taps(one)) for one in (self.first, self.second)]
    seeing = [dataclasses.replace(seen, taps=taps) for taps in own]
    return [(self.first, seeing[0]), (self.second, seeing[1])]


def _taps(drafter: Any) -> Taps:
  return getattr(drafter, 'taps', ())


def merged(first: Draft, second: Draft) -> tuple[Int[Array, 'b n'], Topology]:
  """Returns the tokens and the tree of two drafts below the same root."""
  n, m = first.topology.n, second.topology.n
  parents_bn, depths_bn, ok_bn, mask_bnn = _of_rows(first)
  parents_bm, depths_bm, ok_bm, mask_bmm = _of_rows(second)

  # Nodes are the same if as many of their ancestors, themselves included, agree as there are.
  agree_bmn = (
    (second.tokens[:, :, None] == first.tokens[:, None])
    & (depths_bm[:, :, None] == depths_bn[:, None])
    & (ok_bm[:, :, None] & ok_bn[:, None])
  )
  # products of floats are faster than those of integers
  masks = (x.astype(jnp.float32) for x in (mask_bmm, agree_bmn, mask_bnn))
  number_bmn = jnp.einsum('bij,bjk,blk->bil', *masks)
  same_bmn = agree_bmn & (number_bmn == 1.0 + depths_bm[:, :, None].astype(jnp.float32))
  is_same_bm = same_bmn.any(-1)

  # The second's nodes stand behind the first's, unless they are the same, as the roots are.
  behind = n - 1 + jnp.arange(m, dtype=jnp.int32)
  place_bm = jnp.where(is_same_bm, same_bmn.argmax(-1).astype(jnp.int32), behind)
  parents_bm = jnp.take_along_axis(place_bm, parents_bm.clip(0), axis=1)
  tokens, parents, acceptable = (
    jnp.concatenate([x, y[:, 1:]], axis=1)
    for x, y in (
      (first.tokens, second.tokens), (parents_bn, parents_bm), (ok_bn, ok_bm & ~is_same_bm)
    )
  )  # fmt: skip
  tree = Topology.from_parents(parents, acceptable=acceptable)
  depth = max(first.topology.max_depth, second.topology.max_depth)
  return tokens, dataclasses.replace(tree, max_depth=depth)


def _of_rows(draft: Draft) -> list[Array]:
  """Returns the tree of each row: parents, depths, acceptable [b, n], and mask [b, n, n]."""
  tree, b = draft.topology, len(draft.tokens)
  arrays = ((tree.parents, 1), (tree.depths, 1), (tree.acceptable, 1), (tree.mask, 2))
  return [jnp.broadcast_to(x, (b, *x.shape[-axes:])) for x, axes in arrays]


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
      if not getattr(one, 'joins', False):
        raise UserError(
          f'{type(one).__name__} cannot be a part of Union, as it remembers its own guesses or has'
          ' none: give PromptLookup, Forced, Eagle, BlockDraft, Blockwise or Medusa'
        )
      if type(one.effective_rule) is not Exact:
        raise UserError(
          f'{type(one).__name__} has a rule or sampling of its own: give sampling to Union alone'
        )
    struct.assign(self, sampling=drawn_by(self.sampling))

  @property
  def drafter(self) -> Drafter:
    return UnionDrafter(self.first.drafter, self.second.drafter)

  @property
  def most_accepted(self) -> int:
    return max(self.first.most_accepted, self.second.most_accepted)

  @property
  def part(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
    return self._drafting.part

  @property
  def heads(self) -> Any:
    return self._drafting.heads

  @property
  def draft(self) -> Any:
    return self._drafting.draft

  @property
  def _drafting(self) -> Any:
    """The part that drafts with heads or a network, if one does."""
    return self.first if self.first.part else self.second

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    for one in (self.first, self.second):
      one.check(model, prompt, max_len)
