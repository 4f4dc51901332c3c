"""The task lm of `experiments.speculative`: decoder-only language models that write the target
side's sentences."""

import dataclasses

import numpy as np
from jaxtyping import Int

from experiments.lab.captions import Captions, CaptionTraining, prompts_of
from experiments.lab.settings import RunConfig
from experiments.lab.text import Text
from experiments.papers.leviathan2022.settings import SpeculativeExperiment
from fastdec.models.lm import LM, LMConfig


@dataclasses.dataclass(frozen=True)
class CaptionModel:
  """A language model and its training."""

  model: LMConfig  # without its vocabulary, which the text gives
  train: RunConfig


@dataclasses.dataclass(frozen=True)
class CaptionExperiment(SpeculativeExperiment):
  """Sentences from their first tokens."""

  target: CaptionModel
  large: CaptionModel
  small: CaptionModel

  def training(self, role: str) -> CaptionTraining:
    part: CaptionModel = getattr(self, role)
    return CaptionTraining(
      seed=self.seed, mesh=self.mesh, train=part.train, data=self.data, model=part.model
    )

  def prompts(self, text: Text, model: LM) -> Int[np.ndarray, 'n s']:
    assert isinstance(text, Captions)  # which is what `CaptionTraining` opens
    return prompts_of(text, self.measure.split, self.measure.prompt, model.config.bos_id)

  def first_id(self, model: LM) -> int:
    return model.config.bos_id
