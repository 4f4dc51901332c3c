"""What every config needs: strict arguments, locked leaves, and the way down to frozen dataclasses.

A config's `get_config(arg)` chooses the structure with `parse_arg`, dotted flags set the leaves, and the launcher turns
each part into the dataclass of the library that it describes with `to_dataclass`. No ConfigDict goes further down.
"""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict

from fastdec.errors import UserError

T = TypeVar('T')
Scalar = bool | int | float | str


def parse_arg(arg: str, **defaults: Scalar | tuple[str, ...]) -> Any:
  """The part of `--config=file.py:arg` after the colon: 'scale=tiny,k=8,smoke', typed by the defaults.

  A bare word sets a bool to True. A default that is a tuple lists the values allowed, the first being the default.
  Returns a ConfigDict.

  >>> parse_arg('k=8,smoke', k=4, smoke=False, scale=('tiny', 'wmt14')).to_dict()
  {'k': 8, 'scale': 'tiny', 'smoke': True}

  Raises:
    UserError: a key that is not among the defaults or comes twice, or a value of another type than its default.
  """
  values = {key: default[0] if isinstance(default, tuple) else default for key, default in defaults.items()}
  given = set()
  for item in filter(None, (item.strip() for item in arg.split(','))):
    key, equals, text = (part.strip() for part in item.partition('='))
    if key not in defaults:
      raise UserError(f"the config's argument has no key '{key}': {known(defaults)} (given: '{arg}')")
    if key in given:
      raise UserError(f"the config's argument sets '{key}' twice: give it once (given: '{arg}')")
    if not equals and not isinstance(defaults[key], bool):
      raise UserError(f"the config's key '{key}' needs a value: write {key}={values[key]}, for example")
    given.add(key)
    values[key] = parse_value(key, text if equals else 'true', defaults[key])
  return locked(**values)


def parse_value(key: str, text: str, default: Scalar | tuple[str, ...]) -> Scalar:
  """`text` as a value of the default's type; of a tuple, as one of its members."""
  if isinstance(default, tuple):
    if text not in default:
      raise UserError(f'{key}={text} is not possible: give one of {", ".join(default)}')
    return text
  if isinstance(default, bool):
    if text.lower() not in ('true', 'false'):
      raise UserError(f'{key}={text} is not possible: give true or false')
    return text.lower() == 'true'
  try:
    return type(default)(text)
  except ValueError:
    raise UserError(f'{key}={text} is not possible: give {a_value(type(default))}, such as {default}') from None


def locked(**fields: Any) -> ConfigDict:
  """A ConfigDict, nested mappings included, that takes new values but no new keys."""
  return ConfigDict(fields).lock()


def to_dataclass(cls: type[T], config: ConfigDict | Mapping[str, Any], path: str = 'config') -> T:
  """The frozen dataclass that a part of a config describes; nested parts become the nested dataclasses.

  Args:
    cls: its fields hold plain values only: bool, int, float, str, None, a Literal, a tuple, or such a dataclass.
    path: where this part stands in the whole, for messages.

  Raises:
    UserError: a field the dataclass does not have, one it needs and does not get, or a value of another type.
  """
  described: Any = cls
  fields = {field.name: field for field in dataclasses.fields(described)}
  hints = typing.get_type_hints(cls)
  for key in config:
    if key not in fields:
      raise UserError(f"{path} has no field '{key}': {known(fields)}")
  for name, field in fields.items():
    if name not in config and field.default is field.default_factory:  # both are MISSING
      raise UserError(f"{path} lacks the field '{name}': set it to {a_value(hints[name])}")
  return cls(**{key: _field(hints[key], config[key], f'{path}.{key}') for key in config})


def _field(hint: Any, value: Any, path: str) -> Any:
  """`value` as its annotation wants it: a mapping becomes a dataclass, a list a tuple, a whole number a float."""
  kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
  for kind in sorted(kinds, key=lambda kind: not _fits(kind, value)):
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, ConfigDict | Mapping):
      return to_dataclass(kind, value, path)
    if tuple in (kind, origin) and isinstance(value, list | tuple):
      entry = next(iter(typing.get_args(kind)), Any)  # tuple[int, ...]: all of one type
      return tuple(x if entry is Any else _field(entry, x, f'{path}[{i}]') for i, x in enumerate(value))
    if kind is float and type(value) is int:
      return float(value)
    if type(value) is kind or (origin is typing.Literal and value in typing.get_args(kind)):
      return value
  raise UserError(f'{path}={value!r} is not possible: give {a_value(hint)}')


def _fits(kind: Any, value: Any) -> bool:
  """Whether a mapping's fields are all among a dataclass's: it is that one of several which is meant."""
  if not (dataclasses.is_dataclass(kind) and isinstance(value, ConfigDict | Mapping)):
    return False
  return set(value) <= {field.name for field in dataclasses.fields(kind)}


def known(names: Iterable[str]) -> str:
  """How every message about an unknown name ends: 'known are a, b, c'."""
  return f'known are {", ".join(names)}'


def a_value(kind: Any) -> str:
  """A type in words, for messages."""
  if typing.get_origin(kind) is typing.Literal:
    return f'one of {", ".join(map(str, typing.get_args(kind)))}'
  if isinstance(kind, types.UnionType):
    return ' or '.join(map(a_value, typing.get_args(kind)))
  words = {bool: 'true or false', int: 'a whole number', float: 'a number', str: 'a word', types.NoneType: 'None'}
  return words.get(kind, f'a {getattr(kind, "__name__", kind)}')
