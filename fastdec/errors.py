"""The one error for a user's mistake: a sentence that says what was given, what is allowed, what to
do."""


class UserError(ValueError):
  """A mistake in what the user gave. Launchers print its message alone and exit with code 2."""


class UserNote(UserWarning):
  """What a user should know and need not mend: a sentence, as `UserError`. Launchers print its
  message alone."""
