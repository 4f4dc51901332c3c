"""The error for a user's mistake: a sentence on what was given, what is allowed, what to do."""


class UserError(ValueError):
  """A mistake in the user's input. Launchers print its message alone and exit with code 2."""


class UserNote(UserWarning):
  """A warning that needs no action, in a sentence. Launchers print its message alone."""
