"""Corpus BLEU by sacreBLEU (Post 2018), always with the signature that names the variant.

Papers on WMT14 English-German until about 2018, such as Vaswani et al. 2017 and Stern et al. 2018,
report a different one, `split_compound_bleu`, which is about a point above sacreBLEU's. Only scores
with the same signature can be compared.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from fastdec import extras
from fastdec.errors import UserError
from fastdec.evaluation.languages import check_language

with extras.explained():
  import sacremoses
  from sacrebleu.metrics.bleu import BLEU


# Languages without spaces between words, where 13a (mteval's) would take a sentence for one word.
# Words of Japanese, Thai and so on cannot be split without a dictionary, so characters count.
TOKENIZERS = {'zh': 'zh'} | dict.fromkeys(('ja', 'th', 'lo', 'km', 'my', 'shn', 'bo', 'dz'), 'char')


def compose(lines: Sequence[str]) -> list[str]:
  """Joins accents and letters into one character (NFC), as our tokenizer writes them."""
  return [unicodedata.normalize('NFC', line) for line in lines]


class Bleu(NamedTuple):
  """A corpus score in per cent, and sacreBLEU's signature of how it was computed."""

  score: float
  signature: str


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str = '') -> Bleu:
  """Computes BLEU of detokenised lines against one reference each.

  Args:
    language: of the lines, such as 'zh-CN' (see `languages.code_of`); '': any with spaces between
      words. Languages without spaces need tokenizers of their own.

  Raises:
    UserError: no lines, not as many hypotheses as references, or an unknown language.
  """
  tokenizer = '13a'
  if language:
    tokenizer = TOKENIZERS.get(check_language(language), tokenizer)
  return _score(BLEU(tokenize=tokenizer), compose(hypotheses), compose(references))


def split_compound_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
  """Computes BLEU of German as Tensor2Tensor's get_ende_bleu.sh: Moses's tokens, compounds split.

  Moses's tokenizer is sacremoses's. Then 'text-format' counts as the words text ##AT##-##AT##
  format, on both sides. Nothing is smoothed, as in Moses's multi-bleu.perl: without a common 4-gram
  the score is 0.

  Raises:
    UserError: no lines, or not as many hypotheses as references.
  """
  tokenizer = sacremoses.MosesTokenizer('de')
  sides = []
  for lines in (hypotheses, references):
    split = []
    for line in compose(lines):
      tokens = str(tokenizer.tokenize(line, return_str=True))
      # In one pass, as the script: in 'a-b-c' it splits only the first hyphen, which uses up the b.
      split.append(re.sub(r'(\S)-(\S)', r'\1 ##AT##-##AT## \2', tokens))
    sides.append(split)
  score, signature = _score(BLEU(tokenize='none', smooth_method='none', force=True), *sides)
  tokens = f'tok:moses-de-split-compounds|sacremoses:{sacremoses.__version__}'
  return Bleu(score, signature.replace('tok:none', tokens))


def _score(metric: BLEU, hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
  if len(hypotheses) != len(references) or not references:
    counts = f'{len(hypotheses)} hypotheses and {len(references)} references'
    raise UserError(
      f'BLEU needs one hypothesis for each reference, and at least one: give other lines than these'
      f' {counts}'
    )
  score = metric.corpus_score(list(hypotheses), [list(references)]).score
  return Bleu(score, str(metric.get_signature()))
