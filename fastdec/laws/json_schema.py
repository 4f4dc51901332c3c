"""JSON schemas as regular expressions.

A text that matches is JSON as `json.dumps` writes it, of a value that the schema allows. Not all
such values can be written: objects have the properties that the schema names, in its order, and no
others. What an expression cannot hold, such as `uniqueItems`, is refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import known, shown
from fastdec.laws.automaton import of_bytes, without_anchors

ANNOTATIONS = {
  'title', 'description', 'default', 'examples', '$schema', '$id', '$comment', '$defs',
  'definitions', 'deprecated', 'readOnly', 'writeOnly', 'discriminator',
}  # fmt: skip
OF = {  # keywords that each type knows
  'object': {'properties', 'required', 'additionalProperties', 'minProperties', 'maxProperties'},
  'array': {'items', 'prefixItems', 'minItems', 'maxItems'},
  'string': {'minLength', 'maxLength', 'pattern', 'format'},
  'integer': {'minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'},
  'number': {'minimum'},
  'boolean': set(),
  'null': set(),
}
KINDS = {
  bool: 'boolean',
  int: 'integer',
  float: 'number',
  str: 'string',
  list: 'array',
  dict: 'object',
}
LETTER = r'(?:[^"\\\x00-\x1f\x7f]|\\["\\/bfnrt])'  # a character of a string
ESCAPED = [*range(0x20), ord('"'), ord('\\')]  # bytes that JSON writes otherwise
FRACTION = r'(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?'
MONTHS = (
  '(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])',
  '(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)',
  '02-(?:0[1-9]|1[0-9]|2[0-8])',
)
DAY = f'[0-9]{{4}}-(?:{"|".join(MONTHS)})'
ZONE = '(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])'
HOUR = rf'(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?{ZONE}'
BYTE = '(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])'
FORMATS = {
  'date': DAY,
  'time': HOUR,
  'date-time': f'{DAY}T{HOUR}',
  'uuid': '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}',
  'email': r'[a-z0-9]+(?:[._-][a-z0-9]+){0,3}@[a-z0-9]+(?:-[a-z0-9]+){0,3}\.[a-z]{2,8}',
  'ipv4': rf'(?:{BYTE}\.){{3}}{BYTE}',
}
DEEP = 3  # times that a definition contains itself, and that values of any kind do
MOST = 2**20  # characters


def expression_of(schema: Any) -> str:
  """Returns the regular expression of JSON that a schema allows.

  Raises:
    UserError: a schema that is none, that nothing meets, or that an expression cannot hold.
  """
  if isinstance(schema, str):
    try:
      schema = json.loads(schema)
    except ValueError as error:
      raise UserError(f'the JSON schema is no JSON ({error}): give its text, or a dict') from None
  found = _Schema(schema).of(schema, ())
  if found is None:
    raise UserError('nothing meets the JSON schema: allow some value')
  return found


class _Schema:
  """Reader of a schema's parts. A part that nothing meets is None."""

  def __init__(self, root: Any):
    self.root, self.written = root, 0

  def of(self, part: Any, within: tuple[str, ...]) -> str | None:
    """Returns the expression of a part, in parentheses; `within` has the references around it."""
    part = {} if part is True else part
    if part is False:
      return None
    if not isinstance(part, Mapping):
      raise UserError(f'{shown(part)} is no JSON schema: give an object, or true')
    said = {word: value for word, value in part.items() if word not in ANNOTATIONS}
    found = self._said(said, within)
    self.written += len(found or '')
    if self.written > MOST:
      raise UserError('the JSON schema is too large: give lower highest lengths, or fewer parts')
    return None if found is None else f'(?:{found})'

  def _said(self, said: dict[str, Any], within: tuple[str, ...]) -> str | None:
    if '$ref' in said:
      _alone('$ref', said)
      return self._referred(said['$ref'], within)
    for word in ('anyOf', 'oneOf', 'allOf'):
      if word in said:
        _alone(word, said, 'type')
        parts = _listed(word, said[word])
        if word == 'allOf' and len(parts) > 1:
          raise UserError('allOf of several JSON schemas is not supported: write them as one')
        if word == 'oneOf' and not _differ(parts):
          raise UserError('oneOf is supported where types tell its JSON schemas apart: give anyOf')
        return _either([self.of(one, within) for one in parts])
    for word in ('enum', 'const'):
      if word in said:
        _alone(word, said, 'type')
        values = _listed(word, said[word]) if word == 'enum' else [said[word]]
        types = _types(said) if 'type' in said else None
        fit = [value for value in values if types is None or _type_of(value) & set(types)]
        return _either([_escape(json.dumps(value, ensure_ascii=False)) for value in fit])
    if not said:
      return self._any(within)
    types = _types(said)
    for word in said:
      if word != 'type' and not any(word in OF[one] for one in types):
        raise UserError(f'{shown(word)} in a JSON schema of {", ".join(types)} is not supported')
    return _either([self._typed(one, said, within) for one in types])

  def _typed(self, kind: str, said: dict[str, Any], within: tuple[str, ...]) -> str | None:
    if kind == 'object':
      return self._object(said, within)
    if kind == 'array':
      return self._array(said, within)
    if kind == 'string':
      return _string(said)
    if kind == 'integer':
      return _integer(
        *_bounds(said, 'minimum', 'exclusiveMinimum', 1),
        *_bounds(said, 'maximum', 'exclusiveMaximum', -1),
      )
    if kind == 'number':
      if said.get('minimum', 0) != 0:
        raise UserError('minimum of a number in a JSON schema is supported as 0 alone')
      return f'{"" if "minimum" in said else "-?"}(?:0|[1-9][0-9]*){FRACTION}'
    return 'null' if kind == 'null' else 'true|false'

  def _referred(self, name: Any, within: tuple[str, ...]) -> str | None:
    if not (isinstance(name, str) and name.startswith('#')):
      raise UserError(
        f'$ref={shown(name)} in a JSON schema is not supported: refer to its own parts'
      )
    if within.count(name) >= DEEP:
      return None
    part = self.root
    for step in name.removeprefix('#').split('/')[1:]:
      step = step.replace('~1', '/').replace('~0', '~')
      if not isinstance(part, Mapping) or step not in part:
        raise UserError(f'$ref={shown(name)} names no part of the JSON schema')
      part = part[step]
    return self.of(part, (*within, name))

  def _any(self, within: tuple[str, ...]) -> str | None:
    """Returns any value; lists and objects within one another are not endless."""
    kinds = ['string', 'number', 'boolean', 'null']
    if within.count('') < DEEP - 1:
      kinds += ['array', 'object']
    return _either([self._typed(one, {}, (*within, '')) for one in kinds])

  def _array(self, said: dict[str, Any], within: tuple[str, ...]) -> str | None:
    low, high = _count('minItems', said, 0), _count('maxItems', said, None)
    first = [self.of(one, within) for one in _listed('prefixItems', said.get('prefixItems', []))]
    first = first[:high]
    has_more = 'items' in said or not first or low > len(first)
    more = self.of(said.get('items', True), within) if has_more else None
    low, high = max(low - len(first), 0), None if high is None else high - len(first)
    if None in first or (more is None and low) or (high is not None and high < low):
      return None
    items = ', '.join(one for one in first if one is not None)
    if more is not None and high != 0:
      rest = f'(?:, {more}){_times(max(low - 1, 0), None if high is None else high - 1)}'
      if first:
        items += f'(?:, {more}){_times(low, high)}'
      else:
        items = f'{more}{rest}' if low else f'(?:{more}{rest})?'
    return rf'\[{items}\]'

  def _object(self, said: dict[str, Any], within: tuple[str, ...]) -> str | None:
    properties, required = said.get('properties', {}), _listed('required', said.get('required', []))
    others = said.get('additionalProperties', True)
    if not isinstance(properties, Mapping):
      raise UserError(f'properties={shown(properties)} of a JSON schema must be an object')
    named = {**properties, **{name: others for name in required if name not in properties}}
    low, high = _count('minProperties', said, 0), _count('maxProperties', said, None)
    if not named and others is not False:
      if low > 1:
        raise UserError('minProperties above 1 is not supported where a JSON schema names none')
      value = self.of(others, within)
      if value is None or high == 0:
        return None if low else r'\{\}'
      pair = f'"{LETTER}*": {value}'
      several = f'{pair}(?:, {pair}){_times(0, None if high is None else high - 1)}'
      return rf'\{{{several}\}}' if low else rf'\{{(?:{several})?\}}'
    pairs = []
    for name, part in named.items():
      value = self.of(part, within)
      if value is None and name in required:
        return None
      if value is not None:
        said_name = _escape(json.dumps(name, ensure_ascii=False))
        pairs.append((f'{said_name}: {value}', name in required))
    if low > sum(is_required for _, is_required in pairs) or (
      high is not None and high < len(pairs)
    ):
      raise UserError(
        'minProperties and maxProperties are not supported where they cut the properties that a'
        ' JSON schema names: make these required, or leave them out'
      )
    behind, items = '', ''  # of the properties so far, from the last: behind others, and alone
    for pair, is_required in reversed(pairs):
      alone = f'{pair}{behind}'
      items = alone if is_required else f'(?:{alone}|{items})' if items else f'(?:{alone})?'
      behind = f', {pair}{behind}' if is_required else f'(?:, {pair})?{behind}'
    return rf'\{{{items}\}}'


