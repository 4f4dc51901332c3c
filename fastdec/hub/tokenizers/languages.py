"""Languages of translation models: the tokens that name them, and their places.

  source                  decoder begins with     models, and how they spell German
  <2de> words end         start                   MADLAD; Marians of many languages, >>deu<<
  language words end      end, language           M2M-100, __de__; NLLB, deu_Latn; mBART-50, de_DE
  words end language      language                mBART, de_DE

`Generator` reads a source and decodes by them.
"""

import dataclasses
import re
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import shown

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
    source: ids before and after the source's words; None: the tokenizer puts its own.
    start: id in the place of the decoder's start; None: the model's own.
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


def languages_of(tokenizer: Any, model: Any, source: str | None, target: str | None) -> Languages:
  """Finds the tokens of languages by their codes, or by the tokens themselves.

  The form of a token shows whether it is part of a text. Where other tokens belong depends on the
  model's start, which is an end or a language.

  Raises:
    UserError: the tokenizer has no such language, or several.
  """
  pieces = tokenizer.pieces(range(tokenizer.vocab_size))
  ids = {piece: i for i, piece in enumerate(pieces) if _codes(piece)}
  from_, to = (None if one is None else _named(one, list(ids)) for one in (source, target))
  if to is not None and BEFORE_TEXT.fullmatch(to):
    return Languages(text=f'{to} ')
  ends, around = model.eos_ids[:1], None
  has_own_start = model.start_id not in model.eos_ids
  if from_ is not None and not BEFORE_TEXT.fullmatch(from_):
    language = (ids[from_],)
    around = ((), (*ends, *language)) if has_own_start else (language, ends)
  first = None if to is None else ids[to]
  if has_own_start:
    return Languages(source=around, start=first)
  return Languages(source=around, begin=first)


def _codes(piece: str) -> tuple[str, ...]:
  """Returns the code of a language's token; none for other tokens."""
  match = BEFORE_TEXT.fullmatch(piece) or TOKENS.fullmatch(piece)
  return () if match is None else tuple(filter(None, match.groups()))


def _named(name: str, tokens: list[str]) -> str:
  """Returns the token of a language."""
  if name in tokens:
    return name
  if not tokens:
    raise UserError(
      f'the tokenizer has no tokens of languages, such as {name!r}: leave out source and target'
    )
  wanted = {name, LONG.get(name)}
  fitting = [token for token in tokens if wanted & {*_codes(token)}]
  if len(fitting) == 1:
    return fitting[0]
  if fitting:
    raise UserError(f'language {name!r} may be {" or ".join(fitting)}: give one of them')
  more = f' and {len(tokens) - SHOWN} more' if len(tokens) > SHOWN else ''
  raise UserError(
    f'the tokenizer knows no language {shown(name)}: it knows {", ".join(tokens[:SHOWN])}{more}'
  )
