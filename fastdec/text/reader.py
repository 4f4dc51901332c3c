"""Readers that turn a stream of tokens into text, to its end or to a stop string."""

from collections.abc import Sequence
from typing import Any

from fastdec.hub.tokenizers.spelling import BYTE, UNCLEAR

FORGETS = 64  # with more tokens, the first are dropped: all kept ones are decoded with each block
KEPT = 16  # tokens that stay, since the text of a token depends on those before it


class Reader:
  """Text of tokens as they come; a character waits until all its bytes are there.

  Tokens of single bytes, '<0xE4>', wait for the first token of a different kind: many tokenizers
  decode a run of bytes as wrong if one of them is.

  Tokens are decoded together with earlier ones, because the text of a token depends on its place:
  the same piece is ' man' within a sentence and 'man' at its start. The last few tokens are enough
  once they decode to the end of the whole text. So the time for a long stream is proportional to
  its length.
  """

  UNKNOWN = '\ufffd'  # a decoder's output for an incomplete character

  def __init__(self, tokenizer: Any, context: Sequence[int]) -> None:
    self._tokenizer, self._ids = tokenizer, list(context)
    self._whole = self._shown = tokenizer.decode(self._ids)

  def add(self, tokens: Sequence[int]) -> str:
    """Returns the text that these tokens complete."""
    self._ids += [int(token) for token in tokens]
    self._whole = self._tokenizer.decode(self._ids)
    text = self._show(self._final_text())
    if len(self._ids) > FORGETS and self._shown == self._whole:
      # Drop the first tokens, if the last ones decode to the same text without them. Wait if these
      # hold an end token, which would hide the tokens after it.
      last = self._ids[-KEPT:]
      kept = self._tokenizer.decode(last)
      if kept.strip() and self.UNKNOWN not in kept and self._whole.endswith(kept):
        self._ids, self._whole, self._shown = last, kept, kept
    return text

  def finish(self) -> str:
    """Returns the text that still waits for more tokens."""
    return self._show(self._whole)

  @property
  def waiting(self) -> str:
    """The text after the part that was returned; more tokens may change it."""
    return self._whole[len(self._shown) :]

  def _final_text(self) -> str:
    """Returns the text that no further token changes."""
    count = len(self._ids)
    has_pieces = callable(getattr(self._tokenizer, 'pieces', None))  # a user's own may have none
    while has_pieces and count:
      # A token of one byte waits, and so does one without text, which does not end earlier bytes.
      token = self._ids[count - 1]
      is_byte = BYTE.fullmatch(self._tokenizer.pieces([token])[0]) is not None
      if not is_byte and self._tokenizer.decode([token]):
        break
      count -= 1
    text = self._whole
    if count < len(self._ids):
      text = self._tokenizer.decode(self._ids[:count])
    text = text.rstrip(self.UNKNOWN)
    if getattr(self._tokenizer, 'cleans', False):
      text = UNCLEAR.sub('', text)
    return text

  def _show(self, text: str) -> str:
    """Returns the part of the text so far that was not returned before."""
    new = text[len(self._shown) :]
    self._shown += new
    return new


class StopReader:
  """Text of tokens as they come, up to the first of some strings.

  Args:
    tokenizer, context: as of a `Reader`.
    stops: the strings.
    with_special: a string may hold special tokens, such as <|im_end|>. They are in the text that is
      searched, but not in the text that is returned.

  Attributes:
    stop: the string that ends the text, and of several strings the one that begins first; None if
      the text holds none.
    count: tokens read. The last of them completes the string, and later ones are not read.
  """

  def __init__(
    self, tokenizer: Any, context: Sequence[int], stops: Sequence[str], with_special: bool = True
  ) -> None:
    self.stop: str | None = None
    self.count = 0
    self._reader, self._stops = Reader(tokenizer, context), stops
    self._special: dict[int, str] = {}
    if with_special:
      # Those that occur in some string; a user's own tokenizer may have none.
      for token, name in getattr(tokenizer, 'special', {}).items():
        if any(name in stop for stop in stops):
          self._special[token] = name
    self._text = ''  # with these special tokens
    self._hidden: list[tuple[int, int]] = []  # their places in it
    self._returned = 0  # characters of the text

  def add(self, tokens: Sequence[int]) -> str:
    """Returns the text that these tokens complete, without what may begin a string."""
    if not self._stops:
      self.count += len(tokens)
      self._text += self._reader.add(tokens)
      return self._take(len(self._text))
    # One token at a time, so that `count` stops at the one that completes a string.
    for token in map(int, tokens):
      if self.stop is not None:
        break
      self.count += 1
      before = len(self._text)
      self._text += self._reader.add([token])
      if token in self._special:  # which follows all text before it
        self._text += self._reader.finish()
        content = self._special[token]
        self._hidden.append((len(self._text), len(self._text) + len(content)))
        self._text += content
      self._find_stop(self._text + self._reader.waiting, before)
    if self.stop is not None:
      return self._take(len(self._text))
    return self._take(len(self._text) - self._count_waiting())

  def finish(self) -> str:
    """Returns the text that still waits for more tokens."""
    if self.stop is None:
      self._text += self._reader.finish()
    return self._take(len(self._text))

  def _find_stop(self, text: str, before: int) -> None:
    """Finds the first string that ends after `before` characters, and cuts the text before it."""
    places = []
    for stop in self._stops:
      place = text.find(stop, max(before - len(stop) + 1, 0))
      if place >= 0:
        places.append((place, stop))
    if places:
      place, self.stop = min(places, key=lambda pair: pair[0])
      self._text = text[:place]

  def _count_waiting(self) -> int:
    """Returns the length of the end of the text that may begin a string."""
    tail, longest = self._text[self._returned :], 0
    for stop in self._stops:
      place = tail.find(stop[0], max(len(tail) - len(stop) + 1, 0))
      while place >= 0 and not stop.startswith(tail[place:]):
        place = tail.find(stop[0], place + 1)
      if place >= 0:
        longest = max(longest, len(tail) - place)
    return longest

  def _take(self, end: int) -> str:
    """Returns the text up to this place that was not returned before, without special tokens."""
    begin, end = self._returned, max(end, self._returned)
    self._returned = end
    text = ''
    for first, last in self._hidden:
      if first > begin:
        text += self._text[begin : min(first, end)]
      begin = max(begin, min(last, end))
    return text + self._text[begin:end]
