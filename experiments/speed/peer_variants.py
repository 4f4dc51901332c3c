"""The same decoding on both sides, one prompt at a time: `experiments.generate_peer` times them in
turn."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

import fastdec as fd
from experiments.speed import huggingface_peer
from experiments.speed.costs import check_at_least
from experiments.speed.variants import Variant, Written
from fastdec.models.lm import LM, LMConfig

OURS, THEIRS = 'fastdec', 'transformers'
Prompts = Sequence[np.ndarray]  # each int32[1, t]


@dataclasses.dataclass(frozen=True)
class PeerConfig:
  """Fields as in `configs/generate_peer.py`; the models are without their dtype and end tokens."""

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


def load(folders: Mapping[str, str], dtype: str) -> dict[str, tuple[LM, Any]]:
  """Our models by role, 'model' and perhaps 'draft', with their parameters; no token ends a text or
  is suppressed.

  Raises:
    UserError: a model that is not decoder-only, or a draft model of another vocabulary.
  """
  loaded = {}
  for role, folder in folders.items():
    model, params = fd.load(folder, dtype)
    if not isinstance(model, LM):
      raise fd.UserError(
        f'{folder} holds a {type(model).__name__}: give a decoder-only model, such as a Llama'
      )
    loaded[role] = LM(dataclasses.replace(model.config, eos_ids=(), suppressed_ids=())), params
  words = [model.vocab_size for model, _ in loaded.values()]
  if len(set(words)) > 1:
    sizes = f'the model has {words[0]} tokens and the draft model {words[1]}'
    raise fd.UserError(
      f'{sizes}, and transformers drafts for the same vocabulary only: give another draft model'
    )
  return loaded


def ours(
  loaded: Mapping[str, tuple[LM, Any]], prompts: Prompts, config: PeerConfig
) -> list[Variant]:
  """Greedy first, then what speeds it up."""
  target = loaded['model']
  strategies: dict[str, Any] = {'greedy': fd.Greedy()}
  if 'draft' in loaded:
    strategies['draft model'] = fd.Speculative(loaded['draft'], config.gamma)
  strategies['draft = target'] = fd.Speculative(target, config.gamma)
  strategies['prompt lookup'] = fd.PromptLookup(config.ngram, config.gamma + 1)
  return [
    _our_variant(target, name, strategy, prompts, config) for name, strategy in strategies.items()
  ]


def _our_variant(
  target: tuple[Any, Any], name: str, strategy: Any, prompts: Prompts, config: PeerConfig
) -> Variant:
  def decoded(prompt: np.ndarray) -> fd.Decoded:
    return fd.decode(*target, prompt, strategy, max_len=config.tokens)

  def ids(prompt: np.ndarray) -> list[int]:
    return np.asarray(decoded(prompt).tokens[0]).tolist()

  def write() -> list[Written]:
    texts = []
    for out in (decoded(prompt).checked() for prompt in prompts):
      reads_prompt = isinstance(strategy, fd.Speculative)  # the draft model does so too
      texts.append(
        Written(
          out.tokens[0].tolist(), 1 + int(out.calls[0]), int(out.draft_calls[0]) + reads_prompt
        )
      )
    return texts

  return Variant({'engine': OURS, 'strategy': name}, ids, write)


def theirs(folders: Mapping[str, str], prompts: Prompts, config: PeerConfig) -> list[Variant]:
  """The same of transformers, in the same order."""
  models = {role: huggingface_peer.load(folder, config.dtype) for role, folder in folders.items()}
  options: dict[str, dict[str, Any]] = {'greedy': {}}
  if 'draft' in models:
    options['draft model'] = {
      'assistant_model': huggingface_peer.drafting(models['draft'], config.gamma)
    }
  options['draft = target'] = {
    'assistant_model': huggingface_peer.drafting(models['model'], config.gamma)
  }
  options['prompt lookup'] = {
    'prompt_lookup_num_tokens': config.gamma,
    'max_matching_ngram_size': config.ngram,
  }
  return [
    _their_variant(models['model'], name, chosen, prompts, config)
    for name, chosen in options.items()
  ]


def _their_variant(
  model: Any, name: str, options: Mapping[str, Any], prompts: Prompts, config: PeerConfig
) -> Variant:
  draft = [options['assistant_model']] if 'assistant_model' in options else []

  def decode(prompt: np.ndarray) -> list[int]:
    return huggingface_peer.generate(model, prompt, config.tokens, **options)

  def write() -> list[Written]:
    texts = []
    for prompt in prompts:
      with huggingface_peer.counted([model, *draft]) as counts:
        ids = decode(prompt)
      texts.append(Written(ids, counts[0], sum(counts[1:])))
    return texts

  return Variant({'engine': THEIRS, 'strategy': name}, decode, write, spins=True)
