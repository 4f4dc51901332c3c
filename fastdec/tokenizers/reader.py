"""A reader that turns a stream of tokens into text."""

from collections.abc import Sequence
from typing import Any

FEW = 64  # tokens that are decoded again with every block, at most, beside the block


class Reader:
  """Text of tokens as they come; a character waits until all its bytes are there.

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
    said = self._say(self._whole.rstrip(self.UNKNOWN))
    if len(self._ids) > FEW and self._shown == self._whole:
      self._forget()
    return said

  def finish(self) -> str:
    """Returns the text that still waits for more tokens."""
    return self._say(self._whole)

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
