"""From the command line to frozen dataclasses: strict arguments, and leaves that are locked.

The `get_config(arg)` of a page in configs/ reads its argument with `parse_arg`, dotted flags set
the leaves, and the command makes a dataclass of the whole with `to_dataclass`. Papers see no
ConfigDict.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict

from fastdec.errors import UserError
from fastdec.fields import describe_type, known, read

T = TypeVar('T')
Scalar = bool | int | float | str


def parse_arg(arg: str, **defaults: Scalar | tuple[str, ...]) -> Any:
  """The part of `--config=file.py:arg` after the colon: 'scale=tiny,k=8,smoke', typed by the
  defaults.

  A bare word sets a bool to True. A default that is a tuple lists the values allowed, the first
  being the default. Returns a ConfigDict.

  >>> parse_arg('k=8,smoke', k=4, smoke=False, scale=('tiny', 'wmt14')).to_dict()
  {'k': 8, 'scale': 'tiny', 'smoke': True}

  Raises:
    UserError: a key that is not among the defaults or comes twice, or a value whose type is not
      that of its default.
  """
  values = {
    key: default[0] if isinstance(default, tuple) else default for key, default in defaults.items()
  }
  keys = set()
  for item in filter(None, (item.strip() for item in arg.split(','))):
    key, equals, text = (part.strip() for part in item.partition('='))
    if key not in defaults:
      raise UserError(
        f"the config's argument has no key '{key}': {known(defaults)} (given: '{arg}')"
      )
    if key in keys:
      raise UserError(f"the config's argument sets '{key}' twice: give it once (given: '{arg}')")
    if not equals and not isinstance(defaults[key], bool):
      raise UserError(
        f"the config's key '{key}' needs a value: write {key}={values[key]}, for example"
      )
    keys.add(key)
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
    raise UserError(
      f'{key}={text} is not possible: give {describe_type(type(default))}, such as {default}'
    ) from None


def locked(**fields: Any) -> ConfigDict:
  """A ConfigDict, nested mappings included, that takes new values but no new keys."""
  return ConfigDict(fields).lock()


def config_of(settings: Any, **chosen: Scalar) -> ConfigDict:
  """The ConfigDict of a preset, which is a dataclass, with the choices of the argument as fields.

  Raises:
    UserError: the dataclass lacks a field of a choice.
  """
  for name in chosen:
    if not hasattr(settings, name):
      kind = type(settings).__name__
      raise UserError(
        f"{kind} lacks the field '{name}' that its config chooses: add {name}: str = ''"
      )
  return locked(**dataclasses.asdict(dataclasses.replace(settings, **chosen)))


def to_dataclass(cls: type[T], config: ConfigDict | Mapping[str, Any], path: str = 'config') -> T:
  """The frozen dataclass that a part of a config describes, see `fields.read`; errors name
  the part by `path`."""
  return read(cls, config.to_dict() if isinstance(config, ConfigDict) else config, path)
