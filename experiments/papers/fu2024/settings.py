"""What `experiments.lookahead` means: one model and its training, the sizes of lookahead, what is
measured."""

import dataclasses
import pathlib
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from configs.common import to_dataclass
from experiments.lab.captions import Captions, CaptionTraining, prompts_of
from experiments.lab.decoding import padded_sources
from experiments.lab.settings import RunConfig, at_least, each_once
from experiments.lab.text import Text, TextConfig
from experiments.lab.translation import TranslationTraining
from experiments.papers.fu2024.code import LANGUAGE, write_passages
from fastdec.errors import UserError
from fastdec.models.lm import LMConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.sharding import MeshConfig


@dataclasses.dataclass(frozen=True)
class MeasureConfig:
  """What is measured, on how much; fields as in `configs/lookahead.py`."""

  windows: tuple[int, ...]
  ngrams: tuple[int, ...]
  guesses: tuple[int, ...]
  batches: tuple[int, ...]
  prompt: int
  split: Literal['dev', 'test']
  sentences: int
  timed: int
  max_len: int
  repeats: int

  def __post_init__(self) -> None:
    for name, least in (('windows', 1), ('ngrams', 3), ('guesses', 1), ('batches', 1)):
      given = getattr(self, name)
      each_once('measure', **{name: given})
      at_least(least, 'measure', **{f'{name}[{i}]': value for i, value in enumerate(given)})
    at_least(1, 'measure', prompt=self.prompt, timed=self.timed, max_len=self.max_len)
    at_least(0, 'measure', sentences=self.sentences, repeats=self.repeats)

  @property
  def sizes(self) -> list[tuple[int, int, int]]:
    """(window, ngram, guesses): the first of each, then the others of one with the first of the two
    others."""
    window, ngram, guesses = self.windows[0], self.ngrams[0], self.guesses[0]
    found = [(window, ngram, guesses)]
    found += [(other, ngram, guesses) for other in self.windows[1:]]
    found += [(window, other, guesses) for other in self.ngrams[1:]]
    found += [(window, ngram, other) for other in self.guesses[1:]]
    return found


@dataclasses.dataclass(frozen=True)
class LookaheadExperiment:
  """The whole; fields as in `configs/lookahead.py`. Subclasses say what the model is, and what it
  reads."""

  task: Literal['lm', 'translation', 'code']
  scale: str
  base: str
  seed: int
  mesh: MeshConfig
  data: TextConfig
  train: RunConfig
  measure: MeasureConfig

  def __post_init__(self) -> None:
    self.training()

  def training(self) -> CaptionTraining | TranslationTraining:
    """How the model is trained."""
    raise NotImplementedError

  def prompts(self, text: Text, model: Any, split: str) -> Int[np.ndarray, 'n s']:
    """The inputs of `fd.decode`, of a split."""
    raise NotImplementedError

  def _common(self) -> dict[str, Any]:
    return {'seed': self.seed, 'mesh': self.mesh, 'train': self.train, 'data': self.data}

  @property
  def asked(self) -> dict[str, Any]:
    """What cells must agree on."""
    names = ('split', 'sentences', 'timed', 'max_len', 'prompt')
    return {'task': self.task, **{name: getattr(self.measure, name) for name in names}}


@dataclasses.dataclass(frozen=True)
class OfLines(LookaheadExperiment):
  """Captions or code, from their first tokens."""

  model: LMConfig  # without its vocabulary, which the text gives

  def training(self) -> CaptionTraining:
    return CaptionTraining(model=self.model, **self._common())

  def prompts(self, text: Text, model: Any, split: str) -> Int[np.ndarray, 'n s']:
    assert isinstance(text, Captions)  # which is what `CaptionTraining` opens
    return prompts_of(text, split, self.measure.prompt)


@dataclasses.dataclass(frozen=True)
class OfPairs(LookaheadExperiment):
  """From source to target."""

  model: TransformerConfig

  def training(self) -> TranslationTraining:
    if self.measure.max_len > self.model.max_positions:
      limit = f'model.max_positions={self.model.max_positions} is the most'
      raise UserError(f'config.measure.max_len={self.measure.max_len} is not possible: {limit}')
    return TranslationTraining(model=self.model, **self._common())

  def prompts(self, text: Text, model: Any, split: str) -> Int[np.ndarray, 'n s']:
    return padded_sources(text.tokens(split), model, f'of the {split} set')


def experiment_of(config: Any, workdir: pathlib.Path) -> LookaheadExperiment:
  """From a locked ConfigDict. Code without a folder is this repository's, which is written into the
  workdir."""
  experiment = to_dataclass(OfPairs if config.task == 'translation' else OfLines, config)
  if experiment.task != 'code' or experiment.data.folder:
    return experiment
  write_passages(workdir / LANGUAGE)
  return dataclasses.replace(
    experiment, data=dataclasses.replace(experiment.data, folder=str(workdir / LANGUAGE))
  )
