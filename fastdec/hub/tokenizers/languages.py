"""Languages of translation models: the tokens that name them, and their places.

  source                  decoder begins with     models, and how they spell German
  <2de> words end         start                   MADLAD; Marians of many languages, >>deu<<
  language words end      end, language           M2M-100, __de__; NLLB, deu_Latn; mBART-50, de_DE
  words end language      language                mBART, de_DE

`Generator` reads a source and decodes by them.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import quote

BEFORE_TEXT = re.compile(r'<2(\w+)>|>>(\w+)<<')  # names the target, in the source
TOKENS = re.compile(r'__([a-z]{2,4})__|([a-z]{2,3})_(?:[A-Z]{2}|[A-Z][a-z]{3})')
SHOWN = 12
LONG = {  # NLLB's codes, by those of two letters
  'af': 'afr', 'ar': 'arb', 'az': 'azj', 'be': 'bel', 'bg': 'bul', 'bn': 'ben', 'ca': 'cat',
  'cs': 'ces', 'cy': 'cym', 'da': 'dan', 'de': 'deu', 'el': 'ell', 'en': 'eng', 'es': 'spa',
  'et': 'est', 'eu': 'eus', 'fa': 'pes', 'fi': 'fin', 'fr': 'fra', 'ga': 'gle', 'gl': 'glg',
  'gu': 'guj', 'he': 'heb', 'hi': 'hin', 'hr': 'hrv', 'hu': 'hun', 'hy': 'hye', 'id': 'ind',
  'is': 'isl', 'it': 'ita', 'ja': 'jpn', 'ka': 'kat', 'kk': 'kaz', 'km': 'khm', 'kn': 'kan',
  'ko': 'kor', 'lt': 'lit', 'lv': 'lvs', 'mk': 'mkd', 'ml': 'mal', 'mr': 'mar', 'ms': 'zsm',
  'mt': 'mlt', 'my': 'mya', 'ne': 'npi', 'nl': 'nld', 'no': 'nob', 'pa': 'pan', 'pl': 'pol',
  'pt': 'por', 'ro': 'ron', 'ru': 'rus', 'si': 'sin', 'sk': 'slk', 'sl': 'slv', 'sq': 'als',
  'sr': 'srp', 'sv': 'swe', 'sw': 'swh', 'ta': 'tam', 'te': 'tel', 'th': 'tha', 'tl': 'tgl',
  'tr': 'tur', 'uk': 'ukr', 'ur': 'urd', 'uz': 'uzn', 'vi': 'vie', 'zh': 'zho',
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Languages:
  """Tokens that tell a model its languages.

  Attributes:
    text: begins the source.
    source: ids before and after the source's words; None: the tokenizer adds its own.
    start: id that the decoder starts with; None: the model's own.
    begin: id that the translation is forced to begin with.
  """

  text: str = ''
  source: tuple[tuple[int, ...], tuple[int, ...]] | None = None
  start: int | None = None
  begin: int | None = None

  def encode(self, tokenizer: Any, text: str) -> list[int]:
    """Returns the ids of a source."""
    if self.source is None:
      return list(tokenizer.encode(self.text + text))
    before, after = self.source
    return [*before, *tokenizer.encode(text, special=False), *after]


def find_languages(tokenizer: Any, model: Any, source: str | None, target: str | None) -> Languages:
  """Finds the tokens of languages by their codes, or by the tokens themselves.

  The form of a token shows whether it is part of a text. The place of other tokens depends on the
  model's start token, which is an end or a language.

  Without languages, tokenizer and model keep their own.

  Raises:
    UserError: the tokenizer has no such language, or several.
  """
  if source is None and target is None:
    return Languages()

  # Find the tokens that name languages, and their codes.
  ids, codes = {}, {}
  for i, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size))):
    match = BEFORE_TEXT.fullmatch(piece) or TOKENS.fullmatch(piece)
    if match:
      ids[piece], codes[piece] = i, set(match.groups())
  from_ = to = None
  if source is not None:
    from_ = _find_token(source, codes)
  if target is not None:
    to = _find_token(target, codes)
  if to is not None and BEFORE_TEXT.fullmatch(to):
    return Languages(text=f'{to} ')

  # Put the source's token at an end of the source, and the target's before the translation.
  has_own_start = model.start_id not in model.eos_ids
  around, ends = None, tuple(model.eos_ids[:1])
  if from_ is not None and not BEFORE_TEXT.fullmatch(from_):
    around = ((ids[from_],), ends)
    if has_own_start:
      around = ((), (*ends, ids[from_]))
  first = ids.get(to)
  if has_own_start:
    return Languages(source=around, start=first)
  return Languages(source=around, begin=first)


def _find_token(name: str, codes: Mapping[str, set[str | None]]) -> str:
  """Returns the token of a language, by itself or by its code."""
  if name in codes:
    return name
  if not codes:
    raise UserError(
      f'the tokenizer has no tokens of languages, such as {name!r}: leave out source and target'
    )
  wanted = {name, LONG.get(name, name)}
  fitting = [token for token, its_codes in codes.items() if wanted & its_codes]
  if len(fitting) == 1:
    return fitting[0]
  if fitting:
    raise UserError(f'language {name!r} may be {" or ".join(fitting)}: give one of them')
  tokens = list(codes)
  more = f' and {len(tokens) - SHOWN} more' if len(tokens) > SHOWN else ''
  raise UserError(
    f'the tokenizer knows no language {quote(name)}: it knows {", ".join(tokens[:SHOWN])}{more}'
  )
