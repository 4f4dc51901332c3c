"""What `experiments.speculative` means: a target, its draft models and their trainings, the text, what is measured."""

import dataclasses
from typing import Any, Literal

from configs.common import to_dataclass
from experiments.settings import RunConfig, Training, at_least
from experiments.translation import Text, TextConfig
from fastdec.errors import UserError
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.sharding import MeshConfig

ROLES = ('target', 'large', 'small')  # a draft model is large or small


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """One of the models; fields as in `configs/speculative.py`."""

  model: TransformerConfig  # but for its vocabulary, which the text gives
  train: RunConfig


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
  calls: int

  def __post_init__(self) -> None:
    for name in ('gammas', 'batches', 'temperatures'):
      given = getattr(self, name)
      if not given or len(set(given)) < len(given):
        raise UserError(f'config.measure.{name}={given} is not possible: give one or more, each once')
    for name in ('gammas', 'batches'):
      at_least(1, 'measure', **{f'{name}[{i}]': value for i, value in enumerate(getattr(self, name))})
    names = ('ngram_gamma', 'lookup', 'prompt', 'timed', 'max_len', 'repeats', 'calls')
    at_least(1, 'measure', **{name: getattr(self, name) for name in names})
    at_least(0, 'measure', sentences=self.sentences)
    if min(self.temperatures) < 0:
      raise UserError(f'config.measure.temperatures={self.temperatures} is not possible: give 0, or 1e-6 to 1e6')


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationTraining(Training):
  """Of one encoder-decoder model."""

  data: TextConfig
  model: TransformerConfig

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.data.row_length > self.model.max_positions:
      limit = f'model.max_positions={self.model.max_positions} is the most'
      raise UserError(f'config.data.row_length={self.data.row_length} is not possible: {limit}')

  def open(self) -> Text:
    return Text.of(self)

  def transformer(self, vocab_size: int) -> Transformer:
    """The model over so many pieces."""
    return Transformer(dataclasses.replace(self.model, vocab_size=vocab_size))


@dataclasses.dataclass(frozen=True)
class SpeculativeExperiment:
  """The whole; fields as in `configs/speculative.py`."""

  task: Literal['translation', 'lm']
  scale: str
  seed: int
  mesh: MeshConfig
  data: TextConfig
  target: ModelConfig
  large: ModelConfig
  small: ModelConfig
  measure: MeasureConfig

  @classmethod
  def of(cls, config: Any) -> 'SpeculativeExperiment':
    """From a locked ConfigDict; what cannot be trained or measured is a UserError, before any work."""
    return to_dataclass(cls, config)

  def __post_init__(self) -> None:
    for role in ROLES:
      self.training(role)

  def training(self, role: str) -> Training:
    """How the model of a role is trained."""
    part: ModelConfig = getattr(self, role)
    return TranslationTraining(seed=self.seed, mesh=self.mesh, train=part.train, data=self.data, model=part.model)
