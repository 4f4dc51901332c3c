"""Decoding strategies; most are a drafter and a rule.

Settings that change no shape are array leaves, so a sweep over them compiles once.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
from jaxtyping import Array

from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.protocol import FINE, STUCK, Decoded, Drafter, Prompt, Rule
from fastdec.decoding.rules.matching import Drawn, Exact
from fastdec.decoding.sampling import SETTINGS, Sampling, check_sampling
from fastdec.errors import UserError
from fastdec.fields import list_known
from fastdec.models.api import Model
from fastdec.struct import Bound

T = TypeVar('T')


@runtime_checkable
class Strategy(Protocol):
  """A frozen pytree with functions that run inside jit and pass on a state, another pytree.

  Decoding is `init`, then `step` until all rows are done, then `result`. A state has `done`,
  bool[b], true for rows that have reached an end token or their limit, and `length`, int32[b], the
  tokens that each row has emitted. Rows are independent: some may leave, others may replace them,
  and the rest does not change. So every array of a state has the rows as its first axis, and the
  entries of one row (its beams) are next to each other. A state begins with fewer slots than
  max_len needs (`Prompt.slots`), and may get more at the end of its axes (`run.Run.grow`).

  Two more members are optional: `nodes`, the tokens of a row in one call (1 without it), and
  `rules_out`, the names of settings that rule out tokens.
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
    """Runs the prompt. A row may emit at most max_len tokens, or `prompt.limit` if it is given."""
    ...

  def step(self, target: Bound, state: Any) -> Any:
    """Makes one call of the target. Rows that are done do not change."""
    ...

  def result(self, state: Any) -> Decoded:
    """Returns the generated tokens and counts."""
    ...


Sizes = Sequence[int] | None  # that a user wants; None: those that the strategy suggests
DRAFTED = (4, 8, 2, 6, 3, 1)  # lengths of chains, for a drafter that can draft any number of tokens
TREES = (32, 8, 16)  # nodes of trees, the root included


class LoopStrategy:
  """A strategy that is a drafter and a rule, run by the one loop.

  A subclass defines the drafter, and the rule unless it is `Exact`. The loop makes both whenever it
  is traced, so they must only assemble existing arrays: compute arrays in `__post_init__`.

  Attributes:
    rule: the user's choice; the loop runs `effective_rule`.
    sampling: how tokens are drawn; None: the most likely token. A strategy that can draw has a
      field of this name, which its `__post_init__` passes through `sampling.check_sampling`. None
      and `Sampling` are different pytrees, so each has a compiled program of its own.
    part: the field that takes (module, params), 'heads' or 'draft'; '' if there is none.
    drafts_for: the kind of module for which this is the usual strategy, or None.
    drafts_by_model: true if `draft` is a whole model, with ids of its own.
    joins: true if the drafter observes only the accepted path of a call, no matter which drafter
      guessed it: then the strategy may be a part of `Union` or `Adaptive`.
  """

  rule: Any = Exact()
  sampling: Sampling | None = None
  part = ''
  drafts_for: type | None = None
  drafts_by_model = False
  joins = False

  @classmethod
  def usual(cls, part: tuple[Any, Any]) -> Any:
    """Makes this strategy for heads or a draft, with settings that suit most of them."""
    return cls(**{cls.part: part})

  def with_sampling(self, sampling: Sampling | None) -> Any:
    """Returns this strategy with this `sampling`; None: the most likely token.

    Raises:
      UserError: the strategy has no `sampling`, or a rule that cannot draw.
    """
    if 'sampling' not in {field.name for field in dataclasses.fields(self)}:  # pyright: ignore
      raise UserError(f'{type(self).__name__} does not sample: leave out temperature')
    return dataclasses.replace(self, sampling=sampling)  # pyright: ignore

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    """Returns this strategy in the sizes worth timing, the most promising first.

    Args:
      drafted: lengths of chains (None: those that suit the drafter).
      nodes: nodes of trees, the root included (None: those that suit the drafter).
    """
    return [self]

  @property
  def drafter(self) -> Drafter:
    """The drafter."""
    raise NotImplementedError

  @property
  def effective_rule(self) -> Rule:
    """The rule that the loop runs: `rule`, or with `sampling` one that draws tokens."""
    return self.rule if self.sampling is None else Drawn(self.sampling)

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

  def result(self, state: loop.DecodeState) -> Decoded:
    logprobs = {}
    for one in state.laws:
      logprobs |= getattr(one, 'result', {})
    return Decoded(
      state.tokens, state.length, state.block_sizes, state.calls, state.draft_calls,
      finite=state.fault == FINE, stuck=state.fault == STUCK, **logprobs,
    )  # fmt: skip


