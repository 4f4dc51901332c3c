"""What `experiments.speculative` means: a target, its draft models and their trainings, the text,
what is measured."""

import dataclasses
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Int

from configs.common import to_dataclass
from experiments.lab.decoding import padded_sources
from experiments.lab.settings import ModelSettings, RunConfig, at_least, each_once
from experiments.lab.text import OnText, Text, TextConfig
from experiments.lab.translation import TranslationTraining
from fastdec.errors import UserError
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.sharding import MeshConfig

TRAINED = ('large', 'small')  # draft models
ROLES = ('target', *TRAINED)
MODELS = (*TRAINED, 'bigram', 'unigram')  # drafts that are models


@dataclasses.dataclass(frozen=True)
class MeasureConfig:
  """What is measured, on how much; fields as in `configs/speculative.py`."""

  gammas: tuple[int, ...]
  batches: tuple[int, ...]
  temperatures: tuple[float, ...]
  ngram_gamma: int
  lookup: int
  prompt: int
  split: Literal['dev', 'test']
  sentences: int
  timed: int
  max_len: int
  repeats: int

  def __post_init__(self) -> None:
    each_once('measure', gammas=self.gammas, batches=self.batches, temperatures=self.temperatures)
    for name in ('gammas', 'batches'):
      at_least(
        1, 'measure', **{f'{name}[{i}]': value for i, value in enumerate(getattr(self, name))}
      )
    names = ('ngram_gamma', 'lookup', 'prompt', 'timed', 'max_len', 'repeats')
    at_least(1, 'measure', **{name: getattr(self, name) for name in names})
    at_least(0, 'measure', sentences=self.sentences)
    if min(self.temperatures) < 0:
      raise UserError(
        f'config.measure.temperatures={self.temperatures} is not possible: give 0, or 1e-6 to 1e6'
      )


class RoleSettings(Protocol):
  """The model of a role and its training."""

  @property
  def model(self) -> ModelSettings: ...

  @property
  def train(self) -> RunConfig: ...


@dataclasses.dataclass(frozen=True)
class SpeculativeExperiment:
  """The whole; fields as in `configs/speculative.py`. Subclasses say what the three models are, and
  what they read."""

  task: Literal['translation', 'lm']
  scale: str
  seed: int
  mesh: MeshConfig
  data: TextConfig
  measure: MeasureConfig
  target: RoleSettings
  large: RoleSettings
  small: RoleSettings

  def __post_init__(self) -> None:
    for role in ROLES:
      self.training(role)

  def training(self, role: str) -> OnText:
    """How the model of a role is trained."""
    raise NotImplementedError

  def prompts(self, text: Text, model: Any) -> Int[np.ndarray, 'n s']:
    """The inputs of `fd.decode`, of the split that is measured; prompts of one length."""
    raise NotImplementedError

  def first_id(self, model: Any) -> int:
    """The word before the first of a text."""
    raise NotImplementedError

  @property
  def asked(self) -> dict[str, Any]:
    """What cells must agree on."""
    measure = self.measure
    names = ('split', 'sentences', 'timed', 'max_len', 'repeats')
    return {'task': self.task, **{name: getattr(measure, name) for name in names}}


@dataclasses.dataclass(frozen=True)
class TranslationModel:
  """An encoder-decoder model and its training."""

  model: TransformerConfig  # without its vocabulary, which the text gives
  train: RunConfig


@dataclasses.dataclass(frozen=True)
class Translation(SpeculativeExperiment):
  """From source to target; a draft model has an encoder of its own."""

  target: TranslationModel
  large: TranslationModel
  small: TranslationModel

  def training(self, role: str) -> TranslationTraining:
    part: TranslationModel = getattr(self, role)
    if self.measure.max_len > part.model.max_positions:
      limit = f'{role}.model.max_positions={part.model.max_positions} is the most'
      raise UserError(f'config.measure.max_len={self.measure.max_len} is not possible: {limit}')
    return TranslationTraining(
      seed=self.seed, mesh=self.mesh, train=part.train, data=self.data, model=part.model
    )

  def prompts(self, text: Text, model: Transformer) -> Int[np.ndarray, 'n s']:
    return padded_sources(
      text.tokens(self.measure.split), model, f'of the {self.measure.split} set'
    )

  def first_id(self, model: Transformer) -> int:
    return model.start_id


def experiment_of(config: Any) -> SpeculativeExperiment:
  """From a locked ConfigDict; what cannot be trained or measured is a UserError, before any
  work."""
  if config.task == 'lm':
    from experiments.papers.leviathan2022.captions import CaptionExperiment

    return to_dataclass(CaptionExperiment, config)
  return to_dataclass(Translation, config)
