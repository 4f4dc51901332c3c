"""Corpus BLEU by sacreBLEU (Post 2018), always with the signature that says which BLEU it is."""

from collections.abc import Sequence
from typing import NamedTuple

import sacrebleu.metrics

from fastdec.errors import UserError


class Bleu(NamedTuple):
  """A corpus score in per cent, and sacreBLEU's signature of how it was computed."""
  score: float
  signature: str


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
  """BLEU of detokenised lines against one reference each.

  Raises:
    UserError: no lines, or not as many hypotheses as references.
  """
  if len(hypotheses) != len(references) or not references:
    counts = f'{len(hypotheses)} hypotheses and {len(references)} references'
    raise UserError(f'BLEU was asked for {counts}: give one hypothesis for each reference, and at least one')
  metric = sacrebleu.metrics.BLEU()
  score = metric.corpus_score(list(hypotheses), [list(references)]).score
  return Bleu(score, str(metric.get_signature()))
