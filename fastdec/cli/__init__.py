"""The command `fastdec`, with a module for each of its subcommands.

Exit codes: 0: done; 1: a bug, with its traceback; 2: a mistake of the user, in one sentence on
stderr; 130: Ctrl-C; 141: the reader of the output has stopped (`| head`). A `UserNote`, which is
a warning, is a sentence on stderr too.
"""

import difflib
import functools
import importlib
import sys
from collections.abc import Sequence

from fastdec import __version__
from fastdec.errors import UserError
from fastdec.terminal import RED, leave, print_line, run_command

COMMANDS = {  # the module of a command has its name, with an underscore for a dash
  'generate': 'continue a prompt, or each prompt of a file',
  'chat': 'talk with a model',
  'translate': 'translate sentences, and mark what each call of the model wrote',
  'tune': 'find the fastest strategy for a model on this machine',
  'train-draft': 'train heads or a draft network for a model',
  'calibrate': 'find the tree that suits prediction heads',
  'pool': 'count n-grams of texts, as guesses for lookahead and prompt lookup',
  'convert': 'make a model folder from a fairseq checkpoint',
  'check': 'say what a folder holds',
  'demo': 'show greedy decoding and a strategy side by side, in a browser',
}
REMOVED = {  # commands of earlier versions, and what to use instead
  'shortlist': 'give fastdec train-draft --words=N, or call fd.shortlist in Python'
}
# With these flags, these commands keep their work on the disk, and resume it when called again.
RESUMED = {'train-draft': '--out', 'generate': '--output'}
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
    code = run_command(functools.partial(_run, words), interrupted)
  except (MemoryError, RuntimeError) as error:
    if isinstance(error, RuntimeError) and 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    print_line('the memory is too small: lower --max-len or --rows, or give --dtype=int8', RED)
    code = 1
  if argv is None:
    leave(code)
  return code


def _run(words: list[str]) -> None:
  """Runs the command that the first word names, with the other words."""
  if not words or words[0] in ('-h', '--help'):
    lines = [f'{name:<12} {purpose}' for name, purpose in COMMANDS.items()]
    print(HELP.format('\n  '.join(lines)))
    return
  if words[0] == '--version':
    print(f'fastdec {__version__}')
    return
  name, *rest = words
  if name in REMOVED:
    raise UserError(f'fastdec {name} is no longer supported: {REMOVED[name]}')
  if name not in COMMANDS:
    near = difflib.get_close_matches(name, COMMANDS, 1)
    advice = f'give one of {", ".join(COMMANDS)}'
    if near:
      advice = f'did you mean {near[0]}?'
    raise UserError(f'unknown command {name!r}: {advice}')
  importlib.import_module(f'fastdec.cli.{name.replace("-", "_")}').main(rest)
