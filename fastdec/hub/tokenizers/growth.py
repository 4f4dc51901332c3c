"""Limits on what a published tokenizer may take: time and memory to build it, and longer texts.

The library `tokenizers` runs its parts in this process. If it runs out of memory, it ends the
process, without an exception. So the parts are checked before the library sees them.
"""

import array
import base64
import math
import pathlib
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import damage
from fastdec.hub.tokenizers.spelling import BYTE

MOST = 256  # times; published files reach about 200, by SentencePiece's table of characters
MOST_AROUND = 2**16  # special ids that a template puts around a text
MOST_CUTS = 64  # of a piece, for each of its letters, on average
MOST_JOINS = 3  # pairs that make a piece, on average; published files have about 2
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


def find_joins(pieces: Sequence[str], file: pathlib.Path) -> Int[np.ndarray, 'n 3']:
  """Returns the pairs of pieces that make a piece, for SentencePiece's BPE, which has no merges.

  Each row has the ids of the first, of the second and of the whole piece.

  Raises:
    UserError: finding them would take much longer than reading the file.
  """
  ids, joins = {piece: i for i, piece in enumerate(pieces)}, array.array('q')
  if sum(len(piece) ** 2 for piece in ids) > MOST_CUTS * sum(map(len, ids)) + 2**20:
    raise damage(file, f'has pieces that are too long, such as {quote(max(ids, key=len))}')
  for piece, whole in ids.items():
    for cut in range(1, len(piece)):
      first = ids.get(piece[:cut])
      if first is not None and piece[cut:] in ids:
        joins.extend((first, ids[piece[cut:]], whole))
    if len(joins) > 3 * (MOST_JOINS * len(ids) + 2**16):
      raise damage(file, f'has too many pairs of pieces that make a piece, such as {quote(piece)}')
  return np.array(joins, np.int64).reshape(-1, 3)


def check_vocabulary(model: Mapping[str, Any], added: Container[str], file: pathlib.Path) -> None:
  """Raises UserError if a tokenizer has no pieces, or lacks most of the merges that make them.

  Args:
    model: "model" of a tokenizer.json.
    added: tokens that are found in a text before it is cut.
    file: the file, or the folder.
  """
  pieces, merges = model.get('vocab'), model.get('merges')
  if not pieces:
    raise damage(file, 'has no pieces')
  if not isinstance(pieces, Mapping) or not isinstance(merges, list):
    return
  joined = 0
  for piece in pieces:
    joined += len(piece) > 1 and piece not in added and not BYTE.fullmatch(piece)
  if 2 * len(merges) < joined:
    raise damage(file, f'has {len(merges):,} merges for {joined:,} pieces of several letters')
