"""JSON schemas as regular expressions.

A text that matches is JSON as `json.dumps` writes it, of a value that the schema allows. Not all
such values can be written: objects have the properties that the schema names, in its order, and no
others. A keyword that an expression cannot hold, such as `uniqueItems`, is refused by its name.

outlines-core has such a function too, `build_regex_from_schema`. It passes over keywords without a
word (`maximum`, `type` beside `anyOf`, `required` without `properties`), and some of its
expressions match texts that are no JSON (a `pattern` with an alternative, a property of any kind).
"""

import collections
import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import known, shown
from fastdec.laws.automaton import MOST_STATES, of_bytes
from fastdec.laws.expression import FIRST
from fastdec.laws.schema_parts import Parts, base_of, read, too_large
from fastdec.laws.syntax import LONGEST, unanchored

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
MOST_TRIED = 100_000  # parts that are looked at to find which definitions can be met
MOST_BOUND = 10**18
MOST_PATTERNS = 32
CHOOSERS = ('$ref', 'anyOf', 'oneOf', 'allOf')
ANY = 0  # in `_Place.around`, a value of any kind; no identity is 0


def expression_of(schema: Any) -> str:
  """Returns the regular expression of JSON that a schema allows.

  Raises:
    UserError: a schema that is none, that nothing meets, or that an expression cannot hold.
  """
  try:
    root = read(schema)
    writer = _Writer(Parts(root))
    writer.find_met(root)
    expression = writer.write(root, _Place())
  except RecursionError:  # the caller is deep within functions of its own
    raise too_large() from None
  if expression is None:
    raise UserError('nothing meets the JSON schema: allow some value')
  return expression


@dataclasses.dataclass(frozen=True)
class _Place:
  """Where a part of a schema is written.

  Attributes:
    base: address that its references are relative to.
    depth: parts around it.
    around: times that each definition is around it, by its identity.
  """

  base: str = ''
  depth: int = 0
  around: Mapping[int, int] = dataclasses.field(default_factory=dict[int, int])

  def within(self, definition: int | None = None) -> '_Place':
    """Returns a place one part further in, which may be a definition's."""
    around = self.around
    if definition is not None:
      around = {**around, definition: around.get(definition, 0) + 1}
    return _Place(self.base, self.depth + 1, around)


