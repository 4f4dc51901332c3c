"""The task lm of `experiments.speculative`: decoder-only language models that write the target side's sentences.

A prompt is the first tokens of a sentence, after the word that training predicts the first one from.
"""

import dataclasses

import numpy as np
from jaxtyping import Int

from experiments.settings import RunConfig, Training
from experiments.speculation import SpeculativeExperiment
from experiments.translation import Text, TextConfig
from fastdec import sharding
from fastdec.errors import UserError
from fastdec.models.lm import LM, LMConfig


class Captions(Text):
  """Lines, tokenizer and ids; of a pair, the target is what is learnt."""

  @property
  def model(self) -> LM:
    return LM(dataclasses.replace(self.experiment.model, vocab_size=self.tokenizer.vocab_size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionTraining(Training):
  """Of one language model."""

  data: TextConfig
  model: LMConfig

  layout = sharding.LM

  def open(self) -> Captions:
    return Captions.of(self)


@dataclasses.dataclass(frozen=True)
class CaptionModel:
  """A language model and its training."""

  model: LMConfig  # but for its vocabulary, which the text gives
  train: RunConfig


@dataclasses.dataclass(frozen=True)
class CaptionExperiment(SpeculativeExperiment):
  """Sentences from their first tokens."""

  target: CaptionModel
  large: CaptionModel
  small: CaptionModel

  def training(self, role: str) -> CaptionTraining:
    part: CaptionModel = getattr(self, role)
    return CaptionTraining(seed=self.seed, mesh=self.mesh, train=part.train, data=self.data, model=part.model)

  def prompts(self, text: Text, model: LM) -> Int[np.ndarray, 'n s']:
    return prompts_of(text, self.measure.split, self.measure.prompt)

  def first_id(self, model: LM) -> int:
    return model.config.bos_id


def prompts_of(text: Captions, split: str, n: int) -> Int[np.ndarray, 'n s']:
  """The first n tokens of every caption that has more, after the word that training predicts the first one from."""
  tokens, first = text.tokens(split).target, text.model.config.bos_id
  found = [[first, *tokens[i][:n]] for i in range(len(tokens)) if tokens.lengths[i] > n]
  if not found:
    raise UserError(
      f'config.measure.prompt={n} tokens are too long, no sentence of the {split} set has more: give fewer'
    )
  return np.array(found, np.int32)
