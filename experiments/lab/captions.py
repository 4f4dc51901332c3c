"""Inputs of decoding from a text: sources of a translator, prompts of a language model. A prompt is
BOS followed by the first n tokens of a sentence."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int

from experiments.lab.decoding import padded_sources
from experiments.lab.text import OnText, Opened, Text
from fastdec.data.text.tokens import Ragged
from fastdec.errors import UserError
from fastdec.models.lm import LM, LMConfig


class Captions(Opened):
  """Lines, tokenizer and ids; the target of a pair is learnt."""

  experiment: 'CaptionTraining'

  @property
  def model(self) -> LM:
    return self.experiment.model_over(self.tokenizer.vocab_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionTraining(OnText):
  """The training of one language model."""

  model: LMConfig

  def open(self) -> Captions:
    return Captions.over(self)

  def model_over(self, vocab_size: int) -> LM:
    return LM(dataclasses.replace(self.model, vocab_size=vocab_size))


def inputs_of(text: Text, model: Any, split: str, n: int) -> Int[np.ndarray, 'n s']:
  """Inputs of `fd.decode`: sources, or for a language model the beginnings of its sentences.

  Args:
    n: tokens of a sentence.
  """
  if model.start_id is None:
    return prompts_of(text, split, n, model.config.bos_id)
  return padded_sources(text.tokens(split), model, f'of the {split} set')


def prompts_of(text: Text, split: str, n: int, first: int) -> Int[np.ndarray, 'n s']:
  """BOS and the first n tokens of every caption that has more than n."""
  return beginnings_of(text.tokens(split).target, n, first, f'the {split} set')


def beginnings_of(tokens: Ragged, n: int, first: int, where: str) -> Int[np.ndarray, 'n s']:
  """BOS and the first n tokens of every sentence that has more than n, its end being one; `where`
  they are from."""
  found = [[first, *tokens[i][:n]] for i in range(len(tokens)) if tokens.lengths[i] > n]
  if not found:
    raise UserError(
      f'config.measure.prompt={n} tokens are too long, no sentence of {where} has more: give fewer'
    )
  return np.array(found, np.int32)
