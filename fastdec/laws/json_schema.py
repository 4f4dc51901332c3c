"""JSON schemas as regular expressions.

A text that matches is JSON as `json.dumps` writes it, of a value that the schema allows. Not all
such values can be written: objects have the properties that the schema names, in its order, and no
others. A keyword that an expression cannot hold, such as `uniqueItems`, is refused by its name.

outlines-core has such a function too, `build_regex_from_schema`. It passes over keywords without a
word (`maximum`, `type` beside `anyOf`, `required` without `properties`), and some of its
expressions match texts that are no JSON (a `pattern` with an alternative, a property of any kind).
"""

import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import known, shown
from fastdec.laws.automaton import of_bytes, without_anchors

ANNOTATIONS = {
  'title', 'description', 'default', 'examples', '$schema', '$id', '$comment', '$defs',
  'definitions', 'deprecated', 'readOnly', 'writeOnly', 'discriminator',
}  # fmt: skip
KEYWORDS = {  # of each type
  'object': {'properties', 'required', 'additionalProperties', 'minProperties', 'maxProperties'},
  'array': {'items', 'prefixItems', 'minItems', 'maxItems'},
  'string': {'minLength', 'maxLength', 'pattern', 'format'},
  'integer': {'minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'},
  'number': {'minimum'},
  'boolean': set(),
  'null': set(),
}
TYPES = {
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
RECURSIONS = 3  # times that a definition may contain itself, and a value of any kind others
MOST_PARTS, MOST_DEPTH = 10_000, 64  # of a schema whose references are followed
LONGEST = 2**20  # characters of an expression
MOST_BOUND = 10**18


def expression_of(schema: Any) -> str:
  """Returns the regular expression of JSON that a schema allows.

  Raises:
    UserError: a schema that is none, that nothing meets, or that an expression cannot hold.
  """
  try:
    root = json.loads(schema if isinstance(schema, str) else json.dumps(schema))
  except (ValueError, TypeError, RecursionError) as error:
    raise UserError(f'the JSON schema is no JSON ({error}): give its text, or a dict') from None
  expression = _Writer(root).write(root, ())
  if expression is None:
    raise UserError('nothing meets the JSON schema: allow some value')
  return expression


class _Writer:
  """Writes the expressions of a schema's parts. A part that nothing meets has none: None."""

  def __init__(self, root: Any):
    self.root, self.parts, self.length = root, 0, 0

  def write(self, part: Any, path: tuple[str, ...]) -> str | None:
    """Returns the expression of a part, in parentheses.

    Args:
      part: of the schema.
      path: a name for each part around this one; after a reference, its pointer.
    """
    self.parts += 1
    if self.parts > MOST_PARTS or len(path) > MOST_DEPTH:
      raise UserError('the JSON schema is too large: give fewer parts, or fewer within others')
    if part is False:
      return None
    if part is not True and not isinstance(part, dict):
      raise UserError(f'{shown(part)} is no JSON schema: give an object, or true')
    keywords = {}
    if part is not True:
      keywords = {word: value for word, value in part.items() if word not in ANNOTATIONS}
    expression = self._by_keywords(keywords, path)
    if expression is None:
      return None
    self.length += len(expression)
    if self.length > LONGEST:
      raise UserError('the JSON schema is too large: give lower highest lengths, or fewer parts')
    return f'(?:{expression})'

  def _by_keywords(self, keywords: dict[str, Any], path: tuple[str, ...]) -> str | None:
    if not keywords:
      return self._any(path)
    if '$ref' in keywords:
      _check_alone('$ref', keywords)
      return self._referred(keywords['$ref'], path)
    for word in ('anyOf', 'oneOf', 'allOf'):
      if word in keywords:
        _check_alone(word, keywords)
        parts = _a_list(word, keywords[word])
        if word == 'allOf' and len(parts) > 1:
          raise UserError('allOf of several JSON schemas is not supported: write them as one')
        if word == 'oneOf' and not _differ(parts):
          raise UserError('oneOf is supported where types tell its JSON schemas apart: give anyOf')
        return _either([self.write(part, (*path, word)) for part in parts])
    for word in ('enum', 'const'):
      if word in keywords:
        _check_alone(word, keywords, 'type')
        values = _a_list(word, keywords[word]) if word == 'enum' else [keywords[word]]
        types = _types(keywords) if 'type' in keywords else KEYWORDS
        fit = [value for value in values if _types_of(value) & {*types}]
        return _either([_escape(json.dumps(value, ensure_ascii=False)) for value in fit])
    types = _types(keywords)
    for word in keywords:
      if word != 'type' and not any(word in KEYWORDS[kind] for kind in types):
        raise UserError(f'{shown(word)} in a JSON schema of {", ".join(types)} is not supported')
    return _either([self._typed(kind, keywords, path) for kind in types])

  def _typed(self, kind: str, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str | None:
    if kind == 'object':
      return self._object(keywords, path)
    if kind == 'array':
      return self._array(keywords, path)
    if kind == 'string':
      return _string(keywords)
    if kind == 'integer':
      return _integer(keywords)
    if kind == 'number':
      if keywords.get('minimum', 0) != 0:
        raise UserError('minimum of a number in a JSON schema is supported as 0 alone')
      return f'{"" if "minimum" in keywords else "-?"}(?:0|[1-9][0-9]*){FRACTION}'
    return 'null' if kind == 'null' else 'true|false'

  def _any(self, path: tuple[str, ...]) -> str | None:
    """Returns any value; lists and objects end within one another."""
    kinds = ['string', 'number', 'boolean', 'null']
    if path.count('any') < RECURSIONS - 1:
      kinds += ['array', 'object']
    return _either([self._typed(kind, {}, (*path, 'any')) for kind in kinds])

  def _referred(self, pointer: Any, path: tuple[str, ...]) -> str | None:
    if not isinstance(pointer, str) or not re.match('#(/|$)', pointer):
      raise UserError(
        f'$ref={shown(pointer)} in a JSON schema is not supported: refer to its own parts, as in'
        ' #/$defs/name'
      )
    if path.count(pointer) >= RECURSIONS:
      return None
    part = self.root
    for step in urllib.parse.unquote(pointer).split('/')[1:]:
      step = step.replace('~1', '/').replace('~0', '~')
      if isinstance(part, list) and step.isdecimal() and int(step) < len(part):
        part = part[int(step)]
      elif isinstance(part, dict) and step in part:
        part = part[step]
      else:
        raise UserError(f'$ref={shown(pointer)} names no part of the JSON schema')
    return self.write(part, (*path, pointer))

  def _array(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str | None:
    low, high = _count('minItems', keywords, 0), _count('maxItems', keywords, None)
    listed = _a_list('prefixItems', keywords.get('prefixItems', []))
    first = [self.write(part, (*path, 'prefixItems')) for part in listed][:high]
    more = None
    if 'items' in keywords or not first or low > len(first):
      more = self.write(keywords.get('items', True), (*path, 'items'))
    low, high = max(low - len(first), 0), None if high is None else high - len(first)
    if None in first or (more is None and low) or (high is not None and high < low):
      return None
    items = ', '.join(part for part in first if part is not None)
    if more is not None and high != 0:
      if first:
        items += f'(?:, {more}){_times(low, high)}'
      else:
        rest = f'(?:, {more}){_times(max(low - 1, 0), None if high is None else high - 1)}'
        items = f'{more}{rest}' if low else f'(?:{more}{rest})?'
    return rf'\[{items}\]'

  def _object(self, keywords: Mapping[str, Any], path: tuple[str, ...]) -> str | None:
    properties = keywords.get('properties', {})
    if not isinstance(properties, dict):
      raise UserError(f'properties={shown(properties)} of a JSON schema must be an object')
    required = _a_list('required', keywords.get('required', []))
    if not all(isinstance(name, str) for name in required):
      raise UserError(f'required={shown(required)} of a JSON schema must be a list of names')
    others = keywords.get('additionalProperties', True)
    properties = {**properties, **{name: others for name in required if name not in properties}}
    low, high = _count('minProperties', keywords, 0), _count('maxProperties', keywords, None)
    if not properties and others is not False:
      return self._map(others, low, high, path)
    pairs = []
    for name, part in properties.items():
      value = self.write(part, (*path, 'properties'))
      if value is None and name in required:
        return None
      if value is not None:
        key = _escape(json.dumps(name, ensure_ascii=False))
        pairs.append((f'{key}: {value}', name in required))
    fewest = sum(is_required for _, is_required in pairs)
    if low > fewest or (high is not None and high < len(pairs)):
      raise UserError(
        'minProperties and maxProperties are not supported where they cut the properties that a'
        ' JSON schema names: make these required, or leave them out'
      )
    # From the last property to the first: the texts of those so far, and of them after others.
    items, after = '', ''
    for pair, is_required in reversed(pairs):
      begun = f'{pair}{after}'
      if is_required:
        items, after = begun, f', {begun}'
      else:
        items = f'(?:{begun}|{items})' if items else f'(?:{begun})?'
        after = f'(?:, {pair})?{after}'
      if len(items) + len(after) > LONGEST:
        raise UserError('the JSON schema is too large: make more of its properties required')
    return rf'\{{{items}\}}'

  def _map(self, values: Any, low: int, high: int | None, path: tuple[str, ...]) -> str | None:
    """Returns an object of any names, whose values meet a schema."""
    if low > 1:
      raise UserError('minProperties above 1 is not supported where a JSON schema names none')
    value = self.write(values, (*path, 'additionalProperties'))
    if value is None or high == 0:
      return None if low else r'\{\}'
    pair = f'"{LETTER}*": {value}'
    several = f'{pair}(?:, {pair}){_times(0, None if high is None else high - 1)}'
    return rf'\{{{several}\}}' if low else rf'\{{(?:{several})?\}}'


def _check_alone(word: str, keywords: Mapping[str, Any], *beside: str) -> None:
  for other in keywords:
    if other not in (word, *beside):
      raise UserError(f'{shown(other)} beside {word} in a JSON schema is not supported')


def _a_list(word: str, value: Any) -> list[Any]:
  if not isinstance(value, list):
    raise UserError(f'{word}={shown(value)} of a JSON schema must be a list')
  return value


def _types(keywords: Mapping[str, Any]) -> list[str]:
  """Returns the types that a schema allows; without `type`, the one that its keywords are of."""
  types = keywords.get('type')
  if types is None:
    types = [kind for kind, words in KEYWORDS.items() if words & {*keywords}][:1]
    if not types:
      raise UserError(f'{shown(next(iter(keywords)))} in a JSON schema is not supported')
  types = [types] if isinstance(types, str) else _a_list('type', types)
  for kind in types:
    if not isinstance(kind, str) or kind not in KEYWORDS:
      raise UserError(f'{shown(kind)} is no type of a JSON schema: {known(KEYWORDS)}')
  return types


def _types_of(value: Any) -> set[str]:
  kind = TYPES.get(type(value), 'null')
  return {kind, 'number'} if kind == 'integer' else {kind}


def _differ(parts: Sequence[Any]) -> bool:
  """True if the types of schemas tell them apart."""
  types = []
  for part in parts:
    if not isinstance(part, dict) or 'type' not in part:
      return False
    types += {'number' if kind == 'integer' else kind for kind in _types({'type': part['type']})}
  return len({*types}) == len(types)


def _count(word: str, keywords: Mapping[str, Any], default: int | None) -> Any:
  value = keywords.get(word, default)
  if value is not default and not (type(value) is int and value >= 0):
    raise UserError(f'{word}={shown(value)} of a JSON schema must be a whole number from 0')
  return value


def _times(low: int, high: int | None) -> str:
  return f'{{{low},{"" if high is None else high}}}'


def _either(parts: Sequence[str | None]) -> str | None:
  possible = [part for part in parts if part is not None]
  return '|'.join(possible) if possible else None


def _escape(text: str) -> str:
  return re.sub(r'[\\.+*?()|\[\]{}^$]', r'\\\g<0>', text)


def _string(keywords: Mapping[str, Any]) -> str | None:
  words = {word: value for word, value in keywords.items() if word in KEYWORDS['string']}
  if 'format' in words:
    _check_alone('format', words)
    name = words['format']
    if not isinstance(name, str) or name not in FORMATS:
      raise UserError(f'format={shown(name)} of a JSON schema is not supported: {known(FORMATS)}')
    return f'"{FORMATS[name]}"'
  if 'pattern' in words:
    _check_alone('pattern', words)
    return f'"{_pattern(words["pattern"])}"'
  low, high = _count('minLength', words, 0), _count('maxLength', words, None)
  return None if high is not None and high < low else f'"{LETTER}{_times(low, high)}"'


def _pattern(pattern: Any) -> str:
  """Returns the expression of a `pattern`, of which whole matches are written."""
  if not isinstance(pattern, str):
    raise UserError(f'pattern={shown(pattern)} of a JSON schema must be an expression')
  expression = without_anchors(pattern)
  after, _ = of_bytes(f'pattern={shown(pattern)} of the JSON schema', expression)
  if (after[:, ESCAPED] >= 0).any():
    raise UserError(
      f'pattern={shown(pattern)} of a JSON schema may write a quote, a backslash or a control,'
      ' which JSON escapes: name the characters that are allowed, as in [a-z ]*'
    )
  return f'(?:{expression})'


def _integer(keywords: Mapping[str, Any]) -> str | None:
  """Returns whole numbers within the bounds that keywords give."""
  lows, highs = [], []
  for word, bounds, inside in (
    ('minimum', lows, 0), ('exclusiveMinimum', lows, 1),
    ('maximum', highs, 0), ('exclusiveMaximum', highs, -1),
  ):  # fmt: skip
    value = keywords.get(word)
    if value is None:
      continue
    if not isinstance(value, int | float) or isinstance(value, bool) or value % 1 != 0:
      raise UserError(f'{word}={shown(value)} of an integer in a JSON schema must be whole')
    if abs(value) > MOST_BOUND:
      raise UserError(f'{word} of an integer in a JSON schema is supported up to 10^18')
    bounds.append(int(value) + inside)
  return between(max(lows, default=None), min(highs, default=None))


def between(low: int | None, high: int | None) -> str | None:
  """Returns the expression of the whole numbers from low to high; None: without that bound.

  >>> between(8, 12), between(-5, 1), between(None, -9)
  ('(?:8|9)|1(?:0|1|2)', '-(?:(?:1|2|3|4|5))|(?:0|1)', '-(?:9|[1-9][0-9]{1,})')
  """
  if low is None and high is None:
    return '-?(?:0|[1-9][0-9]*)'
  parts = []
  if low is None or low < 0:  # the negative ones, by their size
    smallest = 1 if high is None or high >= 0 else -high
    size = _natural(smallest, None if low is None else -low)
    parts.append(None if size is None else f'-(?:{size})')
  if high is None or high >= 0:
    parts.append(_natural(0 if low is None else max(low, 0), high))
  return _either(parts)


def _natural(low: int, high: int | None) -> str | None:
  """Returns whole numbers from low, which is at least 0, to high: those of each length in turn."""
  if high is not None and high < low:
    return None
  parts, shortest = [], len(str(low))
  longest = shortest if high is None else len(str(high))
  for digits in range(shortest, longest + 1):
    begin = low if digits == shortest else 10 ** (digits - 1)
    end = high if high is not None and digits == longest else 10**digits - 1
    parts.append(_same_length(str(begin), str(end)))
  if high is None:
    parts.append(f'[1-9][0-9]{{{longest},}}')
  return '|'.join(parts)


def _same_length(low: str, high: str) -> str:
  """Returns the numbers from low to high, which have as many digits, by their first digits."""
  rest = len(low) - 1
  if rest < 0:
    return ''
  if (low, high) == ('0' * len(low), '9' * len(high)):
    return f'[0-9]{{{len(low)}}}'
  parts = []
  for digit in range(int(low[0]), int(high[0]) + 1):
    begin = low[1:] if digit == int(low[0]) else '0' * rest
    end = high[1:] if digit == int(high[0]) else '9' * rest
    parts.append(f'{digit}{_same_length(begin, end)}')
  return parts[0] if len(parts) == 1 else f'(?:{"|".join(parts)})'
