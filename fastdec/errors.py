"""The error for a user's mistake: a sentence on what was given, what is allowed, what to do."""

import re

BEGINNING, END = 900, 500  # characters of a longer message that are kept
# what a terminal would obey, or cannot show: controls, half characters, turns of direction
UNSEEN = re.compile(r'[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]')


class UserError(ValueError):
  """A mistake in the user's input. Launchers print its message alone and exit with code 2.

  A message may quote what a file says, so it is cut where it is long, and shows no controls.
  """

  def __init__(self, message: str) -> None:
    if len(message) > BEGINNING + END:
      message = f'{message[:BEGINNING]} ... {message[-END:]}'
    super().__init__(UNSEEN.sub(lambda match: repr(match[0])[1:-1], message))


class UserNote(UserWarning):
  """A warning that needs no action, in a sentence. Launchers print its message alone."""