class _Writer:
  """Writes the expressions of a schema's parts. A part that nothing meets has none: None."""

  def __init__(self, parts: Parts):
    self.parts, self.seen, self.length = parts, 0, 0
    self.patterns: set[str] = set()  # each is compiled alone too
    self.met: set[int] = set()  # the definitions that some value meets, by identity
    self.referred: dict[int, tuple[Any, str]] | None = None  # in `find_met`, those that are known

  def find_met(self, root: Any) -> None:
    """Finds the definitions that a value meets: at first none, then those that need only these.

    So definitions that contain one another without an end are known before any is written out.
    """
    self.referred = known = {}
    self._tried(root, '')
    written = 0
    while written < len(known):  # each may refer to more
      new, written = [*known.values()][written:], len(known)
      for part, base in new:
        self._tried(part, base)
    count = -1
    while count != len(self.met):
      count = len(self.met)
      for identity, (part, base) in reversed(known.items()):
        if identity not in self.met and self._tried(part, base):
          self.met.add(identity)
    self.referred, self.seen = None, 0

  def _tried(self, part: Any, base: str) -> bool:
    """Returns whether a value meets a part, if the definitions in `met` alone can be met."""
    self.length = 0
    is_met = self.write(part, _Place(base)) is not None
    self.length = 0
    return is_met

  def write(self, part: Any, place: _Place) -> str | None:
    """Returns the expression of a part, in parentheses."""
    written = [self._by_keywords(words, inner) for words, inner in self._choices(part, place)]
    expression = _either(written)
    if expression is None:
      return None
    self.length += len(expression)
    if self.length > LONGEST:
      raise too_large('give lower highest lengths, or fewer parts')
    return f'(?:{expression})'

  def _choices(self, part: Any, place: _Place) -> Iterator[tuple[dict[str, Any], _Place]]:
    """Yields the keywords of the schemas that a part chooses from: anyOf and $ref are followed.

    A definition that is met again before anything is written adds no choice.
    """
    left, followed = collections.deque([(part, place)]), set()
    while left:
      part, place = left.popleft()
      self.seen += 1
      if self.seen > (MOST_PARTS if self.referred is None else MOST_TRIED):
        raise too_large()
      if place.depth > MOST_DEPTH:
        raise too_large()
      if part is False:
        continue
      if part is not True and not isinstance(part, dict):
        raise UserError(f'{shown(part)} is no JSON schema: give an object, or true')
      words = {} if part is True else {k: v for k, v in part.items() if k not in ANNOTATIONS}
      place = dataclasses.replace(place, base=base_of(part, place.base))
      chooser = next((word for word in CHOOSERS if word in words), None)
      if chooser is None:
        yield words, place
        continue
      _check_alone(chooser, words)
      if chooser != '$ref':
        left.extend((one, place.within()) for one in _chosen(chooser, words[chooser]))
        continue
      target, base = self.parts.at(words['$ref'], place.base)
      identity = id(target)
      if not isinstance(target, dict):
        left.append((target, place.within()))
      elif self.referred is not None:
        self.referred[identity] = target, base
        if identity in self.met:
          yield {'const': None}, place  # stands for any value
      elif identity in self.met and place.around.get(identity, 0) < RECURSIONS:
        if identity in followed:
          continue
        followed.add(identity)
        left.append((target, dataclasses.replace(place.within(identity), base=base)))

  def _by_keywords(self, words: dict[str, Any], place: _Place) -> str | None:
    """Returns the alternatives of a schema that neither chooses nor refers."""
    if not words:
      return self._any(place)
    for word in ('enum', 'const'):
      if word in words:
        _check_alone(word, words, 'type')
        values = _a_list(word, words[word]) if word == 'enum' else [words[word]]
        types = _types(words) if 'type' in words else KEYWORDS
        fit = [value for value in values if _types_of(value) & {*types}]
        return _either([_escape(json.dumps(value, ensure_ascii=False)) for value in fit])
    types = _types(words)
    for word in words:
      if word != 'type' and not any(word in KEYWORDS[kind] for kind in types):
        raise UserError(f'{shown(word)} in a JSON schema of {", ".join(types)} is not supported')
    return _either([self._typed(kind, words, place) for kind in types])

  def _typed(self, kind: str, keywords: Mapping[str, Any], place: _Place) -> str | None:
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
      if _number('minimum', keywords, 0) != 0:
        raise UserError('minimum of a number in a JSON schema is supported as 0 alone')
      return f'{"" if "minimum" in keywords else "-?"}(?:0|[1-9][0-9]*){FRACTION}'
    return 'null' if kind == 'null' else 'true|false'

  def _any(self, place: _Place) -> str | None:
    """Returns any value; lists and objects end within one another."""
    kinds = ['string', 'number', 'boolean', 'null']
    if place.around.get(ANY, 0) < RECURSIONS - 1:
      kinds += ['array', 'object']
    return _either([self._typed(kind, {}, place.within(ANY)) for kind in kinds])

  def _array(self, keywords: Mapping[str, Any], place: _Place) -> str | None:
    low, high = _count('minItems', keywords, 0), _count('maxItems', keywords, None)
    listed = _a_list('prefixItems', keywords.get('prefixItems', []))
    rest = keywords.get('items', True)
    if isinstance(rest, list):
      raise UserError('items of a JSON schema must be a schema: call a list of them prefixItems')
    first = [self.write(part, place.within()) for part in listed][:high]
    if None in first:  # a list ends before what nothing meets
      high = first.index(None)
      first = first[:high]
    more = None
    if 'items' in keywords or not first or low > len(first):
      more = self.write(rest, place.within())
    low, high = max(low - len(first), 0), None if high is None else high - len(first)
    if (more is None and low) or (high is not None and high < low):
      return None
    items = ', '.join(part for part in first if part is not None)
    if more is not None and high != 0:
      if first:
        items += f'(?:, {more}){_times(low, high)}'
      else:
        others = f'(?:, {more}){_times(max(low - 1, 0), None if high is None else high - 1)}'
        items = f'{more}{others}' if low else f'(?:{more}{others})?'
    return rf'\[{items}\]'

  def _object(self, keywords: Mapping[str, Any], place: _Place) -> str | None:
    properties = keywords.get('properties', {})
    if not isinstance(properties, dict):
      raise UserError(f'properties={shown(properties)} of a JSON schema must be an object')
    required = _a_list('required', keywords.get('required', []))
    if not all(isinstance(name, str) for name in required):
      raise UserError(f'required={shown(required)} of a JSON schema must be a list of names')
    required = dict.fromkeys(required)
    others = keywords.get('additionalProperties', True)
    properties = {**properties, **{name: others for name in required if name not in properties}}
    low, high = _count('minProperties', keywords, 0), _count('maxProperties', keywords, None)
    if not properties and others is not False:
      return self._map(others, low, high, place)
    pairs = []
    for name, part in properties.items():
      value = self.write(part, place.within())
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
    # From the last property to the first: what may follow others, and what may come first.
    after, beginnings, length = '', [''], 0
    for pair, is_required in reversed(pairs):
      begun = f'{pair}{after}'
      beginnings = [begun] if is_required else [begun, *beginnings]
      after = f', {begun}' if is_required else f'(?:, {pair})?{after}'
      length += len(begun)
      if length > LONGEST:
        raise too_large('make more of its properties required')
    return rf'\{{(?:{"|".join(beginnings)})\}}'

  def _map(self, values: Any, low: int, high: int | None, place: _Place) -> str | None:
    """Returns an object of any names, whose values meet a schema."""
    if low > 1:
      raise UserError('minProperties above 1 is not supported where a JSON schema names none')
    value = self.write(values, place.within())
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


