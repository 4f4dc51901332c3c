"""Generating text: a model and its tokenizer, from folders, and how to decode."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastdec as fd
from experiments.tools.generation_settings import Settings
from experiments.tools.strategies import strategy_of
from experiments.tools.tuned_file import tuned_file
from fastdec import folders
from fastdec.decoding.inputs import check_ids, check_room, checked
from fastdec.decoding.methods.speculative import check_draft_model
from fastdec.decoding.protocol import promise_of
from fastdec.decoding.rules.rejection import sampling_of
from fastdec.errors import UserError
from fastdec.folders import Folder, packed
from fastdec.folders.drafts import load_draft
from fastdec.heads.draft import check_target
from fastdec.heads.transformed import Transformed
from fastdec.models.api import source_words
from fastdec.struct import Bound
from fastdec.tokenizers.reader import Reader

UNKNOWN = ' ⁇ '  # as SentencePiece writes it, and others do not


@dataclasses.dataclass(frozen=True)
class Language:
  """A model with its tokenizer, its parameters unread: from text to ids, and back.

  Attributes:
    opened: the folders that the settings name, by their paths, each opened once.
  """

  model: Any
  tokenizer: Any
  settings: Settings
  opened: Mapping[str, Folder] = dataclasses.field(default_factory=dict, kw_only=True)

  @classmethod
  def of(cls, settings: Settings, prompts: Sequence[str]) -> 'Language':
    """Settings by configs and tokenizers, once the prompts fit them.

    Raises:
      UserError: a folder that is no model, or has no tokenizer; prompts that are empty or too long;
        a draft model that reads text otherwise, or not as far; heads of another model, or a tree
        that they cannot fill.
    """
    target = folders.open(settings.model, settings.dtype)
    opened = {settings.model: target}
    language = cls(target.model, target.tokenizer, settings, opened=opened)
    language.check(prompts)
    for path in (settings.draft, settings.heads_folder):
      if path is not None and path not in opened:
        opened[path] = folders.open(path, settings.dtype)
    if settings.draft is not None:
      draft = opened[settings.draft]
      check_same_ids(language.tokenizer, draft.tokenizer, settings)
      longest = max(map(language.ids, prompts), key=len)
      max_len, prompt, _ = checked(language.model, [longest], None, None, settings.max_len, None)
      check_draft_model(language.model, draft.model, prompt, max_len)
    if language.pool is not None:
      language.pool.check(language.model.vocab_size)
    is_tuned = settings.strategy is not None and not settings.describes
    if settings.heads_folder is not None and not is_tuned:
      check_heads(language.model, opened[settings.heads_folder].heads, settings)
    return language

  def load(self) -> 'Generator':
    """Reads the parameters: of the target, the largest, last."""
    settings, tuned, folder = self.settings, self.tuned, self.opened[self.settings.model]
    if tuned is None:
      strategy = strategy_of(settings, *self.drafter(), self.pool)
    else:
      strategy, folder = tuned.strategy, folders.open(settings.model, tuned.dtype)
    if settings.strategy is not None:
      law = sampling_of(strategy.effective_rule)
      settings = dataclasses.replace(
        settings,
        strategy=None,
        dtype=settings.dtype if tuned is None else tuned.dtype,
        temperature=0.0 if law is None else float(law.temperature),
        top_k=0 if law is None else int(law.top_k),
        top_p=1.0 if law is None else float(law.top_p),
      )
    model, params = packed(folder.model, folder.params())
    return Generator(model, self.tokenizer, settings, params, strategy, opened=self.opened)

  @functools.cached_property
  def tuned(self) -> fd.Tuned | None:
    """Tuned strategy of the model, its heads or draft read; None where the settings do not ask for
    it."""
    if self.settings.strategy is None or self.settings.describes:
      return None
    return fd.load_tuned(
      self.settings.model, self.settings.part, tuned_file(self.settings.strategy), prepare=packed
    )

  @functools.cached_property
  def pool(self) -> fd.NGramPool | None:
    """The n-grams that the settings name."""
    return None if self.settings.pool is None else fd.load_pool(self.settings.pool)

  def drafter(self) -> tuple[Any, Any, Any]:
    """The draft model, the heads and the draft network that the settings name, as (module, params);
    None for others."""
    settings, (draft, heads, network) = self.settings, (None, None, None)
    if settings.draft is not None:
      folder = self.opened[settings.draft]
      draft = packed(folder.model, folder.params())
    if settings.heads_folder is not None:
      folder = self.opened[settings.heads_folder]
      heads = packed(folder.heads, folder.head_params())
    if settings.draft_head is not None:
      network = packed(*load_draft(settings.draft_head, settings.dtype))
      check_target(Bound(*network), self.model)
    return draft, heads, network

  def check(self, prompts: Sequence[str]) -> None:
    """Raises UserError, naming the first, where prompts are empty, too long, or hold what the model
    does not know."""
    limit = self.model.max_positions
    for i, prompt in enumerate(prompts):
      ids = self.ids(prompt)
      name = 'the prompt' if len(prompts) == 1 else f'prompt {i + 1}'
      if not prompt.strip() or not ids:
        raise UserError(f'{name} is empty: give some text to go on from')
      if limit is not None and self.is_translator:
        check_room(len(ids), 1, limit, name)
        check_room(1, self.settings.max_len, limit, setting='--max_len')
      elif limit is not None:
        check_room(len(ids), self.settings.max_len, limit, name, '--max_len')
      check_ids(f"{name}'s tokens", np.array([ids]), source_words(self.model))

  @property
  def is_translator(self) -> bool:
    """True if the prompt is a source, of which the output is no continuation."""
    return self.model.start_id is not None

  def ids(self, prompt: str) -> list[int]:
    """The prompt's ids; a source ends in an end token."""
    ids = list(self.tokenizer.encode(prompt))
    ends = self.model.eos_ids if self.is_translator else ()
    return [*ids, *ends[:1]] if ids and ends and ids[-1] not in ends else ids

  def text(self, prompt: str, tokens: Sequence[int]) -> str:
    """Text of generated tokens, spaces as they follow the prompt."""
    reader = self.reader(prompt)
    return reader.add(list(tokens)) + reader.finish()

  def reader(self, prompt: str) -> 'Reader':
    """For the tokens that follow this prompt."""
    return Reader(self.tokenizer, [] if self.is_translator else self.ids(prompt))


