"""From the command line to frozen dataclasses: strict arguments, and settings that are locked.

The `get_config(arg)` of a page in configs/ reads its argument with `parse_arg`, words of the
command line set single settings, and the command makes a dataclass of the whole with
`to_dataclass`. Papers see no ConfigDict. `read_text` is the only reader of values in words.
"""

import ast
import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from ml_collections import ConfigDict

from fastdec.errors import UserError
from fastdec.fields import list_known, read, value_of

T = TypeVar('T')
Scalar = bool | int | float | str
UNKNOWN = int | float | str | None  # the annotation of None, and of the entries of ()
WORDS = {  # of bool; a flag of absl takes the same
  'true': True, 't': True, '1': True, 'false': False, 'f': False, '0': False,
}  # fmt: skip
OPENING, CLOSING, QUOTES = '([', ')]', '\'"'


class Config(ConfigDict):
  """Settings by name, parts included. It takes new values, but no new names.

  Attributes:
    hints: the annotation of each setting, by its dotted name; those of a page without a dataclass
      are the types of its values.
  """

  hints: Mapping[str, Any] = {}

  def hint_of(self, name: str, where: str) -> Any:
    """Returns the annotation of a setting, by its dotted name. If it is unknown or has parts, a
    UserError says `where`: how the command line gives it."""
    if name in self.hints:
      return self.hints[name]
    part, path = self, 'config'
    for word in name.split('.'):
      if not isinstance(part, ConfigDict):
        raise UserError(f'{where} is not possible: {path} is the value {part!r} and has no parts')
      if word not in part:
        advice = list_known(part)
        # A wrong name may be near one of this part, or be a setting of a different part.
        near = difflib.get_close_matches(word, list(part), 1)
        near += [setting for setting in self.hints if setting.endswith(f'.{name}')]
        near += difflib.get_close_matches(name, self.hints, 1)
        if near:
          advice = f'did you mean {near[0]}? {advice}'
        raise UserError(f"{where} is not possible: {path} has no key '{word}', {advice}")
      part, path = part[word], f'{path}.{word}'
    first = next(setting for setting in self.hints if setting.startswith(f'{name}.'))
    raise UserError(f'{where} is not possible: {path} has parts, so give one, such as {first}')

  def set(self, values: Mapping[str, Any]) -> None:
    """Sets settings, by their dotted names, to values of their annotations."""
    with self.ignore_type():  # a setting may change from None to a number
      self.update_from_flattened_dict(values)


def locked(**fields: Any) -> Config:
  """Returns a config with these settings; nested mappings become its parts."""
  config = Config(fields)
  object.__setattr__(config, 'hints', _hints_of(config))
  config.lock()
  return config


def config_of(settings: Any, **chosen: Scalar) -> Config:
  """Returns the config of a preset, which is a dataclass, with the choices of the argument as
  fields.

  Raises:
    UserError: the dataclass lacks a field of a choice.
  """
  for name in chosen:
    if not hasattr(settings, name):
      kind = type(settings).__name__
      raise UserError(
        f"{kind} lacks the field '{name}' that its config chooses: add {name}: str = ''"
      )
  settings = dataclasses.replace(settings, **chosen)
  config = locked(**dataclasses.asdict(settings))
  object.__setattr__(config, 'hints', _hints_of(settings))
  return config


def leaves_of(config: ConfigDict, path: str = '') -> dict[str, Any]:
  """Returns the values of all settings of a config, by their dotted names."""
  leaves: dict[str, Any] = {}
  for name, value in config.items():
    if isinstance(value, ConfigDict):
      leaves |= leaves_of(value, f'{path}{name}.')
    else:
      leaves[path + name] = value
  return leaves


def _hints_of(part: Any, path: str = '') -> dict[str, Any]:
  """Returns the annotations of the settings of a dataclass or a config, by their dotted names."""
  if isinstance(part, ConfigDict):
    return {name: _hint_of_value(value) for name, value in leaves_of(part).items()}
  hints: dict[str, Any] = {}
  own = typing.get_type_hints(type(part), include_extras=True)
  for field in dataclasses.fields(part):
    value = getattr(part, field.name)
    if dataclasses.is_dataclass(value):
      hints |= _hints_of(value, f'{path}{field.name}.')
    else:
      hints[path + field.name] = own[field.name]
  return hints


def _hint_of_value(value: Any) -> Any:
  """Returns the annotation of which a value is the default; entries of a tuple are of one type."""
  if isinstance(value, tuple):
    entry = _hint_of_value(value[0] if value else None)
    return tuple[entry, ...]  # pyright: ignore
  return UNKNOWN if value is None else type(value)


# --- values in words