def _chosen(word: str, value: Any) -> list[Any]:
  """Returns the schemas that anyOf, oneOf or allOf has."""
  parts = _a_list(word, value)
  if word == 'allOf' and len(parts) != 1:
    raise UserError('allOf of several JSON schemas is not supported: write them as one')
  if word == 'oneOf' and len(parts) > 1 and not _differ(parts):
    raise UserError('oneOf is supported where types tell its JSON schemas apart: give anyOf')
  return parts


def _types(keywords: Mapping[str, Any]) -> list[str]:
  """Returns the types that a schema allows; without `type`, the one that its keywords are of."""
  if 'type' not in keywords:
    for kind, words in KEYWORDS.items():
      if words & {*keywords}:
        return [kind]
    raise UserError(f'{shown(next(iter(keywords)))} in a JSON schema is not supported')
  types = keywords['type']
  types = [types] if isinstance(types, str) else _a_list('type', types)
  for kind in types:
    if not isinstance(kind, str) or kind not in KEYWORDS:
      raise UserError(f'{shown(kind)} is no type of a JSON schema: {known(KEYWORDS)}')
  return [kind for kind in dict.fromkeys(types) if kind != 'integer' or 'number' not in types]


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
  if word not in keywords:
    return default
  value = keywords[word]
  if not (type(value) is int and value >= 0):
    raise UserError(f'{word}={shown(value)} of a JSON schema must be a whole number from 0')
  if value > MOST_STATES:
    raise UserError(f'{word}={shown(value)} of a JSON schema is supported up to {MOST_STATES:,}')
  return value


def _number(word: str, keywords: Mapping[str, Any], default: int | None) -> Any:
  value = keywords.get(word, default)
  if word in keywords and (isinstance(value, bool) or not isinstance(value, int | float)):
    raise UserError(f'{word}={shown(value)} of a JSON schema must be a number')
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
    if not isinstance(words['pattern'], str):
      raise UserError(f'pattern={shown(words["pattern"])} of a JSON schema must be an expression')
    return f'"{_pattern(words["pattern"])}"'
  low, high = _count('minLength', words, 0), _count('maxLength', words, None)
  return None if high is not None and high < low else f'"{LETTER}{_times(low, high)}"'


@functools.lru_cache(maxsize=2 * MOST_PATTERNS)
def _pattern(pattern: str) -> str:
  """Returns the expression of a `pattern`: where no ^ or $ is, any letters may stand around it."""
  name = f'pattern={shown(pattern)} of the JSON schema'
  after, _ = of_bytes(name, pattern)
  if (after[:, ESCAPED] >= 0).any():
    raise UserError(
      f'pattern={shown(pattern)} of a JSON schema may write a quote, a backslash or a control,'
      ' which JSON escapes: name the characters that are allowed, as in [a-z ]*'
    )
  return f'(?:{unanchored(name, pattern, f"(?u-i:{LETTER}*)")})'


def _integer(keywords: Mapping[str, Any]) -> str | None:
  """Returns whole numbers within the bounds that keywords give."""
  lows, highs = [], []
  for word, bounds, inside in (
    ('minimum', lows, 0), ('exclusiveMinimum', lows, 1),
    ('maximum', highs, 0), ('exclusiveMaximum', highs, -1),
  ):  # fmt: skip
    value = _number(word, keywords, None)
    if value is None:
      continue
    if value % 1 != 0:
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
