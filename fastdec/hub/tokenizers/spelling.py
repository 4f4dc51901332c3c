"""The bytes that each piece of a tokenizer writes; constraints on texts need them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

BYTE = re.compile('<0x[0-9A-F]{2}>')
SHOWN = (*range(33, 127), *range(161, 173), *range(174, 256))  # bytes that GPT-2 writes as they are
OTHERS = [byte for byte in range(256) if byte not in SHOWN]
LETTERS = {chr(byte): byte for byte in SHOWN} | {chr(256 + i): x for i, x in enumerate(OTHERS)}
OF_SPACES = {'Replace', 'ByteFallback', 'Fuse', 'Strip', 'Metaspace'}  # `spell_spaces` reads these

CLEANED = (  # what clean_up_tokenization_spaces replaces, in this order
  (' .', '.'), (' ?', '?'), (' !', '!'), (' ,', ','), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
  (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
UNCLEAR = re.compile(r" (n'?|'[vr]?)?$")  # an end of a text that may be clean_up with what follows


def clean_up(text: str) -> str:
  """Returns a text without the spaces between the parts of English words and punctuation.

  >>> clean_up("I do n't , he 's .")
  "I don't, he's."
  """
  for apart, together in CLEANED:
    text = text.replace(apart, together)
  return text


def spell_spaces(piece: str) -> bytes:
  """Returns the bytes of a piece in which '▁' is a space, and '<0xE4>' a byte.

  >>> spell_spaces('▁man'), spell_spaces('<0xE4>')
  (b' man', b'\\xe4')
  """
  if BYTE.fullmatch(piece):
    return bytes([int(piece[3:5], 16)])
  return piece.replace('▁', ' ').encode()


def spell_letters(piece: str) -> bytes:
  """Returns the bytes of a piece in which each letter means one byte, as in GPT-2.

  A piece with other letters, such as an added token, is its own text.

  >>> spell_letters('Ġman'), spell_letters('two words')
  (b' man', b'two words')
  """
  try:
    return bytes(LETTERS[letter] for letter in piece)
  except KeyError:
    return piece.encode()


def choose_speller(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes] | None:
  """Returns the function that spells pieces for a decoder of tokenizer.json; None if none can."""
  if decoder is None:
    return None
  kinds, replaced = set(), {'▁'}
  for part in decoder.get('decoders', [decoder]):
    kinds.add(part['type'])
    if part['type'] == 'Replace':
      replaced.add(part['pattern'].get('String'))
  if kinds == {'ByteLevel'}:
    return spell_letters
  if kinds <= OF_SPACES and kinds & {'Replace', 'Metaspace'} and replaced == {'▁'}:
    return spell_spaces
  return None
