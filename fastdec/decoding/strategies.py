"""How to decode: most strategies are a drafter and a rule. Frozen pytrees: a sweep over array leaves compiles once."""

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.drafters.heads import HeadsDrafter
from fastdec.decoding.drafters.lookup import LookupDrafter
from fastdec.decoding.drafters.none import NoDraft
from fastdec.decoding.drafters.two_calls import TwoCallDrafter
from fastdec.decoding.protocol import Decoded, Drafter, Prompt, Rule
from fastdec.decoding.rules import Exact, Sampling
from fastdec.decoding.topology import Topology
from fastdec.decoding.trees import medusa_choices
from fastdec.errors import UserError
from fastdec.struct import Bound


@runtime_checkable
class Strategy(Protocol):
  """What `decode` asks: a frozen pytree of functions on a state, which is another pytree; all run inside jit.

  Decoding is `init`, then `step` until `done` everywhere, then `result`. Rows are independent, so that some may leave
  (`take`) and others come in their places without changing what the rest become: every array of a state has its rows
  first, and where a row has several entries (beams), they lie together.
  """

  def most_tokens(self, source: int, max_len: int) -> int:
    """What a row can emit at most whose source, or prompt, has so many tokens; asked outside jit."""

  def init(self, target: Bound, prompt: Prompt, max_len: int, keys: Array | None) -> Any:
    """Runs the prompt, once."""

  def step(self, target: Bound, state: Any) -> Any:
    """One call of the target; rows that are done stay as they are."""

  def done(self, state: Any) -> Bool[Array, ' b']:
    """Which rows have met their end or max_len."""

  def take(self, state: Any, rows: Int[Array, ' r']) -> Any:
    """The state of these rows, in this order."""

  def result(self, state: Any) -> Decoded:
    """What has been generated."""


class LoopStrategy:
  """A strategy that is a drafter and a rule, run by the one loop."""

  drafter: Drafter
  rule: Rule

  @property
  def whole_rule(self) -> Rule:
    """The rule, with what the strategy knows beside it."""
    return self.rule

  def most_tokens(self, source: int, max_len: int) -> int:
    return max_len

  def init(self, target: Bound, prompt: Prompt, max_len: int, keys: Array | None) -> loop.DecodeState:
    return loop.init(target, self.drafter, self.whole_rule, prompt, max_len, keys)

  def step(self, target: Bound, state: loop.DecodeState) -> loop.DecodeState:
    return loop.step(target, self.drafter, self.whole_rule, state)

  def done(self, state: loop.DecodeState) -> Bool[Array, ' b']:
    return state.done

  def take(self, state: loop.DecodeState, rows: Int[Array, ' r']) -> loop.DecodeState:
    return jax.tree.map(lambda x: x[rows], state)

  def result(self, state: loop.DecodeState) -> Decoded:
    return Decoded(state.tokens, state.length, state.block_sizes, state.calls, state.draft_calls)


@struct.pytree
class Greedy(LoopStrategy):
  """The most likely token, one a call."""

  drafter = NoDraft()
  rule = Exact()


@struct.pytree
class Sample(LoopStrategy):
  """A token drawn from the model's law, one a call; `decode` needs a key.

  Args:
    temperature: divides the logits; 1e-6 to 1e6.
    top_k: only the k most likely tokens (0: all).
    top_p: only the fewest most likely tokens that have this probability together, after top_k (1: all).
  """

  temperature: Any = 1.0
  top_k: Any = 0
  top_p: Any = 1.0

  drafter = NoDraft()

  def __post_init__(self) -> None:
    rule = Sampling(self.temperature, self.top_k, self.top_p)
    for name in ('temperature', 'top_k', 'top_p'):
      object.__setattr__(self, name, getattr(rule, name))

  @property
  def rule(self) -> Rule:
    return Sampling(self.temperature, self.top_k, self.top_p)


@struct.pytree
class Blockwise(LoopStrategy):
  """Blockwise parallel decoding (Stern et al. 2018), one call of the target an iteration (section 4).

  Args:
    heads: (module, params) as `load_heads` gives them.
    k: block size, at most the heads' own (None: theirs); k = 1 is greedy decoding.
    rule: `Exact()` is lossless; `TopN`, `Distance`, `MinBlock` are not.
  """

  heads: Bound | tuple[Any, Any]
  k: int | None = struct.static(default=None)
  rule: Rule = Exact()

  def __post_init__(self) -> None:
    object.__setattr__(self, 'heads', Bound(*self.heads))
    most = self.heads.module.depth + 1
    k = most if self.k is None else self.k
    if not 1 <= k <= most:
      raise UserError(f'k={k} is out of range: these heads were trained for k={most}, so give 1 <= k <= {most}')
    object.__setattr__(self, 'k', k)

  @property
  def drafter(self) -> Drafter:
    return HeadsDrafter(_first(self.heads, self.k - 1), Topology.chain(self.k)) if self.k > 1 else NoDraft()


