"""Sentences for a decoder-only language model, and its training; a prompt is the first tokens of a sentence, after the
word that training predicts the first one from."""

import dataclasses

import numpy as np
from jaxtyping import Int

from experiments.lab.settings import Training
from experiments.lab.text import Text, TextConfig
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

  def open(self) -> Captions:
    return Captions.of(self)


def prompts_of(text: Captions, split: str, n: int) -> Int[np.ndarray, 'n s']:
  """The first n tokens of every caption that has more, after the word that training predicts the first one from."""
  tokens, first = text.tokens(split).target, text.model.config.bos_id
  found = [[first, *tokens[i][:n]] for i in range(len(tokens)) if tokens.lengths[i] > n]
  if not found:
    raise UserError(
      f'config.measure.prompt={n} tokens are too long, no sentence of the {split} set has more: give fewer'
    )
  return np.array(found, np.int32)