def read_text(hint: Any, text: str, path: str) -> Any:
  """Reads a value of an annotation from the command line: 02 is 2, 1e-3 is 0.001, None is None.

  Entries of a tuple have commas between them, and may have brackets around them, and quotes around
  words: 'exact,top-2' and "('exact', 'top-2')" are the same. `str` writes what this reads.

  Raises:
    UserError: the text means no such value, or one out of its range; it begins with `path`.
  """
  return value_of(hint, _convert(hint, text), path)


def _convert(hint: Any, text: str) -> Any:
  """Returns the value that a text means for an annotation; if it means none, the text itself."""
  if typing.get_origin(hint) is Annotated:
    hint = typing.get_args(hint)[0]
  origin, kinds = typing.get_origin(hint), typing.get_args(hint)
  if origin in (types.UnionType, typing.Union):
    for kind in kinds:
      value = _convert(kind, text)
      if not isinstance(value, str):  # a text is a word only if it is nothing else
        return value
  elif origin is Literal:
    for word in kinds:
      if _convert(type(word), text) == word:
        return word
  elif tuple in (hint, origin):
    entries = split_entries(text)
    if kinds[-1:] == (...,):
      kinds = kinds[:1] * len(entries)
    if len(kinds) == len(entries):
      return tuple(map(_convert, kinds, entries))
    return tuple(entries)
  elif hint is bool:
    return WORDS.get(text.strip().lower(), text)
  elif hint is types.NoneType and text == 'None':
    return None
  elif hint in (int, float):
    with contextlib.suppress(ValueError):
      return hint(text)
  return text


def split_entries(text: str) -> list[str]:
  """Splits the entries of a tuple; a comma after the last one adds none.

  >>> split_entries('exact, "a, b",'), split_entries('((1, 2), (3,))'), split_entries('()')
  (['exact', 'a, b'], ['(1, 2)', '(3,)'], [])
  """
  entries, inner = split_values(text), text.strip()
  if len(entries) == 1 and inner[:1] in (*OPENING,) and inner[-1:] in (*CLOSING,):
    entries = split_values(inner[1:-1])
    text = inner[1:-1]
  if not text.strip() or text.strip().endswith(','):
    entries.pop()
  return entries


def split_values(text: str) -> list[str]:
  """Splits a text at its commas that are in no brackets and no quotes.

  A value in quotes is read as Python reads it. An empty text is one empty value.
  """
  parts, depth, quote, begin = [], 0, '', 0
  for i, letter in enumerate(text):
    if quote:
      if letter == quote and text[i - 1] != '\\':
        quote = ''
    elif letter in QUOTES and not text[begin:i].strip(OPENING + ' '):
      quote = letter
    elif letter in OPENING:
      depth += 1
    elif letter in CLOSING:
      depth -= 1
    elif letter == ',' and depth <= 0:
      parts.append(text[begin:i])
      begin = i + 1
  parts.append(text[begin:])

  values = []
  for value in map(str.strip, parts):
    if value[:1] in (*QUOTES,) and value[-1:] == value[:1]:
      with contextlib.suppress(SyntaxError, ValueError):
        value = str(ast.literal_eval(value))
    values.append(value)
  return values


# --- the argument of a page


def parse_arg(arg: str, **defaults: Scalar | tuple[str, ...]) -> Any:
  """Reads the part of `--config=file.py:arg` after the colon: 'scale=tiny,k=8,smoke', typed by the
  defaults.

  A bare word sets a bool to True. A default that is a tuple lists the values allowed, the first
  being the default. Returns a `Config`.

  >>> parse_arg('k=8,smoke', k=4, smoke=False, scale=('tiny', 'wmt14')).to_dict()
  {'k': 8, 'scale': 'tiny', 'smoke': True}

  Raises:
    UserError: a key that is not among the defaults or comes twice, or a value whose type is not
      that of its default.
  """
  values, hints = {}, {}
  for key, default in defaults.items():
    values[key], hints[key] = default, type(default)
    if isinstance(default, tuple):
      values[key], hints[key] = default[0], Literal[default]  # pyright: ignore
  keys = set()
  for item in filter(None, map(str.strip, arg.split(','))):
    key, equals, text = map(str.strip, item.partition('='))
    if key not in defaults:
      raise UserError(
        f"the config's argument has no key '{key}': {list_known(defaults)} (given: '{arg}')"
      )
    if key in keys:
      raise UserError(f"the config's argument sets '{key}' twice: give it once (given: '{arg}')")
    if not equals and hints[key] is not bool:
      raise UserError(
        f"the config's key '{key}' needs a value: write {key}={values[key]}, for example"
      )
    keys.add(key)
    values[key] = read_text(hints[key], text if equals else 'true', key)
  return locked(**values)


def to_dataclass(cls: type[T], config: ConfigDict | Mapping[str, Any], path: str = 'config') -> T:
  """The frozen dataclass that a part of a config describes, see `fields.read`; errors name
  the part by `path`."""
  return read(cls, config.to_dict() if isinstance(config, ConfigDict) else config, path)
