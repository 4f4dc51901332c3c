"""How to decode: most strategies are a drafter and a rule. Frozen pytrees: a sweep over array
leaves compiles once."""

from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Bool, Int

from fastdec.decoding import loop
from fastdec.decoding.protocol import Decoded, Drafter, Prompt, Rule
from fastdec.errors import UserError
from fastdec.models.api import Model
from fastdec.struct import Bound


@runtime_checkable
class Strategy(Protocol):
  """What `decode` asks: a frozen pytree of functions on a state, which is another pytree; all run
  inside jit.

  Decoding is `init`, then `step` until `done` everywhere, then `result`. Rows are independent, so
  that some may leave (`take`) and others come in their places without changing what the rest
  become: every array of a state has its rows first, and where a row has several entries (beams),
  they lie together.
  """

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    """Raises UserError where this cannot decode that.

    Called outside jit, so that lengths are known, and before anything is compiled. `init` may raise
    too.
    """
    ...

  def most_tokens(self, source: int, max_len: int) -> int:
    """Upper bound on the tokens that a row can emit, given the length of its source, or of its
    prompt.

    Called outside jit.
    """
    ...

  def init(self, target: Bound, prompt: Prompt, max_len: int, keys: Array | None) -> Any:
    """Runs the prompt, once. There is room for max_len tokens a row, of which `prompt.limit` may be
    emitted."""
    ...

  def step(self, target: Bound, state: Any) -> Any:
    """One call of the target; rows that are done stay as they are."""
    ...

  def done(self, state: Any) -> Bool[Array, ' b']:
    """Which rows have met their end or max_len."""
    ...

  def take(self, state: Any, rows: Int[Array, ' r']) -> Any:
    """The state of these rows, in this order."""
    ...

  def result(self, state: Any) -> Decoded:
    """What has been generated."""
    ...


class LoopStrategy:
  """A strategy that is a drafter and a rule, run by the one loop.

  A subclass says which they are. Both are asked for at every step, while the loop is traced: so
  they only put together what is there. Work on arrays belongs where the strategy is made.
  """

  rule: Any  # what users choose: a rule, or what `effective_rule` makes one of

  @property
  def drafter(self) -> Drafter:
    """What guesses."""
    raise NotImplementedError

  @property
  def effective_rule(self) -> Rule:
    """The rule that the loop is given: `rule`, unless other settings have a part in it."""
    return self.rule

  @property
  def most_accepted(self) -> int:
    """Tokens below the root that one call can accept: all of a chain, or as many as a tree is
    deep."""
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

  def take(self, state: loop.DecodeState, rows: Int[Array, ' r']) -> loop.DecodeState:
    return jax.tree.map(lambda x: x[rows], state)

  def result(self, state: loop.DecodeState) -> Decoded:
    return Decoded(
      state.tokens, state.length, state.block_sizes, state.calls, state.draft_calls, state.finite
    )


def nodes_of(strategy: Any) -> int:
  """The tokens of each row, or beam, that a step calls the target on: the drafter's, or as `nodes`
  says; else 1."""
  return (
    strategy.drafter.nodes if isinstance(strategy, LoopStrategy) else getattr(strategy, 'nodes', 1)
  )


def check_strategy(strategy: Any) -> None:
  """Raises UserError where what was given is no strategy."""
  if isinstance(strategy, LoopStrategy):  # a protocol takes a tenth of a millisecond to ask
    return
  if isinstance(strategy, type) or not isinstance(strategy, Strategy):
    raise UserError(
      f'strategy={strategy!r} is no strategy: give fd.Greedy(), fd.Sample(), fd.Beam() or another'
    )


def check_streams(strategy: Any) -> None:
  """Raises UserError where a strategy does not write its tokens one after the other, for good."""
  check_strategy(strategy)
  if not isinstance(strategy, LoopStrategy):
    name = type(strategy).__name__
    raise UserError(
      f'{name} knows its tokens at the end alone: give it to fd.decode, or stream another strategy'
    )
