"""Inputs of decoding from a text: sources of a translator, prompts of a language model. A prompt is
BOS followed by the first n tokens of a sentence."""

from typing import Any

import numpy as np
from jaxtyping import Int

from experiments.lab.decoding import padded_sources
from experiments.lab.text import Text
from fastdec.data.text.tokens import Ragged
from fastdec.errors import UserError


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
