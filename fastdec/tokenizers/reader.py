"""From tokens to text, while they come."""

from collections.abc import Sequence
from typing import Any


class Reader:
  """Turns tokens into text as they come: a character whose bytes are not all there waits for the rest.

  Tokens are decoded together with all before them, because what a token says depends on where it stands: the same
  piece is ' man' within a sentence, and 'man' at its beginning.
  """

  UNKNOWN = '\ufffd'  # what decoders make of an incomplete character

  def __init__(self, tokenizer: Any, context: Sequence[int]) -> None:
    self._tokenizer, self._ids = tokenizer, list(context)
    self._whole = self._shown = tokenizer.decode(self._ids)

  def add(self, tokens: Sequence[int]) -> str:
    """What can be said now."""
    self._ids += [int(token) for token in tokens]
    self._whole = self._tokenizer.decode(self._ids)
    return self._say(self._whole.rstrip(self.UNKNOWN))

  def finish(self) -> str:
    """What had waited for more."""
    return self._say(self._whole)

  def _say(self, text: str) -> str:
    new = text[len(self._shown) :]
    self._shown += new
    return new
