"""Flags of the commands: argparse, but each mistake is a `UserError`."""

import argparse
import difflib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fastdec.errors import UserError
from fastdec.files import parse_json
from fastdec.terminal import TEXTS, expand_home, parse_seconds

MOST = 2**31 - 1  # of a whole number


class Parser(argparse.ArgumentParser):
  """The flags of a command.

  Args:
    name: of the command.
    about: the docstring of its module, which `--help` shows around the flags.
  """

  def __init__(self, name: str, about: str | None) -> None:
    summary, _, rest = (about or '').partition('\n\n')
    super().__init__(f'fastdec {name}', description=summary, epilog=rest, allow_abbrev=False)
    self.formatter_class = argparse.RawDescriptionHelpFormatter

  def read(self, words: Sequence[str]) -> argparse.Namespace:
    """Reads the flags; other words are mistakes."""
    args, rest = self.read_with_words(words)
    if rest:
      raise UserError(f'{rest[0]!r} is not a flag: {self.prog} --help lists them')
    return args

  def read_with_words(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Reads the flags. Returns them and the other words, to which all words after a '--' belong."""
    words = list(words)
    end = words.index('--') if '--' in words else len(words)

    # Name an unknown flag first: argparse would name a missing one, maybe what was misspelt.
    known = list(self._option_string_actions)
    for word in words[:end]:
      flag = word.split('=')[0]
      if flag.startswith('--') and flag not in known:
        near = difflib.get_close_matches(flag, known, 1)
        advice = ''
        if near:
          advice = f'did you mean {near[0]}? '
        elif '--template' in known:
          name = flag.lstrip('-').replace('-', '_')
          advice = f"a chat template's variable is --template={name}=VALUE, and "
        raise UserError(f'unknown flag {flag}: {advice}{self.prog} --help lists them')

    args, rest = self.parse_known_args(expand_home(words[:end]))
    for name, value in vars(args).items():
      flag = f'--{name.replace("_", "-")}'
      if (value == '' or (isinstance(value, list) and '' in value)) and flag not in TEXTS:
        raise UserError(f'{flag}= is empty: give a value, or leave the flag out')
    return args, [*rest, *words[end + 1 :]]

  def error(self, message: str) -> NoReturn:
    """Raises argparse's mistake as ours: 'argument --rows: =x is ...' as '--rows=x is ...'."""
    message = re.sub(r'^argument (--[\w-]+)[^:]*: =', r'\1=', message)
    message = re.sub(r'^argument (--[\w-]+)[^:]*: ', r'\1: ', message)
    message = re.sub(
      r'^the following arguments are required: (.*)', rf'{self.prog} needs \1', message
    )
    raise UserError(f'{message}: see {self.prog} --help')


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
  """Returns the type of a flag that takes a whole number."""

  def read(text: str) -> int:
    value = None
    if re.fullmatch(r'[+-]?\d+', text, re.ASCII):
      value = int(text[:20])  # Python limits the digits, and 20 are out of range
      if least <= value <= most:
        return int(text)
    allowed = f'{least} to {most}'
    if most == MOST and (value is None or value < least):
      allowed = f'{least} or more'
    raise _impossible(text, f'give a whole number, {allowed}')

  return read


def number(text: str) -> float:
  """Reads the value of a flag that takes a number, 0 or more."""
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 <= value < math.inf:
    raise _impossible(text, 'give a number, 0 or more')
  return value


def wholes(least: int) -> Callable[[str], list[int]]:
  """Returns the type of a flag that takes whole numbers with commas between them."""

  def read(text: str) -> list[int]:
    words = text.split(',')
    if not all(re.fullmatch(r'[0-9]{1,3}', word) and int(word) >= least for word in words):
      raise _impossible(text, f'give whole numbers from {least} to 999, such as 4,8')
    return list(dict.fromkeys(map(int, words)))

  return read


def one_of(*values: str) -> Callable[[str], str]:
  """Returns the type of a flag that takes one of some words."""

  def read(text: str) -> str:
    if text not in values:
      raise _impossible(text, f'give one of {", ".join(values)}')
    return text

  return read


def duration(text: str) -> float:
  """Reads the value of a flag that takes a time with its unit: 540s, 9m, 1.5h. Returns seconds."""
  value = parse_seconds(text)
  if text[-1] not in 'smh' or not value:
    raise _impossible(text, 'give a time with its unit, s, m or h, such as 90s or 2m')
  return value


def some_text(text: str) -> str:
  """Reads the value of a flag that takes a text, which must not be empty."""
  if not text:
    raise _impossible(text, 'give some text')
  return text


def variable(text: str) -> tuple[str, Any]:
  """Reads the value of a flag that takes a chat template's variable: its name, and JSON or text."""
  name, equals, value = text.partition('=')
  if not equals or not name.isidentifier():
    raise _impossible(text, 'give a name and a value, such as enable_thinking=false')
  words = {'True': True, 'False': False, 'None': None}
  if value in words:
    return name, words[value]
  try:
    return name, parse_json(value)
  except ValueError:
    return name, value


def _impossible(text: str, remedy: str) -> argparse.ArgumentTypeError:
  """Returns the error of a flag's value; the '=' before the text marks it for `Parser.error`."""
  return argparse.ArgumentTypeError(f'={text} is not possible: {remedy}')
