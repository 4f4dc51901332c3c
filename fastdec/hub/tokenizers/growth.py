"""How much longer the parts of a stranger's tokenizer.json may make a text.

The library `tokenizers` runs them in this process. Where memory ends, it ends the process, and no
exception could be caught. So the parts are looked at before the library sees them.
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
    growth = math.prod(_growth(part) for part in _parts(content.get(name)))
    if growth > MOST:
      times = f'{growth:,}' if growth < 10**9 else 'more than a billion'
      raise UserError(
        f'the {name} of {file} may make a text {times} times as long, and {MOST} is the most:'
        f' {remedy}'
      )
  for part in _parts(content.get('post_processor')):
    texts, around = _copies(part)
    if texts > MOST or around > MOST_AROUND:
      raise UserError(
        f'the post_processor of {file} writes a text {texts:,} times and {around:,} ids around it,'
        f' and {MOST} and {MOST_AROUND:,} are the most: {remedy}'
      )


def _parts(part: Any) -> Iterator[Mapping[str, Any]]:
  """Yields the parts of a sequence, or the part itself."""
  if not isinstance(part, Mapping):
    return
  for name in PARTS:
    for inner in part.get(name) or ():
      yield from _parts(inner)
  yield part


def _growth(part: Mapping[str, Any]) -> int:
  """Returns how many times as long a part may make a text.

  Only some parts have texts of their own. Others, such as Unicode's forms, do what the library
  knows; they lengthen unusual texts alone, and not again and again.
  """
  kind = part.get('type')
  if kind == 'Replace':
    pattern = part.get('pattern')
    given = pattern.get('String') if isinstance(pattern, Mapping) else None
    content = _size(part.get('content'))
    return math.ceil(content / len(given.encode())) if given else 1 + content
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


def _copies(part: Mapping[str, Any]) -> tuple[int, int]:
  """Returns how often a template has the text, and how many special ids it has."""
  if part.get('type') != 'TemplateProcessing':
    return 1, 0
  ids = {name: len(token['ids']) for name, token in part['special_tokens'].items()}
  names = [piece['SpecialToken']['id'] for piece in part['single'] if 'SpecialToken' in piece]
  return len(part['single']) - len(names), sum(ids.get(name, 0) for name in names)
