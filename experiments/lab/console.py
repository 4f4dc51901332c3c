"""The console that experiments print to."""

from rich.console import Console


def plain_console() -> Console:
  """Prints text as it is: no markup, emoji or guessed colours in it, and no breaks in long
  lines."""
  return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
