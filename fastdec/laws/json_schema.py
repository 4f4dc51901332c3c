"""JSON schemas as regular expressions.

The expression matches JSON as `json.dumps` writes it, of values that the schema allows, but not all
of these: objects have only the properties that the schema names, in its order. A keyword that an
expression cannot express, such as `uniqueItems`, is refused by its name.

outlines-core has such a function too, `build_regex_from_schema`. It silently ignores keywords
(`maximum`, `type` next to `anyOf`, `required` without `properties`), and some of its expressions
match invalid JSON (from a `pattern` with an alternative, or a property of any kind).
"""

import collections
import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import list_known, quote
from fastdec.laws.automaton import MOST_STATES, compile_bytes
from fastdec.laws.expression import FIRST
from fastdec.laws.schema_parts import Parts, base_of, read, too_large
from fastdec.laws.syntax import LONGEST, remove_anchors

ANNOTATIONS = {
  'title', 'description', 'default', 'examples', '$schema', '$comment', 'deprecated', 'readOnly',
  'writeOnly', 'discriminator', '$defs', 'definitions', '$id', '$anchor', '$dynamicAnchor',
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
LETTER = rf'(?:[^{FIRST}"\\\x00-\x1f\x7f]|\\["\\/bfnrt])'  # a character of a string
ESCAPED = [*range(0x20), ord('"'), ord('\\')]  # bytes that JSON escapes
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
RECURSIONS = 3  # how often a definition may contain itself, or a value of any kind another one
MOST_PARTS, MOST_DEPTH = 10_000, 64  # of a schema whose references are followed
MOST_TRIED = 100_000  # parts that `find_met` may look at
MOST_BOUND = 10**18
MOST_PATTERNS = 32
CHOOSERS = ('$ref', 'anyOf', 'oneOf', 'allOf')
ANY = 0  # in `_Place.around`, a value of any kind; no identity is 0


def write_expression(schema: Any) -> str:
  """Returns the regular expression of the JSON that a schema allows.

  Raises:
    UserError: the schema is invalid, no value meets it, or no expression can express it.
  """
  try:
    root = read(schema)
    writer = _Writer(Parts(root))
    writer.find_met(root)
    expression = writer.write(root, _Place())
  except RecursionError:  # the caller's own stack is deep
    raise too_large() from None
  if expression is None:
    raise UserError('no value meets the JSON schema: allow one')
  return expression


@dataclasses.dataclass(frozen=True)
class _Place:
  """The place of a part in a schema.

  Attributes:
    base: address that its references are relative to.
    depth: number of parts around it.
    around: how often each definition is around it, by its identity.
  """

  base: str = ''
  depth: int = 0
  around: Mapping[int, int] = dataclasses.field(default_factory=dict[int, int])

  def within(self, definition: int | None = None) -> '_Place':
    """Returns the place of a part inside this one, which may be a definition."""
    around = self.around
    if definition is not None:
      around = {**around, definition: around.get(definition, 0) + 1}
    return _Place(self.base, self.depth + 1, around)


class _Writer:
  """Writes the expressions of a schema's parts: None for a part that no value meets."""

  def __init__(self, parts: Parts):
    self.parts = parts
    self.parts_seen = 0
    self.length = 0  # characters written
    self.patterns: set[str] = set()  # each is also compiled on its own
    self.met: set[int] = set()  # definitions that some value meets, by identity
    self.referred: dict[int, tuple[Any, str]] | None = None  # definitions found by `find_met`

  def find_met(self, root: Any) -> None:
    """Finds the definitions that some value meets.

    It begins with none, and adds definitions that need only those found before. So definitions that
    contain one another without an end are known before any is written out.
    """
    # Find all definitions: each may refer to more.
    self.referred = found = {}
    self._is_met(root, '')
    checked = 0
    while checked < len(found):
      new = list(found.values())[checked:]
      checked = len(found)
      for part, base in new:
        self._is_met(part, base)

    # Repeat until no round adds one.
    count = -1
    while count != len(self.met):
      count = len(self.met)
      for identity, (part, base) in reversed(found.items()):
        if identity not in self.met and self._is_met(part, base):
          self.met.add(identity)
    self.referred, self.parts_seen = None, 0

  def _is_met(self, part: Any, base: str) -> bool:
    """True if some value meets a part, given that only the definitions in `met` can be met."""
    self.length = 0
    is_met = self.write(part, _Place(base)) is not None
    self.length = 0
    return is_met

  def write(self, part: Any, place: _Place) -> str | None:
    """Returns the expression of a part, in parentheses."""
    choices = self._choices(part, place)
    expression = _join_choices([self._by_keywords(words, inner) for words, inner in choices])
    if expression is None:
      return None
    self.length += len(expression)
    if self.length > LONGEST:
      raise too_large('lower its maximum lengths, or give fewer parts')
    return f'(?:{expression})'

  def _choices(self, part: Any, place: _Place) -> Iterator[tuple[dict[str, Any], _Place]]:
    """Yields the keywords of the schemas that a part chooses from, following anyOf and $ref.

    A definition that is met again before anything is written adds no choice.
    """
    left, followed = collections.deque([(part, place)]), set()
    most = MOST_PARTS if self.referred is None else MOST_TRIED
    while left:
      part, place = left.popleft()
      self.parts_seen += 1
      if self.parts_seen > most or place.depth > MOST_DEPTH:
        raise too_large()

      # Read the part's own keywords.
      if part is False:
        continue
      if part is True:
        part = {}
      if not isinstance(part, dict):
        raise UserError(f'a JSON schema must be an object or true, not {quote(part)}')
      words = {word: value for word, value in part.items() if word not in ANNOTATIONS}
      place = dataclasses.replace(place, base=base_of(part, place.base))
      choosers = [word for word in CHOOSERS if word in words]
      if not choosers:
        yield words, place
        continue
      chooser = choosers[0]
      _check_combination(chooser, words)
      if chooser != '$ref':
        for choice in _read_choices(chooser, words[chooser]):
          left.append((choice, place.within()))
        continue

      # Follow a reference. `find_met` only notes it, others write the definition that it names.
      target, base = self.parts.at(words['$ref'], place.base)
      identity = id(target)
      if not isinstance(target, dict):
        left.append((target, place.within()))
      elif self.referred is not None:
        self.referred[identity] = target, base
        if identity in self.met:
          yield {'const': None}, place  # any value would do
      elif identity in self.met and place.around.get(identity, 0) < RECURSIONS:
        if identity in followed:
          continue
        followed.add(identity)
        left.append((target, dataclasses.replace(place.within(identity), base=base)))

  def _by_keywords(self, words: dict[str, Any], place: _Place) -> str | None:
    """Returns the alternatives of a schema that neither chooses nor refers."""
    if not words:
      # Any value. Lists and objects of any values may contain one another only so often.
      kinds, place = ['string', 'number', 'boolean', 'null'], place.within(ANY)
      if place.around[ANY] < RECURSIONS:
        kinds += ['array', 'object']
      return _join_choices([self._by_type(kind, {}, place) for kind in kinds])

    # Values that the schema lists: those that have one of its types.
    for word in ('enum', 'const'):
      if word not in words:
        continue
      _check_combination(word, words, 'type')
      values, types = words[word], KEYWORDS
      if word == 'const':
        values = [values]
      if 'type' in words:
        types = _read_types(words)
      literals = []
      for value in _check_list(word, values):
        kind = TYPES.get(type(value), 'null')
        if kind == 'number' and 'number' not in types and value.is_integer():
          kind, value = 'integer', int(value)
        if kind in types or (kind == 'integer' and 'number' in types):
          literals.append(_write_literal(value))
      return _join_choices(literals)

    # All values of some types, with the limits that its keywords set.
    types = _read_types(words)
    allowed = {'type'}.union(*(KEYWORDS[kind] for kind in types))
    for word in words:
      if word not in allowed:
        raise UserError(f'{quote(word)} in a JSON schema of {", ".join(types)} is not supported')
    return _join_choices([self._by_type(kind, words, place) for kind in types])

  def _by_type(self, kind: str, keywords: Mapping[str, Any], place: _Place) -> str | None:
    if kind == 'object':
      return self._object(keywords, place)
    if kind == 'array':
      return self._array(keywords, place)
    if kind == 'string':
      self.patterns.add(str(keywords.get('pattern')))
      if len(self.patterns) > MOST_PATTERNS:
        raise too_large('give fewer patterns')
      return _string(keywords)
    if kind == 'integer':
      return _integer(keywords)
    if kind == 'number':
      minimum = _read_number('minimum', keywords)
      if minimum is None:
        return f'-?(?:0|[1-9][0-9]*){FRACTION}'
      if minimum != 0:
        raise UserError('minimum of a number in a JSON schema must be 0: leave it out')
      return f'(?:0|[1-9][0-9]*){FRACTION}'
    return {'null': 'null', 'boolean': 'true|false'}[kind]

  def _array(self, keywords: Mapping[str, Any], place: _Place) -> str | None:
    low, high = _read_count('minItems', keywords) or 0, _read_count('maxItems', keywords)
    prefix = _check_list('prefixItems', keywords.get('prefixItems', []))
    rest = keywords.get('items', True)
    if isinstance(rest, list):
      raise UserError('items of a JSON schema must be a schema: call a list of them prefixItems')

    # The first items have schemas of their own. A list ends before one that no value meets.
    first = []
    for i, part in enumerate(prefix):
      item = self.write(part, place.within())
      if item is None and (high is None or i < high):
        high = i
      if item is not None and (high is None or i < high):
        first.append(item)
    more = None
    if 'items' in keywords or not first or low > len(first):
      more = self.write(rest, place.within())

    # All others have the same schema: `more` from `low` to `high` times.
    low = max(low - len(first), 0)
    if high is not None:
      high -= len(first)
      if high < low:
        return None
    if more is None and low:
      return None
    items = ', '.join(first)
    if more is not None and high != 0:
      if first:
        items += f'(?:, {more}){_repeat(low, high)}'
      elif low:
        items = f'{more}(?:, {more}){_repeat(low - 1, high and high - 1)}'
      else:
        items = f'(?:{more}(?:, {more}){_repeat(0, high and high - 1)})?'
    return rf'\[{items}\]'

  def _object(self, keywords: Mapping[str, Any], place: _Place) -> str | None:
    properties = keywords.get('properties', {})
    if not isinstance(properties, dict):
      raise UserError(f'properties={quote(properties)} of a JSON schema must be an object')
    required = _check_list('required', keywords.get('required', []))
    others, properties = keywords.get('additionalProperties', True), dict(properties)
    for name in required:
      if not isinstance(name, str):
        raise UserError(f'required={quote(required)} of a JSON schema must be a list of names')
      properties.setdefault(name, others)
    required = set(required)
    low, high = _read_count('minProperties', keywords) or 0, _read_count('maxProperties', keywords)

    # An object without named properties has any names; its values meet one schema.
    if not properties and others is not False:
      if low > 1:
        raise UserError('minProperties above 1 is not supported where a JSON schema names none')
      value = self.write(others, place.within())
      if value is None or high == 0:
        return None if low else r'\{\}'
      pair = f'"{LETTER}*": {value}'
      several = f'{pair}(?:, {pair}){_repeat(0, high and high - 1)}'
      return rf'\{{{several}\}}' if low else rf'\{{(?:{several})?\}}'

    # Write each property that some value meets.
    pairs = []
    for name, part in properties.items():
      value = self.write(part, place.within())
      if value is not None:
        pairs.append((f'{_write_literal(name)}: {value}', name in required))
      elif name in required:
        return None
    fewest = sum(is_required for _, is_required in pairs)
    if low > fewest or (high is not None and high < len(pairs)):
      raise UserError(
        'minProperties and maxProperties are not supported where they cut the properties that a'
        ' JSON schema names: make these required, or leave them out'
      )

    # From the last property to the first: what may follow others, and what may come first.
    after, beginnings, length = '', [''], 0
    for pair, is_required in reversed(pairs):
      begin = f'{pair}{after}'
      if is_required:
        beginnings, after = [begin], f', {begin}'
      else:
        beginnings, after = [begin, *beginnings], f'(?:, {pair})?{after}'
      length += len(begin)
      if length > LONGEST:
        raise too_large('make more of its properties required')
    return rf'\{{(?:{"|".join(beginnings)})\}}'


def _check_combination(word: str, keywords: Mapping[str, Any], *others: str) -> None:
  """Raises UserError for a keyword that may not occur together with `word`."""
  for other in keywords:
    if other not in (word, *others):
      raise UserError(f'{quote(other)} together with {word} in a JSON schema is not supported')


def _check_list(word: str, value: Any) -> list[Any]:
  if not isinstance(value, list):
    raise UserError(f'{word}={quote(value)} of a JSON schema must be a list')
  return value


def _read_choices(word: str, value: Any) -> list[Any]:
  """Returns the schemas that anyOf, oneOf or allOf has."""
  parts = _check_list(word, value)
  if word == 'allOf' and len(parts) != 1:
    raise UserError('allOf of several JSON schemas is not supported: write them as one')
  if word == 'oneOf' and len(parts) > 1:
    # Exactly one schema is met if no two have a type in common.
    types_before = set()
    for part in parts:
      types = {'any'}
      if isinstance(part, dict) and 'type' in part:
        types = set(_read_types({'type': part['type']}))
      if 'integer' in types:
        types.add('number')
      if types & types_before or 'any' in types:
        raise UserError('oneOf is supported only for JSON schemas of different types: give anyOf')
      types_before |= types
  return parts


def _read_types(keywords: Mapping[str, Any]) -> list[str]:
  """Returns the types that a schema allows; without `type`, the type that has its keywords."""
  if 'type' not in keywords:
    for kind, words in KEYWORDS.items():
      if words & {*keywords}:
        return [kind]
    raise UserError(f'{quote(next(iter(keywords)))} in a JSON schema is not supported')
  types = keywords['type']
  if isinstance(types, str):
    types = [types]
  for kind in _check_list('type', types):
    if not isinstance(kind, str) or kind not in KEYWORDS:
      raise UserError(f'type={quote(kind)} of a JSON schema is unknown: {list_known(KEYWORDS)}')
  return [kind for kind in dict.fromkeys(types) if kind != 'integer' or 'number' not in types]


def _read_count(word: str, keywords: Mapping[str, Any]) -> int | None:
  if word not in keywords:
    return None
  value = _read_number(word, keywords)
  if value < 0 or value % 1 != 0:
    raise UserError(f'{word}={quote(value)} of a JSON schema must be a whole number from 0')
  if value > MOST_STATES:
    raise UserError(f'{word}={quote(value)} of a JSON schema is supported up to {MOST_STATES:,}')
  return int(value)


def _read_number(word: str, keywords: Mapping[str, Any]) -> Any:
  value = keywords.get(word)
  if word in keywords and (isinstance(value, bool) or not isinstance(value, int | float)):
    raise UserError(f'{word}={quote(value)} of a JSON schema must be a number')
  return value


def _repeat(low: int, high: int | None) -> str:
  return f'{{{low},{"" if high is None else high}}}'


def _join_choices(parts: Sequence[str | None]) -> str | None:
  possible = [part for part in parts if part is not None]
  return '|'.join(possible) if possible else None


def _write_literal(value: Any) -> str:
  """Returns the expression of one JSON value."""
  return re.sub(r'[\\.+*?()|\[\]{}^$]', r'\\\g<0>', json.dumps(value, ensure_ascii=False))


def _string(keywords: Mapping[str, Any]) -> str | None:
  words = {word: value for word, value in keywords.items() if word in KEYWORDS['string']}
  if 'format' in words:
    _check_combination('format', words)
    name = words['format']
    if not isinstance(name, str) or name not in FORMATS:
      raise UserError(
        f'format={quote(name)} of a JSON schema is not supported: {list_known(FORMATS)}'
      )
    return f'"{FORMATS[name]}"'
  if 'pattern' in words:
    _check_combination('pattern', words)
    if not isinstance(words['pattern'], str):
      raise UserError(f'pattern={quote(words["pattern"])} of a JSON schema must be an expression')
    return f'"{_pattern(words["pattern"])}"'
  low, high = _read_count('minLength', words) or 0, _read_count('maxLength', words)
  if high is not None and high < low:
    return None
  return f'"{LETTER}{_repeat(low, high)}"'


@functools.lru_cache(maxsize=2 * MOST_PATTERNS)
def _pattern(pattern: str) -> str:
  """Returns the expression of a `pattern`: on a side without ^ or $, any text may be around it."""
  name = f'pattern={quote(pattern)} of the JSON schema'
  after, _ = compile_bytes(name, pattern)
  if (after[:, ESCAPED] >= 0).any():
    raise UserError(
      f'pattern={quote(pattern)} of a JSON schema may write a quote, a backslash or a control'
      ' character, which JSON escapes: name the characters that are allowed, as in [a-z ]*'
    )
  return f'(?:{remove_anchors(name, pattern, f"(?u-i:{LETTER}*)")})'


def _integer(keywords: Mapping[str, Any]) -> str | None:
  """Returns whole numbers within the bounds that keywords give."""
  lows, highs = [], []
  for word, bounds, inside in (
    ('minimum', lows, lambda bound: math.ceil(bound)),
    ('exclusiveMinimum', lows, lambda bound: math.floor(bound) + 1),
    ('maximum', highs, lambda bound: math.floor(bound)),
    ('exclusiveMaximum', highs, lambda bound: math.ceil(bound) - 1),
  ):
    value = _read_number(word, keywords)
    if value is None:
      continue
    if abs(value) > MOST_BOUND:
      raise UserError(f'{word} of an integer in a JSON schema is supported up to 10^18')
    bounds.append(inside(value))
  return between(max(lows, default=None), min(highs, default=None))


def between(low: int | None, high: int | None) -> str | None:
  """Returns the expression of the whole numbers from low to high; None means no bound.

  >>> between(8, 12), between(-5, 1), between(None, -9)
  ('(?:8|9)|1(?:0|1|2)', '-(?:(?:1|2|3|4|5))|(?:0|1)', '-(?:9|[1-9][0-9]{1,})')
  """
  if low is None and high is None:
    return '-?(?:0|[1-9][0-9]*)'
  parts = []
  if low is None or low < 0:
    # Negative numbers, by their size.
    smallest, largest = 1, None
    if high is not None and high < 0:
      smallest = -high
    if low is not None:
      largest = -low
    size = _natural(smallest, largest)
    if size is not None:
      parts.append(f'-(?:{size})')
  if high is None or high >= 0:
    parts.append(_natural(max(low or 0, 0), high))
  return _join_choices(parts)


def _natural(low: int, high: int | None) -> str | None:
  """Returns the whole numbers from low, which is at least 0, to high, by their lengths."""
  if high is not None and high < low:
    return None
  parts, begin = [], low
  while True:
    digits = len(str(begin))
    end = 10**digits - 1
    if high is not None:
      end = min(end, high)
    parts.append(_same_length(str(begin), str(end)))
    begin = 10**digits
    if high is None:
      parts.append(f'[1-9][0-9]{{{digits},}}')
    if high is None or begin > high:
      return '|'.join(parts)


def _same_length(low: str, high: str) -> str:
  """Returns the numbers from low to high, which have the same length, by their first digits."""
  rest = len(low) - 1
  if rest < 0:
    return ''
  if (low, high) == ('0' * len(low), '9' * len(high)):
    return f'[0-9]{{{len(low)}}}'
  parts, first, last = [], int(low[0]), int(high[0])
  for digit in range(first, last + 1):
    begin, end = '0' * rest, '9' * rest
    if digit == first:
      begin = low[1:]
    if digit == last:
      end = high[1:]
    parts.append(f'{digit}{_same_length(begin, end)}')
  if len(parts) == 1:
    return parts[0]
  return f'(?:{"|".join(parts)})'
