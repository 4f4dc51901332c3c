"""What every command shares: its exit code, ~ in its words, times in them, and its console.

`fastdec` and the experiments both end by `run_command`: a mistake of the user is one sentence on
stderr, and so are Ctrl-C and a `UserNote`, which is a warning. A bug keeps its traceback.
"""

import argparse
import contextlib
import errno
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fastdec import extras
from fastdec.errors import UserError, UserNote

if TYPE_CHECKING:  # `fastdec --help` does not wait for it
  import rich.console

# Flags in which ~ is a character.
TEXTS = {'--prompt', '--system', '--regex', '--text', '--stop', '--template'}
HOME = re.compile(r"""(?<=[=,'"])~[^/,:'"]*(?=[/,:'"]|$)""")
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF}  # the output takes no more
PLATFORMS = 'JAX_PLATFORMS', 'JAX_PLATFORM_NAME'  # variables that tell JAX where to compute
RED, YELLOW = 31, 33  # colours of a terminal


def run_command(work: Callable[[], object], interrupted: str) -> int:
  """Does the work of a command and returns its exit code: 0, 2, 130 or 141.

  Args:
    work: raises UserError for a mistake of the user, which is printed on stderr.
    interrupted: the sentence that Ctrl-C prints.
  """
  # Escape the characters that a stream's encoding lacks; `check_text` refuses those in stdin.
  for stream in (sys.stdin, sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):  # None: closed, as by >&-
      stream.reconfigure(errors='surrogateescape' if stream is sys.stdin else 'backslashreplace')
  try:
    with warnings.catch_warnings(), extras.explained(), _device_explained():
      _show_notes()
      work()
      if sys.stdout is not None:
        sys.stdout.flush()
  except UserError as error:
    print_line(str(error), RED)
    return 2
  except KeyboardInterrupt:
    print_line(interrupted, RED)
    return 130
  except (BrokenPipeError, SystemExit) as error:
    # Rich turns a broken pipe into a SystemExit.
    if any(isinstance(cause, BrokenPipeError) for cause in walk_causes(error)):
      _drop_output()
      return 141
    if not isinstance(error, SystemExit) or error.code:
      raise
  except OSError as error:
    if error.errno not in FULL or error.filename is not None:
      raise
    _drop_output()
    print_line(f'the output cannot be written ({error.strerror}): give it another place', RED)
    return 2
  return 0


def leave(code: int) -> NoReturn:
  """Ends the process. After Ctrl-C it ends at once: XLA may still be computing, and would crash in
  Python's ordinary shutdown.
  """
  if code == 130:
    with contextlib.suppress(OSError, AttributeError):  # None: closed
      sys.stdout.flush()
    os._exit(code)
  sys.exit(code)


def _show_notes() -> None:
  """Shows a `UserNote` as its sentence; other warnings are shown as before."""
  others = warnings.showwarning

  def show(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
    if issubclass(category, UserNote):
      print_line(str(message), YELLOW)
    else:
      others(message, category, *args, **kwargs)

  warnings.showwarning = show


def print_line(text: str, colour: int) -> None:
  """Prints a sentence on stderr, in an ANSI colour if that is a terminal."""
  if sys.stderr is None:
    return
  line = ' '.join(text.split())
  if sys.stderr.isatty():
    line = f'\x1b[{colour}m{line}\x1b[0m'
  print(line, file=sys.stderr)


def _drop_output() -> None:
  """Discards the output that is left, so that Python can flush stdout when it ends."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def walk_causes(error: BaseException | None) -> Iterator[BaseException]:
  """Yields the error, then the errors that were being handled when it was raised."""
  while error is not None:
    yield error
    error = error.__context__


@contextlib.contextmanager
def _device_explained() -> Iterator[None]:
  """Turns an error of JAX in the block into a UserError if JAX finds no device."""
  try:
    yield
  except (AssertionError, RuntimeError):
    names = [name for name in PLATFORMS if os.environ.get(name)]
    if not names or _has_device():
      raise
    asked = ' '.join(f'{name}={os.environ[name]}' for name in names)
    raise UserError(
      f'{asked} asks for a device that is not here, or that JAX has no plugin for: unset it, or'
      ' install "jax[cuda13]" for an NVIDIA GPU'
    ) from None


def _has_device() -> bool:
  """True if JAX finds a device."""
  try:
    import jax

    return bool(jax.devices())
  except Exception:  # its kind depends on the platform: AssertionError, RuntimeError, ...
    return False


def expand_home(words: Sequence[str]) -> list[str]:
  """Expands ~ after the = of a flag and after its commas, where a shell does not."""
  expanded = []
  for word in words:
    flag, equals, _ = word.partition('=')
    if equals and flag.startswith('-') and flag not in TEXTS:
      word = HOME.sub(lambda home: os.path.expanduser(home[0]), word)
    expanded.append(word)
  return expanded


def parse_seconds(text: str) -> float:
  """The seconds in a time such as 540s, 9m, 1.5h, or a plain number; the type of a flag."""
  match = re.fullmatch(r'(\d{1,9}(?:\.\d{1,9})?)([smh]?)', text, re.ASCII)
  if match is None:
    raise argparse.ArgumentTypeError(
      f'={text} is not possible: give seconds, or a number with s, m or h, such as 540s'
    )
  return float(match[1]) * {'': 1, 's': 1, 'm': 60, 'h': 3600}[match[2]]


def plain_console() -> 'rich.console.Console':
  """A console that prints text as it is: no markup, no guessed colours, no breaks in long lines."""
  import rich.console

  return rich.console.Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
