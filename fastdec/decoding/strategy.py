"""Decoding strategies, mostly a drafter and a rule. A sweep over array leaves compiles once."""

import itertools
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
from jaxtyping import Array, Bool, Int

from fastdec.decoding import law, loop
from fastdec.decoding.protocol import Decoded, Drafter, Prompt, Rule
from fastdec.decoding.settings import check_rows
from fastdec.errors import UserError
from fastdec.models.api import Model
from fastdec.struct import Bound

T = TypeVar('T')


@runtime_checkable
class Strategy(Protocol):
  """A frozen pytree of functions on a state, which is another pytree; all run inside jit.

  Decoding is `init`, then `step` until `done` everywhere, then `result`. Rows are independent: some
  may leave (`take`), and others take their places, without a change to the rest. So every array of
  a state has its rows first, and several entries of a row (beams) lie together.

  One more function is optional: `emitted(state)`, the tokens int32[b] of each row so far. Then
  `Prompt.room` may be less than max_len, and the state grows (`rooms`).
  """

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    """Raises UserError if the strategy cannot decode this prompt by this model.

    It is called outside jit, where lengths are known, before anything is compiled. `init` may raise
    too.
    """
    ...

  def most_tokens(self, source: int, max_len: int) -> int:
    """Bounds the tokens that a row can emit, by the length of its source or prompt; outside jit."""
    ...

  def init(self, target: Bound, prompt: Prompt, max_len: int, keys: Array | None) -> Any:
    """Runs the prompt, with room for max_len tokens a row, `prompt.limit` of which it may emit."""
    ...

  def step(self, target: Bound, state: Any) -> Any:
    """Makes one call of the target; rows that are done stay as they are."""
    ...

  def done(self, state: Any) -> Bool[Array, ' b']:
    """True for rows that have met their end or max_len."""
    ...

  def take(self, state: Any, rows: Int[Array, ' r']) -> Any:
    """Returns the state of these rows, in this order."""
    ...

  def result(self, state: Any) -> Decoded:
    """Returns the generated tokens and counts."""
    ...


Asked = Sequence[int] | None  # sizes that a user asks for; None: those of the strategy
DRAFTED = (4, 8, 2, 6, 3, 1)  # tokens in a row, by a drafter that may write any number
TREES = (32, 8, 16)  # nodes, the root included


class LoopStrategy:
  """A strategy that is a drafter and a rule, run by the one loop.

  A subclass defines both. Every step reads them while the loop is traced, so they only assemble
  existing arrays. Compute arrays when the strategy is made.
  """

  rule: Any  # chosen by users: a rule, or a setting from which `effective_rule` makes one
  part = ''  # the field that takes (module, params), 'heads' or 'draft'; '': there is none

  def sizes(self, drafted: Asked = None, nodes: Asked = None) -> Sequence[Any]:
    """Returns this strategy at the sizes worth timing, the likeliest first.

    Args:
      drafted: tokens drafted in a row (None: those that suit the drafter).
      nodes: nodes of trees, the root included (None: those that suit the drafter).
    """
    return [self]

  @property
  def drafter(self) -> Drafter:
    """The drafter."""
    raise NotImplementedError

  @property
  def effective_rule(self) -> Rule:
    """The rule for the loop: `rule`, unless other settings change it."""
    return self.rule

  @property
  def most_accepted(self) -> int:
    """Most tokens below the root that one call can accept: a chain's length, or a tree's depth."""
    return self.drafter.nodes - 1

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    return

  def most_tokens(self, source: int, max_len: int) -> int:
    return max_len

  def init(
    self, target: Bound, prompt: Prompt, max_len: int, keys: Array | None
  ) -> loop.DecodeState:
    return loop.init(target, self.drafter, self.effective_rule, prompt, max_len, keys)

  def step(self, target: Bound, state: loop.DecodeState) -> loop.DecodeState:
    return loop.step(target, self.drafter, self.effective_rule, state)

  def done(self, state: loop.DecodeState) -> Bool[Array, ' b']:
    return state.done

  def emitted(self, state: loop.DecodeState) -> Int[Array, ' b']:
    return state.length

  def take(self, state: loop.DecodeState, rows: Int[Array, ' r']) -> loop.DecodeState:
    return jax.tree.map(lambda x: x[rows], state)

  def result(self, state: loop.DecodeState) -> Decoded:
    counts = (state.block_sizes, state.calls, state.draft_calls)
    notes = law.noted(state.laws)
    return Decoded(state.tokens, state.length, *counts, state.finite, **notes)


BY_ROW = ('temperature', 'top_k', 'top_p', 'min_p')  # settings that may differ by row


def check_settings(strategy: Any, rows: int) -> None:
  """Raises UserError for a strategy with settings of each row, of another number of rows."""
  for part in (strategy, getattr(strategy, '__dict__', {}).get('rule')):
    for name in BY_ROW:
      check_rows(name, getattr(part, name, None), rows)


def of_rows(strategy: T, rows: Any) -> T:
  """Returns the strategy with the settings of these rows only, where each row has its own."""

  def taken(path: Any, x: Any) -> Any:
    is_own = getattr(path[-1], 'name', None) in BY_ROW and getattr(x, 'ndim', 0) == 1
    return x[rows] if is_own else x

  return jax.tree.map_with_path(taken, strategy)


def lengths(asked: Asked, most: int, usual: Sequence[int] = DRAFTED) -> list[int]:
  """Returns sizes from 1 to `most`: those asked for, else the largest and the usual ones."""
  tried = dict.fromkeys([most, *usual] if asked is None else asked)
  return [size for size in tried if 1 <= size <= most]


def in_turn(*families: Sequence[T]) -> list[T]:
  """Returns the first of each family, then the second of each, and so on."""
  turns = itertools.zip_longest(*families)
  return [one for turn in turns for one in turn if one is not None]


def nodes_of(strategy: Any) -> int:
  """Returns the tokens of each row (or beam) in a call: the drafter's `nodes`, or `nodes`, or 1."""
  return (
    strategy.drafter.nodes if isinstance(strategy, LoopStrategy) else getattr(strategy, 'nodes', 1)
  )


def check_strategy(strategy: Any) -> None:
  """Raises UserError unless `strategy` is a strategy."""
  if isinstance(strategy, LoopStrategy):  # a protocol takes a tenth of a millisecond to ask
    return
  if isinstance(strategy, type) or not isinstance(strategy, Strategy):
    raise UserError(
      f'strategy={strategy!r} is no strategy: give fd.Greedy(), fd.Sample(), fd.Beam() or another'
    )


def check_streams(strategy: Any) -> None:
  """Raises UserError unless a strategy emits its tokens in order, and keeps them."""
  check_strategy(strategy)
  if not isinstance(strategy, LoopStrategy):
    name = type(strategy).__name__
    raise UserError(
      f'{name} knows its tokens at the end alone: give it to fd.decode, or stream another strategy'
    )
