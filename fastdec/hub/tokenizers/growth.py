"""Limits on how much longer a published tokenizer.json may make a text.

The library `tokenizers` runs its parts in this process. If it runs out of memory, it ends the
process, without an exception. So the parts are checked before the library sees them.
"""

import base64
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from fastdec.errors import UserError

MOST = 256  # times; published files reach about 200, by SentencePiece's table of characters
MOST_AROUND = 2**16  # special ids that a template puts around a text
PARTS = ('normalizers', 'pretokenizers', 'processors', 'decoders')  # of sequences


def check_growth(content: Mapping[str, Any], file: pathlib.Path) -> None:
  """Refuses the content of a tokenizer.json that may make texts too long.

  Raises:
    UserError: with the name of the part.
  """
  remedy = 'give the file that was published with the model'
  for name in ('normalizer', 'decoder'):
    growth = math.prod(map(_find_growth, _split(content.get(name))))
    if growth > MOST:
      times = f'{growth:,}' if growth < 10**9 else 'more than a billion'
      raise UserError(
        f'the {name} of {file} may make a text {times} times as long, but at most {MOST} times is'
        f' allowed: {remedy}'
      )
  for part in _split(content.get('post_processor')):
    if part.get('type') != 'TemplateProcessing':
      continue
    # A template repeats the text, and names special tokens, which have any number of ids.
    texts, around = 0, 0
    for piece in part['single']:
      if 'SpecialToken' not in piece:
        texts += 1
      elif piece['SpecialToken']['id'] in part['special_tokens']:
        around += len(part['special_tokens'][piece['SpecialToken']['id']]['ids'])
    if texts > MOST or around > MOST_AROUND:
      raise UserError(
        f'the post_processor of {file} writes a text {texts:,} times and {around:,} ids around it,'
        f' but at most {MOST} and {MOST_AROUND:,} are allowed: {remedy}'
      )


def _split(part: Any) -> Iterator[Mapping[str, Any]]:
  """Yields the parts of a sequence, or the part itself."""
  if not isinstance(part, Mapping):
    return
  for name in PARTS:
    for inner in part.get(name) or ():
      yield from _split(inner)
  yield part


def _find_growth(part: Mapping[str, Any]) -> int:
  """Returns how many times as long a part may make a text.

  Only some parts contain texts. The library knows the others, such as Unicode's forms: they only
  lengthen unusual texts, and not repeatedly.
  """
  kind = part.get('type')
  if kind == 'Replace':
    pattern, content = part.get('pattern'), _size(part.get('content'))
    if isinstance(pattern, Mapping) and pattern.get('String'):
      return math.ceil(content / len(pattern['String'].encode()))
    return 1 + content
  if kind == 'Prepend':
    return 1 + _size(part.get('prepend'))
  if kind == 'Precompiled':  # a table: its size, a tree of that size, texts that end with NUL
    table = base64.b64decode(str(part.get('precompiled_charsmap') or ''))
    texts = table[4 + int.from_bytes(table[:4], 'little') :]
    return max(map(len, texts.split(b'\0')))
  return 1


def _size(text: Any) -> int:
  """Returns the bytes of a text, which replaces at least one byte."""
  return max(len(text.encode()), 1) if isinstance(text, str) else 1
