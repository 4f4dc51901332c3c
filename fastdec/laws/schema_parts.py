"""The parts of a JSON schema: checked plain JSON, and what each $ref refers to.

A reference is followed as JSON Schema 2020-12 and draft 7 say: by pointer (#/$defs/name), by name
($anchor, or "$id": "#name"), and by the address that $id gives a part. Nothing is fetched.
"""

import math
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.files import parse_json

MOST_CHARACTERS = 2**22
MOST_VALUES, MOST_NESTED = 100_000, 150
MOST_BITS = 4096  # of a whole number
OF_NAMES = {  # keywords with parts by name
  'properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas',
}  # fmt: skip
OF_PARTS = {  # keywords with a part, or a list of parts
  'items', 'prefixItems', 'additionalItems', 'contains', 'unevaluatedItems', 'additionalProperties',
  'propertyNames', 'unevaluatedProperties', 'anyOf', 'oneOf', 'allOf', 'not', 'if', 'then', 'else',
}  # fmt: skip


def too_large(remedy: str = 'give fewer parts, or fewer within others') -> UserError:
  return UserError(f'the JSON schema is too large: {remedy}')


def read(schema: Any) -> Any:
  """Returns a schema as plain JSON.

  Args:
    schema: the JSON, or its text.

  Raises:
    UserError: it is no JSON, or too large.
  """
  if isinstance(schema, str):
    if len(schema) > MOST_CHARACTERS:
      raise too_large()
    try:
      schema = parse_json(schema)
    except ValueError as error:
      raise _no_json(str(error).split(';')[0]) from None
  return _plain(schema, {}, 0)[0]


def _plain(value: Any, copies: dict[int, tuple[Any, int]], depth: int) -> tuple[Any, int]:
  """Returns a copy of JSON, and how many values it has.

  Args:
    value: a part of the JSON.
    copies: those of other lists and objects, by identity; one that is at two places counts twice.
    depth: lists and objects around it.
  """
  if not isinstance(value, Mapping | list | tuple):
    _check(value)
    return value, 1
  if depth > MOST_NESTED:
    raise too_large()
  if id(value) not in copies:
    parts = value.values() if isinstance(value, Mapping) else value
    inner = [_plain(part, copies, depth + 1) for part in parts]
    copy, size = [part for part, _ in inner], 1 + sum(count for _, count in inner)
    if size > MOST_VALUES:
      raise too_large()
    if isinstance(value, Mapping):
      for name in value:
        if not isinstance(name, str):
          raise _no_json(f'{shown(name)} is no name')
        _check(name)
      copy = dict(zip(map(str, value), copy, strict=True))
    copies[id(value)] = copy, size
  return copies[id(value)]


def _check(value: Any) -> None:
  """Raises UserError unless a value is JSON, and no list or object."""
  if isinstance(value, str):
    try:
      value.encode()
    except UnicodeEncodeError:
      raise _no_json(f'{shown(value)} has half a character') from None
  elif isinstance(value, int) and value.bit_length() > MOST_BITS:
    raise _no_json(f'a number has {value.bit_length():,} bits, and {MOST_BITS:,} are the most')
  elif isinstance(value, float) and not math.isfinite(value):
    raise _no_json(f'{value} is no number')
  elif value is not None and not isinstance(value, int | float):
    raise _no_json(f'it has {shown(value)}')


def _no_json(reason: str) -> UserError:
  return UserError(f'the JSON schema is no JSON ({reason}): give its text, or a dict')


class Parts:
  """The parts of a schema by their addresses."""

  def __init__(self, root: Any):
    self._by_address = {'': (root, '')}  # and the base of the references around it
    self._add(root, '')

  def _add(self, part: Any, base: str) -> None:
    if not isinstance(part, dict):
      return
    inner = base_of(part, base)
    names = {word: part[word] for word in ('$id', '$anchor', '$dynamicAnchor') if word in part}
    for word, name in names.items():
      if not isinstance(name, str):
        raise UserError(f'{word}={shown(name)} of a JSON schema must be a text')
      name = _joined(base, name) if word == '$id' else f'{inner}#{name}'
      if self._by_address.setdefault(name, (part, base))[0] is not part:
        raise UserError(f'two parts of the JSON schema are called {shown(name)}: rename one')
    for inside in _parts_of(part):
      self._add(inside, inner)

  def at(self, reference: Any, base: str) -> tuple[Any, str]:
    """Returns the part that a $ref refers to, and the base of the references around it.

    Raises:
      UserError: the schema has no such part.
    """
    if not isinstance(reference, str):
      raise UserError(f'$ref={shown(reference)} of a JSON schema must be a text')
    address = _joined(base, reference)
    if address in self._by_address:
      return self._by_address[address]
    resource, _, fragment = address.partition('#')
    missing = UserError(
      f'$ref={shown(reference)} names no part of the JSON schema, and no other is read: refer to'
      ' its own parts, as in #/$defs/name'
    )
    if resource not in self._by_address or not fragment.startswith('/'):
      raise missing
    part, base = self._by_address[resource]
    for step in urllib.parse.unquote(fragment).split('/')[1:]:
      step, base = step.replace('~1', '/').replace('~0', '~'), base_of(part, base)
      if isinstance(part, list) and re.fullmatch('0|[1-9][0-9]{0,8}', step):
        part = part[int(step)] if int(step) < len(part) else missing
      else:
        part = part.get(step, missing) if isinstance(part, dict) else missing
      if part is missing:
        raise missing
    return part, base


def base_of(part: Any, base: str) -> str:
  """Returns the address that references within a part are relative to."""
  own = part.get('$id') if isinstance(part, dict) else None
  address = _joined(base, own) if isinstance(own, str) else base
  return base if '#' in address else address  # "$id": "#name" names the part alone


def _parts_of(part: Mapping[str, Any]) -> Iterator[Any]:
  for word, value in part.items():
    if word in OF_NAMES and isinstance(value, dict):
      yield from value.values()
    elif word in OF_PARTS:
      yield from value if isinstance(value, list) else [value]


def _joined(base: str, reference: str) -> str:
  """Returns the address of a reference; an empty fragment is left out."""
  try:  # urljoin knows no names such as urn:uuid:1, which a fragment is put behind
    address = base + reference if reference[:1] == '#' else urllib.parse.urljoin(base, reference)
  except ValueError:  # such as 'http://['
    raise UserError(f'{shown(reference)} in a JSON schema is no address') from None
  return address.removesuffix('#')
