"""The bytes that each piece of a tokenizer writes; constraints on texts need them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

BYTE = re.compile('<0x[0-9A-F]{2}>')
SHOWN = (*range(33, 127), *range(161, 173), *range(174, 256))  # bytes that GPT-2 writes as they are
OTHERS = [byte for byte in range(256) if byte not in SHOWN]
LETTERS = {chr(byte): byte for byte in SHOWN} | {chr(256 + i): x for i, x in enumerate(OTHERS)}
OF_SPACES = {
  'Replace',
  'ByteFallback',
  'Fuse',
  'Strip',
  'Metaspace',
}  # decoders that `of_spaces` reads

CLEANED = (  # as clean_up_tokenization_spaces means it, in this order
  (' .', '.'), (' ?', '?'), (' !', '!'), (' ,', ','), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
  (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
UNCLEAR = re.compile(r" (n'?|'[vr]?)?$")  # an end of a text that may be cleaned with what follows


def cleaned(text: str) -> str:
  """Returns a text without the spaces that taking English words apart has left.

  >>> cleaned("I do n't , he 's .")
  "I don't, he's."
  """
  for apart, together in CLEANED:
    text = text.replace(apart, together)
  return text


def of_spaces(piece: str) -> bytes:
  """Returns the bytes of a piece in which '▁' is a space, and '<0xE4>' a byte.

  >>> of_spaces('▁man'), of_spaces('<0xE4>')
  (b' man', b'\\xe4')
  """
  is_byte = BYTE.fullmatch(piece) is not None
  return bytes([int(piece[3:5], 16)]) if is_byte else piece.replace('▁', ' ').encode()


def of_letters(piece: str) -> bytes:
  """Returns the bytes of a piece in which each letter stands for one, as in GPT-2.

  Another letter makes the piece stand for itself, as an added token does.

  >>> of_letters('Ġman'), of_letters('two words')
  (b' man', b'two words')
  """
  if not all(letter in LETTERS for letter in piece):
    return piece.encode()
  return bytes(LETTERS[letter] for letter in piece)


def speller(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes] | None:
  """Returns the function that reads pieces for a decoder of tokenizer.json; None: another kind."""
  parts = [] if decoder is None else decoder.get('decoders', [decoder])
  kinds = {part['type'] for part in parts}
  replaced = [part['pattern'].get('String') for part in parts if part['type'] == 'Replace']
  if kinds == {'ByteLevel'}:
    return of_letters
  is_known = kinds <= OF_SPACES and bool(kinds & {'Replace', 'Metaspace'})
  return of_spaces if is_known and set(replaced) <= {'▁'} else None