@struct.pytree
class BlockwiseTwoCalls(Blockwise):
  """Blockwise parallel decoding as section 3 states it: the proposals cost a second call an iteration, counted in
  `draft_calls`. Same output and block sizes as `Blockwise`; kept to compare with, and as a test's oracle."""

  @property
  def drafter(self) -> Drafter:
    return TwoCallDrafter(_first(self.heads, self.k - 1), self.k) if self.k > 1 else NoDraft()


@struct.pytree
class Medusa(LoopStrategy):
  """Heads whose several best guesses are scored at once as a tree (Cai et al. 2024); any heads, Stern's too.

  Args:
    heads: (module, params); the head at depth i fills the nodes of depth i.
    choices: the tree, as paths of ranks below the root: [[0], [0, 0], [1], ...]; or a static `Topology`; or the name
      of a published tree, or a file with one (`trees.medusa_choices`).
    rule: how to accept; `Exact()` is lossless, `Typical()` is the paper's own and is not.

  Raises:
    UserError: choices that are no tree, an unknown name, choices deeper than there are heads.
  """

  heads: Bound | tuple[Any, Any]
  choices: Topology | Sequence[Sequence[int]] | str | os.PathLike[str] = struct.static()
  rule: Rule = Exact()

  def __post_init__(self) -> None:
    object.__setattr__(self, 'heads', Bound(*self.heads))
    choices = self.choices
    if isinstance(choices, str | os.PathLike):
      choices = medusa_choices(choices)
    topology = choices if isinstance(choices, Topology) else Topology.from_choices(choices)
    object.__setattr__(self, 'choices', topology)
    depth, most = topology.max_depth, self.heads.module.depth
    if depth > most:
      raise UserError(
        f'a choice is {depth} deep, and there are {most} heads: give paths of 1 to {most} ranks, as'
        f' [c for c in choices if len(c) <= {most}]'
      )

  @property
  def drafter(self) -> Drafter:
    if self.choices.n == 1:
      return NoDraft()
    return HeadsDrafter(_first(self.heads, self.choices.max_depth), self.choices)


@struct.pytree
class PromptLookup(LoopStrategy):
  """Drafts copied from the text so far: what followed the latest earlier occurrence of its longest matching suffix in
  the prompt and what has been emitted, and, of a source in the model's own vocabulary, in the source
  (`drafters.lookup`). No training, and lossless: temperature 0 is greedy decoding, any other the law of `Sample`.

  Args:
    ngram: the longest suffix looked for, at least 1.
    k: block size, at least 2: at most k - 1 tokens are copied.
    temperature: 0, or as in `Sample`; then `decode` needs a key.
    top_k, top_p: as in `Sample`; without effect at temperature 0.
  """

  ngram: int = struct.static(default=3)
  k: int = struct.static(default=10)
  temperature: Any = 0.0
  top_k: Any = 0
  top_p: Any = 1.0
  is_greedy: bool = struct.static(init=False)  # another rule, so another program

  def __post_init__(self) -> None:
    if self.ngram < 1:
      raise UserError(f'ngram={self.ngram} is no length to look for: give 1 or more')
    if self.k < 2:
      raise UserError(f'k={self.k} leaves no room for a draft: give 2 or more, or decode by Greedy()')
    is_number = not isinstance(self.temperature, jax.core.Tracer)
    if is_number and self.temperature < 0:
      raise UserError(f'temperature={self.temperature} is not possible: give 0 for greedy decoding, or 1e-6 to 1e6')
    is_greedy = bool(is_number and self.temperature == 0)
    rule = Sampling(1.0 if is_greedy else self.temperature, self.top_k, self.top_p)
    object.__setattr__(self, 'is_greedy', is_greedy)
    object.__setattr__(self, 'temperature', jnp.asarray(self.temperature, jnp.float32))
    for name in ('top_k', 'top_p'):
      object.__setattr__(self, name, getattr(rule, name))

  @property
  def drafter(self) -> Drafter:
    return LookupDrafter(self.ngram, self.k)

  @property
  def rule(self) -> Rule:
    return Exact() if self.is_greedy else Sampling(self.temperature, self.top_k, self.top_p)


def _first(heads: Bound, depth: int) -> Bound:
  return Bound(*heads.module.drafting(heads.params, depth))