def _alone(word: str, said: Mapping[str, Any], *beside: str) -> None:
  if others := [one for one in said if one not in (word, *beside)]:
    raise UserError(f'{shown(others[0])} beside {word} in a JSON schema is not supported')


def _listed(word: str, value: Any) -> Sequence[Any]:
  if not isinstance(value, list | tuple):
    raise UserError(f'{word}={shown(value)} of a JSON schema must be a list')
  return value


def _types(said: Mapping[str, Any]) -> list[str]:
  """Returns the types that a schema allows; without `type`, the one that its keywords are of."""
  given = said.get('type')
  if given is None:
    given = next((one for one, words in OF.items() if words & {*said}), None)
    if given is None:
      raise UserError(f'{shown(next(iter(said)))} in a JSON schema is not supported')
  types = [given] if isinstance(given, str) else list(_listed('type', given))
  for one in types:
    if one not in OF:
      raise UserError(f'{shown(one)} is no type of a JSON schema: {known(OF)}')
  return types


def _type_of(value: Any) -> set[str]:
  found = {KINDS.get(type(value), 'null')}
  return found | {'number'} if 'integer' in found else found


def _differ(parts: Sequence[Any]) -> bool:
  """True if the types of schemas tell them apart."""
  kinds = []
  for part in parts:
    given = part.get('type') if isinstance(part, Mapping) else None
    kinds.append('number' if given == 'integer' else str(given))
  return len({*kinds}) == len(kinds) and 'None' not in kinds


