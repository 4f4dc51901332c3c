"""Speculative decoding with a draft model (Leviathan et al. 2022; Chen et al. 2023), greedily or by sampling."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fastdec import struct
from fastdec.decoding import loop
from fastdec.decoding.drafters.model import ModelDrafter
from fastdec.decoding.protocol import Drafter, Prompt, Rule
from fastdec.decoding.rejection import LawRule, Rejection, Warped
from fastdec.decoding.rules import Exact, Sampling
from fastdec.decoding.strategies import LoopStrategy
from fastdec.errors import UserError
from fastdec.models.api import Model, has_own_source_ids, source_words
from fastdec.struct import Bound

PADDING = 0.01  # of a vocabulary: rows that make its size a round number differ by less between models of one tokenizer


@struct.pytree
class Speculative(LoopStrategy):
  """A smaller model drafts, the target verifies; the output is what the target alone would write, or has its law.

  Whether temperature is 0 is part of the compiled program, found when the strategy is made; what is traced counts as
  above 0. Above 0, temperature, top_k, top_p and the rule's settings are arrays: a sweep over them compiles once.

  Args:
    draft: (model, params): any model over the target's vocabulary, with an encoder only if the target has one. Sizes
      that differ by at most 1 %, with an end token in common, count as one vocabulary, padded differently.
    gamma: tokens drafted for each call of the target, at least 1.
    temperature, top_k, top_p: as in `Sample`, of target and draft alike; temperature 0: the most likely token.
    rule: None: `Exact()` at temperature 0, else `Rejection()`. At temperature 0 any rule goes; above, one that compares
      laws: `Rejection`, `BlockVerification`.
    adaptive: gamma is the most that is drafted, and follows the acceptance seen (`ModelDrafter`).
    same_ids: the ids that both vocabularies have mean the same, whatever their sizes: one tokenizer's ids are the first
      of the other's. What the draft has beyond the target's is not drafted.
  """

  draft: Bound | tuple[Any, Any]
  gamma: int = struct.static(default=4)
  temperature: Any = 0.0
  top_k: Any = 0
  top_p: Any = 1.0
  rule: Rule | None = None
  adaptive: bool = struct.static(default=False)
  same_ids: bool = struct.static(default=False)
  is_greedy: bool = struct.static(init=False, default=True)

  def __post_init__(self) -> None:
    if isinstance(self.gamma, bool) or int(self.gamma) != self.gamma or self.gamma < 1:
      raise UserError(f'gamma={self.gamma} is not possible: give 1 or more tokens to draft, or decode by Greedy()')
    is_traced = isinstance(self.temperature, jax.core.Tracer)
    if not is_traced and self.temperature < 0:
      raise UserError(f'temperature={self.temperature} is not possible: give 0, for the most likely, or 1e-6 to 1e6')
    is_greedy = not is_traced and self.temperature == 0
    if not is_greedy and not isinstance(self.rule, LawRule | None):
      name = type(self.rule).__name__
      raise UserError(f'{name} does not sample: above temperature 0 give Rejection or BlockVerification as rule')
    settings = Sampling(1.0 if is_greedy else self.temperature, self.top_k, self.top_p)
    temperature = jnp.zeros_like(settings.temperature) if is_greedy else settings.temperature
    values = {'draft': Bound(*self.draft), 'gamma': int(self.gamma), 'is_greedy': is_greedy}
    values |= {'temperature': temperature, 'top_k': settings.top_k, 'top_p': settings.top_p}
    for name, value in values.items():
      object.__setattr__(self, name, value)

  @property
  def drafter(self) -> Drafter:
    return ModelDrafter(self.draft, None if self.is_greedy else self._sampling, self.gamma, self.adaptive)

  @property
  def whole_rule(self) -> Rule:
    if self.is_greedy:
      return Exact() if self.rule is None else self.rule.greedy if isinstance(self.rule, LawRule) else self.rule
    return Warped(Rejection() if self.rule is None else self.rule, self._sampling)

  def init(self, target: Bound, prompt: Prompt, max_len: int, keys: Array | None) -> loop.DecodeState:
    check_vocabularies(target.module, self.draft.module, self.same_ids)
    check_draft(target.module, self.draft.module, prompt, max_len)
    return super().init(target, prompt, max_len, keys)

  @property
  def _sampling(self) -> Sampling:
    return Sampling(self.temperature, self.top_k, self.top_p)


def check_vocabularies(target: Model, draft: Model, same_ids: bool) -> None:
  """Raises UserError where the two models' ids cannot mean the same tokens, as far as the models know."""
  have, want = draft.vocab_size, target.vocab_size
  ends = bool(set(draft.eos_ids) & set(target.eos_ids)) or not (draft.eos_ids or target.eos_ids)
  if same_ids or have == want or (abs(have - want) <= PADDING * max(have, want) and ends):
    return
  raise UserError(
    f"the draft model has {have} tokens and the target {want}: give a draft model with the target's tokenizer, "
    'or same_ids=True if one vocabulary begins with the whole of the other'
  )


def check_draft(target: Model, draft: Model, prompt: Prompt, max_len: int) -> None:
  """Raises UserError where the draft model cannot read what the target reads."""
  if target.start_id is None and draft.start_id is not None:
    raise UserError('the draft model has an encoder, and the target has none: give a decoder-only draft model')
  if draft.start_id is not None and (has_own_source_ids(draft) or has_own_source_ids(target)):
    have, want = source_words(draft), source_words(target)
    if have != want:
      raise UserError(
        f"the draft model's source has {have} words and the target's {want}: give a draft model with the target's"
        ' tokenizer'
      )
  limit = draft.max_positions
  if limit is None or (target.max_positions is not None and limit >= target.max_positions):
    return
  s = 0 if draft.start_id is None or prompt.inputs.ndim != 2 else prompt.inputs.shape[1]
  t = prompt.tokens.shape[1]
  if s > limit or t + max_len - 1 > limit:
    asked = f'a source of {s} tokens' if s > limit else f'a prompt of {t} tokens and max_len={max_len}'
    raise UserError(f"{asked} exceed the draft model's {limit} positions: shorten them, or give another draft model")
