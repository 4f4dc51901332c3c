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
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Step
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.sampling import Sampling, drawn_by
from fastdec.decoding.strategy import LoopStrategy, check_strategy
from fastdec.decoding.topology import Topology, with_rows
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

  def init(self, target: Bound, prefill: Prefill) -> tuple[Any, Any]:
    first, second = (self._seen_by(one, prefill) for one in (self.first, self.second))
    return self.first.init(target, first), self.second.init(target, second)

  def propose(
    self, target: Bound, state: tuple[Any, Any], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, tuple[Any, Any]]:
    first, first_state = self.first.propose(target, state[0], root, None)
    second, second_state = self.second.propose(target, state[1], root, None)
    tokens, topology = merged(first, second)
    draft = Draft(tokens, topology, calls=first.calls + second.calls)
    return draft, (first_state, second_state)

  def observe(self, target: Bound, state: tuple[Any, Any], step: Step) -> tuple[Any, Any]:
    first, second = (self._seen_by(one, step) for one in (self.first, self.second))
    return self.first.observe(target, state[0], first), self.second.observe(
      target, state[1], second
    )

  def _seen_by(self, one: Any, seen: Any) -> Any:
    """Returns a `Prefill` or `Step` with the taps that one of the drafters reads."""
    taps = tuple(seen.taps[self.taps.index(tap)] for tap in _taps(one))
    return dataclasses.replace(seen, taps=taps)


def _taps(drafter: Any) -> Taps:
  return getattr(drafter, 'taps', ())


def merged(first: Draft, second: Draft) -> tuple[Int[Array, 'b n'], Topology]:
  """Returns the tokens and the tree of two drafts below the same root."""
  n, m = first.topology.n, second.topology.n
  rows = len(first.tokens)
  depths_bn, depths_bm = (with_rows(one.topology.depths, 2) for one in (first, second))
  ok_bn, ok_bm = (with_rows(one.topology.acceptable, 2) for one in (first, second))

  # Nodes are the same if as many of their ancestors, themselves included, agree as there are.
  agree_bmn = (second.tokens[:, :, None] == first.tokens[:, None]) & (
    depths_bm[:, :, None] == depths_bn[:, None]
  )
  agree_bmn &= ok_bm[:, :, None] & ok_bn[:, None]
  above_bmm = _floats(with_rows(second.topology.mask, 3))
  above_bnn = _floats(with_rows(first.topology.mask, 3))
  number_bmn = above_bmm @ _floats(agree_bmn) @ above_bnn.swapaxes(1, 2)
  same_bmn = agree_bmn & (number_bmn == 1.0 + depths_bm[:, :, None].astype(jnp.float32))
  is_same_bm = same_bmn.any(-1)

  # Where the second's nodes are in the tree; its root is the first's.
  place_bm = jnp.where(
    is_same_bm, same_bmn.argmax(-1).astype(jnp.int32), n - 1 + jnp.arange(m, dtype=jnp.int32)
  )
  above_bm = jnp.broadcast_to(with_rows(second.topology.parents, 2), (rows, m))[:, 1:]
  behind_bm = jnp.take_along_axis(place_bm, above_bm, axis=1)
  above_bn = jnp.broadcast_to(with_rows(first.topology.parents, 2), (rows, n))
  acceptable = jnp.concatenate(
    [jnp.broadcast_to(ok_bn, (rows, n)), (ok_bm & ~is_same_bm)[:, 1:]], axis=1
  )
  tree = Topology.from_parents(
    jnp.concatenate([above_bn, behind_bm], axis=1), acceptable=acceptable
  )
  depth = max(first.topology.max_depth, second.topology.max_depth)
  tokens = jnp.concatenate([first.tokens, second.tokens[:, 1:]], axis=1)
  return tokens, dataclasses.replace(tree, max_depth=depth)


def _floats(mask: Bool[Array, '*b n m']) -> Float[Array, '*b n m']:
  return mask.astype(jnp.float32)  # products of floats are faster than those of integers


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
      name = type(one).__name__
      if not getattr(one, 'joins', False):
        raise UserError(
          f'{name} cannot be a part of Union, as it remembers its own guesses or makes none: give'
          ' PromptLookup, Forced, Eagle, BlockDraft, Blockwise or Medusa'
        )
      if type(one.effective_rule) is not Exact:
        raise UserError(
          f'Union judges the guesses of both: give sampling to Union, and neither rule nor sampling'
          f' to {name}'
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