def _count(word: str, said: Mapping[str, Any], default: Any) -> Any:
  value = said.get(word, default)
  if value is not default and not (type(value) is int and value >= 0):
    raise UserError(f'{word}={shown(value)} of a JSON schema must be a whole number from 0')
  return value


def _bounds(said: Mapping[str, Any], word: str, other: str, by: int) -> list[int | None]:
  """Returns the strictest bound of an integer that two keywords give; None if neither is there."""
  found = []
  for name, inside in ((word, 0), (other, by)):
    value = said.get(name)
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
    if value is not None and not is_whole:
      raise UserError(f'{name}={shown(value)} of an integer in a JSON schema must be whole')
    found += [] if value is None else [int(value) + inside]
  return [(max if by > 0 else min)(found, default=None)]


def _times(low: int, high: int | None) -> str:
  return f'{{{low},{"" if high is None else high}}}'


def _either(parts: Sequence[str | None]) -> str | None:
  met = [part for part in parts if part is not None]
  return '|'.join(met) if met else None


def _escape(text: str) -> str:
  return re.sub(r'[\\.+*?()|\[\]{}^$]', r'\\\g<0>', text)


def _string(said: Mapping[str, Any]) -> str | None:
  low, high = _count('minLength', said, 0), _count('maxLength', said, None)
  content = f'{LETTER}{_times(low, high)}'
  if form := said.get('format'):
    _alone('format', said, 'type')
    if form not in FORMATS:
      raise UserError(f'format={shown(form)} of a JSON schema is not supported: {known(FORMATS)}')
    content = FORMATS[form]
  elif 'pattern' in said:
    _alone('pattern', said, 'type')
    content = _pattern(said['pattern'])
  return None if high is not None and high < low else f'"{content}"'


