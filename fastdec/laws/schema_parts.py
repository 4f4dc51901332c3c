"""The parts of a JSON schema, as plain JSON, and the parts that each $ref refers to.

References work as in JSON Schema 2020-12 and draft 7: by pointer (#/$defs/name), by name ($anchor,
or "$id": "#name"), and by the address that $id gives a part. Nothing is fetched.
"""

import io
import json
import re
import urllib.parse
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import parse_json

MOST_CHARACTERS = 2**22
OF_NAMES = {  # keywords with parts by name
  'properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas',
}  # fmt: skip
OF_PARTS = {  # keywords with a part, or a list of parts
  'items', 'prefixItems', 'additionalItems', 'contains', 'unevaluatedItems', 'additionalProperties',
  'propertyNames', 'unevaluatedProperties', 'anyOf', 'oneOf', 'allOf', 'not', 'if', 'then', 'else',
}  # fmt: skip


def too_large(remedy: str = 'give fewer parts, or nest them less') -> UserError:
  return UserError(f'the JSON schema is too large: {remedy}')


def read(schema: Any) -> Any:
  """Returns a schema as plain JSON.

  Args:
    schema: the JSON, or its text.

  Raises:
    UserError: it is not JSON, or too large.
  """
  try:
    if isinstance(schema, str):
      schema = parse_json(schema)
    # Writing raises for what is not JSON, and parsing again makes copies of what two parts share.
    text = io.StringIO()
    for piece in json.JSONEncoder(allow_nan=False).iterencode(schema):
      text.write(piece)
      if text.tell() > MOST_CHARACTERS:
        raise too_large()
    return parse_json(text.getvalue())
  except UserError:
    raise
  except RecursionError:
    raise too_large() from None
  except (TypeError, ValueError) as error:
    reason = str(error).split(';')[0]
    raise UserError(f'the JSON schema is not JSON ({reason}): give its text, or a dict') from None


class Parts:
  """The parts of a schema by their addresses."""

  def __init__(self, root: Any):
    self._by_address = {'': (root, '')}  # each with the base of the references around it
    self._add(root, '')

  def _add(self, part: Any, base: str) -> None:
    if not isinstance(part, dict):
      return
    inner = base_of(part, base)
    for word in ('$id', '$anchor', '$dynamicAnchor'):
      if word not in part:
        continue
      name = part[word]
      if not isinstance(name, str):
        raise UserError(f'{word}={quote(name)} of a JSON schema must be a string')
      address = f'{inner}#{name}'
      if word == '$id':
        address = _join_address(base, name)
      if self._by_address.setdefault(address, (part, base))[0] is not part:
        raise UserError(f'two parts of the JSON schema are called {quote(address)}: rename one')

    # Add the parts inside this one.
    for word, value in part.items():
      parts = []
      if word in OF_NAMES and isinstance(value, dict):
        parts = value.values()
      elif word in OF_PARTS:
        parts = value if isinstance(value, list) else [value]
      for inside in parts:
        self._add(inside, inner)

  def at(self, reference: Any, base: str) -> tuple[Any, str]:
    """Returns the part that a $ref refers to, and the base of the references around it.

    Raises:
      UserError: the schema has no such part.
    """
    if not isinstance(reference, str):
      raise UserError(f'$ref={quote(reference)} of a JSON schema must be a string')
    address = _join_address(base, reference)
    if address in self._by_address:
      return self._by_address[address]
    resource, _, fragment = address.partition('#')
    missing = UserError(
      f'$ref={quote(reference)} names no part of the JSON schema: refer to its own parts, as in'
      ' #/$defs/name, since no other schemas are read'
    )
    if resource not in self._by_address or not fragment.startswith('/'):
      raise missing
    part, base = self._by_address[resource]
    for step in urllib.parse.unquote(fragment).split('/')[1:]:
      step, base = step.replace('~1', '/').replace('~0', '~'), base_of(part, base)
      if isinstance(part, list) and re.fullmatch('0|[1-9][0-9]{0,8}', step):
        key: Any = int(step)
      elif isinstance(part, dict):
        key = step
      else:
        raise missing
      try:
        part = part[key]
      except LookupError:
        raise missing from None
    return part, base


def base_of(part: Any, base: str) -> str:
  """Returns the address that references within a part are relative to."""
  if isinstance(part, dict) and isinstance(part.get('$id'), str):
    address = _join_address(base, part['$id'])
    if '#' not in address:  # otherwise "$id": "#name" only names the part
      return address
  return base


def _join_address(base: str, reference: str) -> str:
  """Returns the address of a reference, without an empty fragment."""
  if reference[:1] == '#':  # urljoin would lose a base such as urn:uuid:1
    address = base + reference
  else:
    try:
      address = urllib.parse.urljoin(base, reference)
    except ValueError:  # such as 'http://['
      raise UserError(f'the address {quote(reference)} in a JSON schema is invalid') from None
  return address.removesuffix('#')
