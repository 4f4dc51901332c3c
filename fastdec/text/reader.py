"""Readers that turn a stream of tokens into text, to its end or to a stop string."""

from collections.abc import Sequence
from typing import Any

from fastdec.hub.tokenizers.spelling import BYTE

FEW = 64  # tokens that are decoded again with every block, at most, beside the block


class Reader:
  """Text of tokens as they come; a character waits until all its bytes are there.

  Tokens of single bytes, '<0xE4>', wait for the first token of another kind: many tokenizers decode
  all bytes side by side as wrong if one of them is.

  Tokens are decoded together with earlier ones, because the text of a token depends on its place:
  the same piece is ' man' within a sentence, and 'man' at its beginning. The last few tokens are
  enough once they alone decode to the end of the whole text. So the time for a long stream is
  proportional to its length.
  """

  UNKNOWN = '\ufffd'  # a decoder's output for an incomplete character

  def __init__(self, tokenizer: Any, context: Sequence[int]) -> None:
    self._tokenizer, self._ids = tokenizer, list(context)
    self._whole = self._shown = tokenizer.decode(self._ids)

  def add(self, tokens: Sequence[int]) -> str:
    """Returns the text that these tokens complete."""
    self._ids += [int(token) for token in tokens]
    self._whole = self._tokenizer.decode(self._ids)
    said = self._say(self._settled())
    if len(self._ids) > FEW and self._shown == self._whole:
      self._forget()
    return said

  def finish(self) -> str:
    """Returns the text that still waits for more tokens."""
    return self._say(self._whole)

  @property
  def waiting(self) -> str:
    """Text so far behind the text that was returned; more tokens may change it."""
    return self._whole[len(self._shown) :]

  def _settled(self) -> str:
    """Returns the text that no further token changes."""
    count = len(self._ids)
    while count and self._is_open(self._ids[count - 1]):
      count -= 1
    whole = self._whole if count == len(self._ids) else self._tokenizer.decode(self._ids[:count])
    return whole.rstrip(self.UNKNOWN)

  def _is_open(self, token: int) -> bool:
    """True for a token of one byte, and for one without a text, which ends no bytes before it."""
    if not callable(getattr(self._tokenizer, 'pieces', None)):  # a user's own may have none
      return False
    is_byte = BYTE.fullmatch(self._tokenizer.pieces([token])[0]) is not None
    return is_byte or not self._tokenizer.decode([token])

  def _say(self, text: str) -> str:
    new = text[len(self._shown) :]
    self._shown += new
    return new

  def _forget(self) -> None:
    """Drops the first tokens, if the last decode alike without them.

    None of these is an end, which would hide the tokens behind it."""
    last = self._ids[-FEW // 4 :]
    text = self._tokenizer.decode(last)
    if text.strip() and self.UNKNOWN not in text and self._whole.endswith(text):
      self._ids, self._whole, self._shown = last, text, text


class Stopping:
  """Text of tokens as they come, up to the first of some strings.

  Attributes:
    found: the string that ends the text: the one that begins first, once the text holds any.
    count: tokens read. The last of them completes the string, and later ones are not read.
  """

  def __init__(self, reader: Reader, stops: Sequence[str]) -> None:
    self.found: str | None = None
    self.count = 0
    self._reader, self._stops = reader, stops
    self._text, self._said = '', 0

  def add(self, tokens: Sequence[int]) -> str:
    """Returns the text that these tokens complete, without what may begin a string."""
    for part in [[token] for token in tokens] if self._stops else [tokens]:
      if self.found is not None:
        break
      self.count += len(part)
      begun = len(self._text)
      self._text += self._reader.add(part)
      self._look(self._text + self._reader.waiting, begun)
    return self._say(0 if self.found else self._waiting())

  def finish(self) -> str:
    """Returns the text that still waits for more tokens."""
    if self.found is None:
      self._text += self._reader.finish()
    return self._say(0)

  def _look(self, text: str, begun: int) -> None:
    """Looks for the strings where they end behind the text that was known before."""
    places = []
    for stop in self._stops:
      place = text.find(stop, max(begun - len(stop) + 1, 0))
      if place >= 0:
        places.append((place, stop))
    if places:
      place, self.found = min(places, key=lambda one: one[0])
      self._text = text[:place]

  def _waiting(self) -> int:
    """Returns the length of the end of the text that may begin a string."""
    for size in range(max(map(len, self._stops), default=1) - 1, 0, -1):
      if any(stop.startswith(self._text[-size:]) for stop in self._stops):
        return min(size, len(self._text))
    return 0

  def _say(self, waiting: int) -> str:
    end = len(self._text) - waiting
    said, self._said = self._text[self._said : end], max(end, self._said)
    return said
