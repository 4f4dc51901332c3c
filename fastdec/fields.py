"""Values from JSON and configs, checked by a dataclass's annotations; errors name the field.

@dataclasses.dataclass(frozen=True)
class Sizes:
  hidden_size: Size
  rms_norm_eps: Share = 1e-6
read(Sizes, {'hidden_size': 8}, 'config.json', mark=': ')
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from fastdec.errors import UserError

T = TypeVar('T')


@dataclasses.dataclass(frozen=True)
class Between:
  """The range of a number, both ends included: Annotated[int, Between(1, 9)]."""

  low: int | float
  high: int | float


Size = Annotated[int, Between(1, 2**31 - 1)]  # of an axis
Layers = Annotated[int, Between(1, 9999)]  # a bound: each layer is a step of a loop
Token = Annotated[int, Between(0, 2**31 - 1)]
Positive = Annotated[float, Between(1e-30, 1e30)]
Share = Annotated[float, Between(0, 1)]
LAST_SEED = 2**32 - 1  # JAX ignores higher bits
Seed = Annotated[int, Between(0, LAST_SEED)]
Count = Annotated[int, Between(1, math.inf)]
Zero = Annotated[int, Between(0, math.inf)]  # a count that may be none


def read(
  cls: type[T], values: Mapping[str, Any], where: str, mark: str = '.', ignores: bool = False
) -> T:
  """Reads a dataclass from a mapping; nested mappings become the nested dataclasses.

  Args:
    cls: its fields hold only plain values: bool, int, float, str, None, dict, Literal, tuple, or
      such a dataclass, which may have been read before. Any of them may have a range (`Between`).
    values: by the fields' names.
    where: source of the values, for messages.
    mark: text between `where` and a field's name.
    ignores: ignores unknown names; otherwise they are refused.

  Raises:
    UserError: an unknown name, a missing field without default, or a value of the wrong kind.
  """
  described: Any = cls
  fields = {field.name: field for field in dataclasses.fields(described)}
  hints = typing.get_type_hints(cls, include_extras=True)
  for name in values:
    if name not in fields and not ignores:
      raise UserError(f'{where} has no field {quote(name)}: {list_known(fields)}')
  converted = {}
  for name, field in fields.items():
    if name in values:
      converted[name] = value_of(hints[name], values[name], f'{where}{mark}{name}')
    elif field.default is field.default_factory:  # both are MISSING
      raise UserError(f"{where} lacks the field '{name}': set it to {describe_type(hints[name])}")
  return cls(**converted)


def value_of(hint: Any, value: Any, path: str) -> Any:
  """Converts `value` to its annotation: mapping to dataclass, list to tuple, integer to float.

  Raises:
    UserError: it is of the wrong kind, or out of its range.
  """
  kinds = (hint,)
  if _is_union(hint):
    kinds = typing.get_args(hint)
  for kind in sorted(kinds, key=lambda kind: not _has_fields(kind, value)):
    kind, ranges = _split_ranges(kind)
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
      return read(kind, value, path)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, kind):
      return value  # read before
    if tuple in (kind, origin) and isinstance(value, list | tuple):
      return _convert_entries(kind, value, path)
    if kind is float and type(value) in (int, float) and _is_within(value, ranges):
      return float(value)
    if kind is not float and type(value) is kind and _is_within(value, ranges):
      return value
    if origin is typing.Literal and any(value == word for word in typing.get_args(kind)):
      return value
  allowed = describe_type(hint)
  if type(value) is int and value >= 2**31 and ' from ' not in allowed:
    allowed += ' below 2^31'
  raise UserError(f'{path}={quote(value)} is not possible: give {allowed}')


def _convert_entries(kind: Any, values: Iterable[Any], path: str) -> tuple[Any, ...]:
  """Converts to tuple[int, ...] of any length, to tuple[int, int], or to a tuple of anything."""
  values, kinds = tuple(values), typing.get_args(kind)
  if not kinds:
    return values
  if kinds[-1] is ...:
    kinds = kinds[:1] * len(values)
  if len(kinds) != len(values):
    raise UserError(f'{path}={quote(list(values))} is not possible: give {len(kinds)} values')
  entries = []
  for i, (kind, value) in enumerate(zip(kinds, values, strict=True)):
    entries.append(value_of(kind, value, f'{path}[{i}]'))
  return tuple(entries)


def _split_ranges(hint: Any) -> tuple[Any, tuple[Between, ...]]:
  """Splits a type into the plain type and its ranges."""
  if typing.get_origin(hint) is not Annotated:
    return hint, ()
  kind, *ranges = typing.get_args(hint)
  return kind, tuple(ranges)


def _is_union(hint: Any) -> bool:
  return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _is_within(value: Any, ranges: tuple[Between, ...]) -> bool:
  """True if a number is finite and in its ranges; an integer without ranges must fit into int32."""
  if type(value) is float and not math.isfinite(value):
    return False
  if type(value) is int and abs(value) >= (2**63 if ranges else 2**31):
    return False
  return all(between.low <= value <= between.high for between in ranges)


def _has_fields(kind: Any, value: Any) -> bool:
  """True if a dataclass has a field for every name of a mapping."""
  if not (dataclasses.is_dataclass(kind) and isinstance(value, Mapping)):
    return False
  return set(value) <= {field.name for field in dataclasses.fields(kind)}


def quote(value: Any) -> str:
  """Returns a value as messages show it: cut if it is long."""
  try:
    text = repr(value)
  except RecursionError:
    text = 'a value that is nested too deep'
  if len(text) > 80:
    return f'{text[:80]}...'
  return text


def list_known(names: Iterable[str]) -> str:
  """Returns the end of a message about an unknown name: 'known are a, b, c'."""
  return f'known are {", ".join(names)}'


def describe_type(hint: Any) -> str:
  """Describes the values that a type allows, for messages."""
  kind, ranges = _split_ranges(hint)
  if typing.get_origin(kind) is typing.Literal:
    return f'one of {", ".join(map(str, typing.get_args(kind)))}'
  if _is_union(kind):
    return ' or '.join(map(describe_type, typing.get_args(kind)))
  if typing.get_origin(kind) is tuple:
    return f'a list, each {describe_type(typing.get_args(kind)[0])}'
  if dataclasses.is_dataclass(kind):
    return 'an object'
  words = {
    bool: 'true or false', int: 'a whole number', float: 'a number', str: 'a word',
    dict: 'an object', types.NoneType: 'None',
  }  # fmt: skip
  name = words.get(kind, f'a {getattr(kind, "__name__", kind)}')
  for between in ranges:
    if between.high == math.inf:
      return f'{between.low} or more'
    name += f' from {between.low} to {between.high}'
  return name


def check_sizes(config: Any, *names: str) -> None:
  """Raises UserError unless these fields are 1 or more; None is allowed."""
  for name in names:
    size = getattr(config, name)
    if size is not None and size < 1:
      raise UserError(f'{name}={size} is not possible: give 1 or more')


def check_shares(config: Any, *names: str) -> None:
  """Raises UserError unless these fields are at least 0 and below 1."""
  for name in names:
    if not 0 <= getattr(config, name) < 1:
      raise UserError(
        f'{name}={getattr(config, name)} is not possible: give a number from 0 to below 1'
      )


def check_choices(config: Any, **choices: Iterable[str]) -> None:
  """Raises UserError unless each of these fields has one of its choices."""
  for name, allowed in choices.items():
    if getattr(config, name) not in allowed:
      raise UserError(
        f'{name}={getattr(config, name)!r} is unknown: choose one of {", ".join(allowed)}'
      )
