"""The command `fastdec`, with a module for each thing that it does.

Exit codes: 0 done; 1 a bug, which keeps its traceback; 2 a mistake of the user, which is one
sentence on stderr; 130 Ctrl-C; 141 when whoever reads the output has stopped (`| head`). A
`UserNote`, which is a warning, is a sentence on stderr too.
"""

import contextlib
import difflib
import errno
import functools
import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from fastdec import __version__, extras
from fastdec.errors import UserError, UserNote

COMMANDS = {  # the module of a command has its name, with an underscore for a dash
  'generate': 'continue a prompt, or each prompt of a file',
  'chat': 'talk with a model',
  'translate': 'translate sentences, and mark what each call of the model wrote',
  'tune': 'find the fastest strategy for a model on this machine',
  'train-draft': 'train heads or a draft network for a model',
  'calibrate': 'find the tree that suits prediction heads',
  'pool': 'count n-grams of texts, as guesses for lookahead and prompt lookup',
  'shortlist': "shorten a draft network's vocabulary",
  'convert': 'make a model folder of a fairseq checkpoint',
  'check': 'say what a folder holds',
  'demo': 'show greedy decoding and a strategy side by side, in a browser',
}
# These commands, with these flags, keep their work on the disk, and take it up again.
RESUMED = {'train-draft': '--out', 'generate': '--output'}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF}  # errors of whatever takes the output
PLATFORMS = 'JAX_PLATFORMS', 'JAX_PLATFORM_NAME'  # variables that tell JAX where to compute
RED, YELLOW = 31, 33  # colours of a terminal
HELP = """usage: fastdec COMMAND ...

  {}

Example: fastdec generate --model=FOLDER --prompt='A man in'
fastdec COMMAND --help says more."""


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command, and returns its exit code.

  Args:
    argv: the words after `fastdec`. None: those of this process, which ends with the command.
  """
  words = sys.argv[1:] if argv is None else list(argv)
  interrupted = 'Interrupted'
  flag = RESUMED.get(words[0]) if words else None
  if flag is not None and any(word.startswith(flag) for word in words):
    interrupted = 'Interrupted: the same command resumes'
  try:
    code = ended(functools.partial(_run, words), interrupted)
  except (MemoryError, RuntimeError) as error:
    if isinstance(error, RuntimeError) and 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    _print_line('the memory does not suffice: lower --max-len or --rows, or give --dtype=int8', RED)
    code = 1
  if argv is None:
    leave(code)
  return code


def ended(work: Callable[[], object], interrupted: str) -> int:
  """Does a command's work, and returns its exit code.

  Args:
    work: raises UserError for a mistake, which is a sentence on stderr then.
    interrupted: the sentence after Ctrl-C.
  """
  _escape_streams()
  try:
    with warnings.catch_warnings(), extras.explained(), _device_explained():
      _show_notes()
      work()
      if sys.stdout is not None:
        sys.stdout.flush()
  except UserError as error:
    _print_line(str(error), RED)
    return 2
  except KeyboardInterrupt:
    _print_line(interrupted, RED)
    return 130
  except (BrokenPipeError, SystemExit) as error:
    # Rich turns a broken pipe into a SystemExit.
    if any(isinstance(cause, BrokenPipeError) for cause in chain(error)):
      _drop_output()
      return 141
    if not isinstance(error, SystemExit) or error.code:
      raise
  except OSError as error:
    if error.errno not in FULL or error.filename is not None:
      raise
    _drop_output()
    _print_line(f'the output cannot be written ({error.strerror}): give it another place', RED)
    return 2
  return 0


def leave(code: int) -> NoReturn:
  """Ends the process, after Ctrl-C at once.

  XLA may still compute then, and would crash when Python takes its parts away at an ordinary end.
  """
  if code == 130:
    with contextlib.suppress(OSError, AttributeError):  # None: closed
      sys.stdout.flush()
    os._exit(code)
  sys.exit(code)


def _escape_streams() -> None:
  """Makes streams of any encoding escape what they lack; what stdin lacks, `check_text` refuses."""
  for stream in (sys.stdin, sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):  # None: closed, as by >&-
      stream.reconfigure(errors='surrogateescape' if stream is sys.stdin else 'backslashreplace')


def _drop_output() -> None:
  """Lets what is still to be written vanish: Python flushes stdout at its end, which must work."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _device_explained() -> Iterator[None]:
  """Turns an error of JAX within the block into a UserError, if it finds no device at all."""
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
  """True if JAX can compute at all."""
  try:
    import jax

    return bool(jax.devices())
  except Exception:  # its kind depends on the platform: AssertionError, RuntimeError, ...
    return False


def _run(words: list[str]) -> None:
  """Runs the command that the first word names with the others."""
  if not words or words[0] in ('-h', '--help'):
    lines = [f'{name:<12} {purpose}' for name, purpose in COMMANDS.items()]
    print(HELP.format('\n  '.join(lines)))
    return
  if words[0] == '--version':
    print(f'fastdec {__version__}')
    return
  name, *rest = words
  if name not in COMMANDS:
    near = difflib.get_close_matches(name, COMMANDS, 1)
    advice = f'did you mean {near[0]}?' if near else f'known are {", ".join(COMMANDS)}'
    raise UserError(f'there is no command {name!r}: {advice}')
  importlib.import_module(f'fastdec.cli.{name.replace("-", "_")}').main(rest)


def _show_notes() -> None:
  """Shows a `UserNote` as its sentence; other warnings are shown as before."""
  others = warnings.showwarning

  def show(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
    if issubclass(category, UserNote):
      _print_line(str(message), YELLOW)
    else:
      others(message, category, *args, **kwargs)

  warnings.showwarning = show


def _print_line(text: str, colour: int) -> None:
  """Prints a sentence on stderr, in an ANSI colour if that is a terminal."""
  if sys.stderr is None:
    return
  line = ' '.join(text.split())
  if sys.stderr.isatty():
    line = f'\x1b[{colour}m{line}\x1b[0m'
  print(line, file=sys.stderr)


def chain(error: BaseException | None) -> Iterator[BaseException]:
  """Yields the error, and then the errors that were being handled when it was raised."""
  while error is not None:
    yield error
    error = error.__context__
