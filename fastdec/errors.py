"""The error for a user's mistake: a sentence with the value, the allowed ones, and the remedy."""

import re

BEGINNING, END = 900, 500  # characters of a longer message that are kept
# Characters that control a terminal or that it cannot show: controls, surrogates, directions.
UNSEEN = re.compile(r'[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]')


class UserError(ValueError):
  """A mistake in the user's input. Launchers print only its message and exit with code 2.

  A message may quote a file, so long messages are cut and control characters are escaped.
  """

  def __init__(self, message: str) -> None:
    if len(message) > BEGINNING + END:
      message = f'{message[:BEGINNING]} ... {message[-END:]}'
    super().__init__(UNSEEN.sub(lambda match: repr(match[0])[1:-1], message))


class UserNote(UserWarning):
  """A warning that needs no action, in a sentence. Launchers print only its message."""