class Combined(LoopStrategy):
  """A strategy of other strategies' guesses. Its rule is `Exact` or, with `sampling`, draws.

  Attributes:
    parts: the fields that hold the others, in the order in which a text lists them.
    takes: the strategies that may be there, for messages.
    example: such a text.
  """

  parts: tuple[str, ...] = ()
  takes = ''
  example = ''

  def __post_init__(self) -> None:
    name = type(self).__name__
    for field in self.parts:
      one: Any = read_strategy(getattr(self, field))
      struct.assign(self, **{field: one})
      if not getattr(one, 'joins', False) or type(one.effective_rule) is not Exact:
        raise UserError(
          f'this {type(one).__name__} cannot be a part of {name}: give {self.takes} without a rule'
          f' or sampling, and sampling to {name}'
        )
    struct.assign(self, sampling=check_sampling(self.sampling))

  @property
  def strategies(self) -> list[Any]:
    return [getattr(self, field) for field in self.parts]

  @property
  def most_accepted(self) -> int:
    return max(one.most_accepted for one in self.strategies)

  @property
  def part(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
    return next((one.part for one in self.strategies if one.part), '')

  def __getattr__(self, name: str) -> Any:
    """Returns `heads` or `draft` of the first strategy that has them."""
    if name not in ('heads', 'draft'):
      raise AttributeError(name)
    return getattr(next((one for one in self.strategies if one.part), self.strategies[0]), name)

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    for one in self.strategies:
      one.check(model, prompt, max_len)


def select_rows(strategy: T, rows: Any) -> T:
  """Returns the strategy with the settings of these rows only, where each row has its own."""

  def select(leaf: Any) -> Any:
    return leaf.select_rows(rows) if isinstance(leaf, Sampling) else leaf

  return jax.tree.map(select, strategy, is_leaf=lambda leaf: isinstance(leaf, Sampling))


def with_settings(strategy: Any, settings: Mapping[str, Any]) -> Any:
  """Returns a strategy that draws by these settings instead of its own.

  Args:
    strategy: any; greedy decoding becomes `Sample`, and `Sample` at temperature 0 greedy decoding.
    settings: values by the names of `Sampling`: `temperature`, `top_k`, ...

  Raises:
    UserError: an unknown name, a strategy that cannot sample, or settings without a temperature.
  """
  for name in settings:
    if name not in SETTINGS:
      raise UserError(f'the setting {name!r} of sampling is unknown: {list_known(SETTINGS)}')
  if not settings:
    return strategy
  names = ' and '.join(settings)
  if not hasattr(strategy, 'with_sampling'):
    raise UserError(f'{type(strategy).__name__} takes no {names}: leave it out')
  sampling = dataclasses.replace(strategy.sampling or Sampling(0.0), **settings)
  if not sampling.is_greedy:
    return strategy.with_sampling(sampling)
  if set(settings) != {'temperature'}:
    verb = 'are' if len(settings) > 1 else 'is'
    raise UserError(f'{names} {verb} about sampling: give a temperature above 0 too')
  return strategy.with_sampling(None)


def choose_lengths(wanted: Sizes, most: int, usual: Sequence[int] = DRAFTED) -> list[int]:
  """Returns sizes from 1 to `most`, each once: the wanted ones, else `most` and the usual ones."""
  if wanted is None:
    wanted = [most, *usual]
  return [size for size in dict.fromkeys(wanted) if 1 <= size <= most]


def interleave(*families: Sequence[T]) -> list[T]:
  """Returns the first of each family, then the second of each, and so on."""
  mixed = []
  for turn in itertools.zip_longest(*families):
    mixed += [one for one in turn if one is not None]
  return mixed


def nodes_of(strategy: Any) -> int:
  """Returns the tokens of each row in a call: the drafter's `nodes`, or `nodes`, or 1."""
  if isinstance(strategy, LoopStrategy):
    return strategy.drafter.nodes
  return getattr(strategy, 'nodes', 1)


def read_strategy(strategy: Any) -> Strategy:
  """Returns a user's strategy, an object or words; raises UserError if it is none."""
  if isinstance(strategy, LoopStrategy):  # with a protocol, isinstance takes 0.1 ms
    return strategy
  if isinstance(strategy, str):
    from fastdec.decoding import description  # imports all strategies, which import this file

    return description.parse(strategy)
  if isinstance(strategy, type) or not isinstance(strategy, Strategy):
    raise UserError(
      f'strategy={strategy!r} is not a strategy: give fd.Greedy(), fd.Sample() or fd.Beam(), for'
      " example, or words such as 'prompt_lookup(k=4)'"
    )
  return strategy


def read_streaming(strategy: Any) -> LoopStrategy:
  """Returns a user's strategy, which must emit its tokens in order and never take one back."""
  strategy = read_strategy(strategy)
  if not isinstance(strategy, LoopStrategy):
    name = type(strategy).__name__
    raise UserError(
      f'{name} cannot stream, because its best output is known only at the end: use fd.decode, or'
      ' stream another strategy'
    )
  return strategy