def _pattern(pattern: Any) -> str:
  """Returns the expression of a `pattern`, of which whole matches are written."""
  if not isinstance(pattern, str):
    raise UserError(f'pattern={shown(pattern)} of a JSON schema must be an expression')
  found = without_anchors(pattern)
  after, _ = of_bytes(f'pattern={shown(pattern)} of the JSON schema', found)
  if (after[:, ESCAPED] >= 0).any():
    raise UserError(
      f'pattern={shown(pattern)} of a JSON schema may write a quote, a backslash or a control,'
      ' which JSON escapes: name the characters that are allowed, as in [a-z ]*'
    )
  return f'(?:{found})'


def _integer(low: int | None, high: int | None) -> str | None:
  """Returns whole numbers from low to high.

  >>> _integer(3, 12), _integer(0, None), _integer(-5, 2)
  ('[3-9]|1[0-2]', '[0-9]|[1-9][0-9]{1,}', '-(?:[1-5])|[0-2]')
  """
  if low is None and high is None:
    return '-?(?:0|[1-9][0-9]*)'
  parts = []
  if low is None or low < 0:  # negative ones: from the smallest by size
    size = _natural(1 if high is None or high >= 0 else -high, None if low is None else -low)
    parts.append(None if size is None else f'-(?:{size})')
  if high is None or high >= 0:
    parts.append(_natural(0 if low is None else max(low, 0), high))
  return _either(parts)


def _natural(low: int, high: int | None) -> str | None:
  """Returns numbers from low, at least 0, to high."""
  if high is not None and high < low:
    return None
  parts, digits = [], len(str(low))
  while high is None or digits <= len(str(high)):
    least = max(low, 10 ** (digits - 1) if digits > 1 else 0)
    if high is None and least == 10 ** (digits - 1):
      parts.append(f'[1-9][0-9]{{{digits - 1},}}')
      break
    most = 10**digits - 1 if high is None else min(high, 10**digits - 1)
    parts.append(_same_length(str(least), str(most)))
    digits += 1
  return '|'.join(parts)


def _same_length(low: str, high: str) -> str:
  """Returns numbers from low to high, which have as many digits."""
  if not low:
    return ''
  first, last, rest = low[0], high[0], len(low) - 1
  whole = f'[0-9]{{{rest}}}' if rest else ''
  if first == last:
    return first + _inner(low[1:], high[1:])
  parts, begin, end = [], int(first), int(last)
  if rest and low[1:] != '0' * rest:
    parts.append(first + _inner(low[1:], '9' * rest))
    begin += 1
  if rest and high[1:] != '9' * rest:
    end -= 1
  if begin <= end:
    parts.append((f'[{begin}-{end}]' if begin < end else str(begin)) + whole)
  if rest and high[1:] != '9' * rest:
    parts.append(last + _inner('0' * rest, high[1:]))
  return '|'.join(parts)


def _inner(low: str, high: str) -> str:
  found = _same_length(low, high)
  return f'(?:{found})' if '|' in found else found
