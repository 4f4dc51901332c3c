"""A model that rewrites sources as its settings say: by a search, greedily, or drawing several
outputs."""

from typing import Any

import jax
import numpy as np

from experiments.lab.decoding import DistillConfig
from experiments.lab.model_text import ended
from experiments.lab.settings import seed_of
from experiments.lab.sources import Source
from fastdec.decoding.pool import decode_each
from fastdec.decoding.protocol import Decoded
from fastdec.tokenizers.sentencepiece import EOS_ID, Tokenizer
from fastdec.training.progress import Progress

Outputs = list[tuple[str, list[int]]]  # lines and their ids, best first


class Translator:
  """The teacher at work."""

  def __init__(
    self, settings: DistillConfig, row_length: int, model: Any, params: Any, tokenizer: Tokenizer
  ) -> None:
    self._settings, self._model, self._params, self.tokenizer = settings, model, params, tokenizer
    positions = model.max_positions or np.inf
    self._longest = min(row_length, positions)  # longer pairs are left out of training
    a, b = settings.max_len
    self._max_len = max(int(min(a * self._longest + b, positions)), 1)

  def outputs(
    self, given: list[Source], first: int, split: str, progress: Progress
  ) -> list[Outputs | None]:
    """For each source what it is translated to, best first; None where that is too long.

    Args:
      given: the sources.
      first: the place of the first of them in its split: with that, outputs are drawn anew.
      split: 'train' or 'dev'.
      progress: told how many are done.
    """
    ids = [np.array([*self.tokenizer.encode(line), EOS_ID], np.int32) for line, _ in given]
    short = [i for i, source in enumerate(ids) if len(source) <= self._longest]
    found: list[list[list[int]]] = [[] for _ in short]
    settings, draws = self._settings, max(self._settings.samples, 1)
    for draw in range(draws):
      inputs, key = [ids[i] for i in short], self._key(split, first, draw)
      for finished in decode_each(
        self._model, self._params, inputs, settings.strategy, self._max_len, settings.rows, key
      ):
        for index, hypotheses in zip(
          finished.indices, _hypotheses(finished.decoded.checked()), strict=True
        ):
          found[index] += hypotheses
        if draw == draws - 1:
          progress.add(len(finished.indices))
    if too_long := len(ids) - len(short):
      progress.add(too_long)
    outputs: list[Outputs | None] = [None] * len(ids)
    for i, hypotheses in zip(short, found, strict=True):
      outputs[i] = self._lines_of(hypotheses)
    return outputs

  def _key(self, split: str, first: int, draw: int) -> jax.Array | None:
    """What outputs are drawn by; None where none are."""
    if not self._settings.samples:
      return None
    key = jax.random.key(seed_of(self._settings.seed, split))
    return jax.random.fold_in(jax.random.fold_in(key, first), draw)

  def _lines_of(self, hypotheses: list[list[int]]) -> Outputs:
    """Each line once, with the ids of the best hypothesis that reads so."""
    found: dict[str, list[int]] = {}
    for ids in hypotheses:
      line = self.tokenizer.decode(ids)
      if line:
        found.setdefault(line, ended(ids))
    return list(found.items())


def _hypotheses(decoded: Decoded) -> list[list[list[int]]]:
  """For each row its outputs, best first: one, or those that a search has found."""
  if decoded.nbest_tokens is None or decoded.nbest_scores is None:
    return [[row] for row in decoded.tokens.tolist()]
  rows = zip(decoded.nbest_tokens, decoded.nbest_scores, strict=True)
  return [tokens[scores > -np.inf].tolist() for tokens, scores in rows]