@dataclasses.dataclass(frozen=True)
class Generator(Language):
  """The same with its parameters, and how to decode."""

  params: Any
  strategy: Any

  @property
  def warnings(self) -> list[str]:
    """Note at the end of text that is not the model's own."""
    if self.settings.warnings or promise_of(self.strategy.effective_rule) != 'relaxed':
      return self.settings.warnings
    return ['not lossless: this strategy accepts more than what the model would have written']


def check_heads(model: Any, heads: Any, settings: Settings) -> None:
  """Raises UserError where heads, whose parameters are unread, cannot draft for the model what is
  asked for."""
  trunk = model.model if isinstance(model, Transformed) else model
  hidden, root = jnp.zeros((1, trunk.config.d_model)), jnp.zeros(1, jnp.int32)

  def drafted(trunk_params: Any, head_params: Any) -> Any:
    # in here, because it cuts the heads that it needs
    strategy = strategy_of(settings, None, (heads, head_params))
    return strategy.drafter.propose(Bound(trunk, trunk_params), hidden, root, None)[0].tokens

  key = jax.random.key(0)
  jax.eval_shape(drafted, jax.eval_shape(trunk.init, key), jax.eval_shape(heads.init, key))


def check_same_ids(tokenizer: Any, other: Any, settings: Settings) -> None:
  """Raises UserError where the ids that both tokenizers have do not all mean the same."""
  sources = [one.source.words for one in (tokenizer, other) if hasattr(one, 'source')]
  if len(sources) == 2 and sources[0] != sources[1]:
    raise UserError(
      f'{settings.draft} reads other source words than {settings.model}: give one'
      ' with its dictionaries'
    )
  for token in range(min(tokenizer.vocab_size, other.vocab_size)):
    here, there = (one.decode([token]) for one in (tokenizer, other))
    if here != there and {here, there} != {'', UNKNOWN}:
      raise UserError(
        f'{settings.draft} has {other.vocab_size} tokens and {settings.model}'
        f' {tokenizer.vocab_size}, of which number'
        f' {token} is {there!r} and {here!r}: give a draft model with the same tokenizer'
      )
