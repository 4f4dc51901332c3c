"""From tokens to text, while they come."""

from collections.abc import Sequence
from typing import Any

FEW = 64  # tokens that are read again with every block, at most, and what a block brings


class Reader:
  """Turns tokens into text as they come: a character whose bytes are not all there waits for the
  rest.

  Tokens are decoded together with those before them, because what a token says depends on where it
  stands: the same piece is ' man' within a sentence, and 'man' at its beginning. The last few are
  enough, once these alone read as the end of the whole text: a long stream takes time in proportion
  to its length.
  """

  UNKNOWN = '\ufffd'  # what decoders make of an incomplete character

  def __init__(self, tokenizer: Any, context: Sequence[int]) -> None:
    self._tokenizer, self._ids = tokenizer, list(context)
    self._whole = self._shown = tokenizer.decode(self._ids)

  def add(self, tokens: Sequence[int]) -> str:
    """What can be said now."""
    self._ids += [int(token) for token in tokens]
    self._whole = self._tokenizer.decode(self._ids)
    said = self._say(self._whole.rstrip(self.UNKNOWN))
    if len(self._ids) > FEW and self._shown == self._whole:
      self._forget()
    return said

  def finish(self) -> str:
    """What had waited for more."""
    return self._say(self._whole)

  def _say(self, text: str) -> str:
    new = text[len(self._shown) :]
    self._shown += new
    return new

  def _forget(self) -> None:
    """Leaves out the first tokens, where the last read alike without them; none of them is an end,
    which hides those behind it."""
    last = self._ids[-FEW // 4 :]
    text = self._tokenizer.decode(last)
    if text.strip() and self.UNKNOWN not in text and self._whole.endswith(text):
      self._ids, self._whole, self._shown = last, text, text
