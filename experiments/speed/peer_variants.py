"""The same decoding on both sides, one prompt at a time: `experiments.generate_peer` times them in turn."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

import fastdec as fd
from experiments.speed import huggingface_peer
from experiments.speed.costs import check_at_least
from fastdec.models.lm import LM, LMConfig

OURS, THEIRS = 'fastdec', 'transformers'
Ids = list[int]


@dataclasses.dataclass(frozen=True)
class PeerConfig:
  """Fields as in `configs/generate_peer.py`; the models but for their dtype and ends."""

  model: LMConfig
  draft: LMConfig
  dtype: Literal['float32', 'bfloat16']
  prompt: int
  tokens: int
  gamma: int
  ngram: int
  prompts: int
  timed: int
  rounds: int
  seed: int

  def __post_init__(self) -> None:
    check_at_least(1, self, 'prompt', 'tokens', 'gamma', 'ngram', 'prompts', 'timed', 'rounds')


class Variant(NamedTuple):
  """One way to decode, on one side. Calls are counted with those that read the prompt."""

  strategy: str
  engine: str
  decode: Callable[[Any], Ids]  # a prompt [1, t]
  count: Callable[[Any], tuple[Ids, int, int]]  # the same, and the calls of the target and of the draft model for it

  @property
  def name(self) -> str:
    return f'{self.engine}, {self.strategy}'


def load(folders: Mapping[str, str], dtype: str) -> dict[str, tuple[LM, Any]]:
  """Our models by role, 'model' and perhaps 'draft', with their parameters; no token ends a text or is suppressed.

  Raises:
    UserError: a model that is not decoder-only, or a draft model of another vocabulary.
  """
  loaded = {}
  for role, folder in folders.items():
    model, params = fd.load(folder, dtype)
    if not isinstance(model, LM):
      raise fd.UserError(f'{folder} holds a {type(model).__name__}: give a decoder-only model, such as a Llama')
    loaded[role] = LM(dataclasses.replace(model.config, eos_ids=(), suppressed_ids=())), params
  words = [model.vocab_size for model, _ in loaded.values()]
  if len(set(words)) > 1:
    sizes = f'the model has {words[0]} tokens and the draft model {words[1]}'
    raise fd.UserError(f'{sizes}, and transformers drafts for the same vocabulary only: give another draft model')
  return loaded


def ours(loaded: Mapping[str, tuple[LM, Any]], config: PeerConfig) -> list[Variant]:
  """Greedy first, then what speeds it up."""
  target = loaded['model']
  strategies = {'greedy': fd.Greedy()}
  if 'draft' in loaded:
    strategies['draft model'] = fd.Speculative(loaded['draft'], config.gamma)
  strategies['draft = target'] = fd.Speculative(target, config.gamma)
  strategies['prompt lookup'] = fd.PromptLookup(config.ngram, config.gamma + 1)

  def variant(name: str, strategy: Any) -> Variant:
    decoded = lambda prompt: fd.decode(*target, prompt, strategy, max_len=config.tokens)
    ids = lambda out: np.asarray(out.tokens[0]).tolist()

    def count(prompt: Any) -> tuple[Ids, int, int]:
      out = decoded(prompt)
      return ids(out), 1 + int(out.calls[0]), int(out.draft_calls[0]) + isinstance(strategy, fd.Speculative)

    return Variant(name, OURS, lambda prompt: ids(decoded(prompt)), count)

  return [variant(*named) for named in strategies.items()]


def theirs(folders: Mapping[str, str], config: PeerConfig) -> list[Variant]:
  """The same of transformers, in the same order."""
  models = {role: huggingface_peer.load(folder, config.dtype) for role, folder in folders.items()}
  assisted = lambda role: {'assistant_model': huggingface_peer.drafting(models[role], config.gamma)}
  options = {'greedy': {}}
  if 'draft' in models:
    options['draft model'] = assisted('draft')
  options['draft = target'] = assisted('model')
  lookup = {'prompt_lookup_num_tokens': config.gamma, 'max_matching_ngram_size': config.ngram}
  options['prompt lookup'] = lookup

  def variant(name: str, chosen: Mapping[str, Any]) -> Variant:
    decode = lambda prompt: huggingface_peer.generate(models['model'], prompt, config.tokens, **chosen)
    draft = [chosen[key] for key in ('assistant_model',) if key in chosen]

    def count(prompt: Any) -> tuple[Ids, int, int]:
      with huggingface_peer.counted([models['model'], *draft]) as counts:
        ids = decode(prompt)
      return ids, counts[0], sum(counts[1:])

    return Variant(name, THEIRS, decode, count)

  return [variant(*named) for named in options.items()]
