"""Regular expressions as users write them: finds mistakes, and removes anchors.

A constraint matches whole texts, so ^ and $ at the ends of an expression, or of its alternatives,
change nothing. outlines-core cannot compile them there, and does not say where a mistake is.
"""

import dataclasses
import re
import warnings
from collections.abc import Sequence

from fastdec.errors import UserError

TOKEN = re.compile(
  r"""
  (?P<border>\\(?:b\{[^{}]*\}|[bB<>]))
  |(?P<reference>\\[1-9]|\(\?P=)
  |(?P<anchor>[\^$]|\\[Az])
  |(?P<escape>\\(?:[pPxuU]\{[^{}]*\}|.))
  |(?P<look>\(\?<?[=!])
  |(?P<blanks>\(\?[a-wyzA-Z]*x[a-zA-Z-]*[:)])
  |(?P<flags>\(\?[a-zA-Z-]+\))
  |(?P<open>\((?:\?(?:P?<\w[^<>]*>|[a-zA-Z-]*:))?)
  |(?P<close>\))
  |(?P<either>\|)
  |(?P<times>(?:[*+?]|\{[^{}]*\})+)
  |(?P<class>\[)
  |(?P<text>[^\\\[^$()|*+?{]+|.)
  """,
  re.DOTALL | re.VERBOSE,
)
IN_CLASS = re.compile(r'\\.|\[\^?\]?|\]', re.DOTALL)  # a ']' just after '[' is a letter
LONGEST = 2**20  # characters of an expression
MOST_NESTED = 250  # groups within one another: the library's own bound
MOST_TIMES = 4096  # each takes at least one state of an automaton
LACKING = {  # what automata, or this file, do not support
  'border': 'looks for the border of a word',
  'reference': 'refers to a group',
  'look': 'looks around',
  'blanks': 'sets the flag x',
}


@dataclasses.dataclass
class _Group:
  """A part in parentheses, or the whole expression.

  Attributes:
    begin: '(', '(?:' or the like, at place `start` of the expression.
    choices: the alternatives, each a list of groups and texts; an anchor is the text '^' or '$'.
    end: ')' and the group's repetition.
    stop: the place after `end`.
    is_anchored: true if it contains an anchor.
  """

  begin: str
  start: int
  choices: list[list['_Group | str']]
  end: str = ''
  stop: int = 0
  is_anchored: bool = False


def remove_anchors(name: str, pattern: str, around: str = '') -> str:
  """Returns an expression without anchors that matches the same texts, as a whole.

  Args:
    name: of the expression, for messages.
    pattern: in the syntax of Rust's crate regex.
    around: expression of the text that may surround a match on each side without an anchor.

  Raises:
    UserError: the expression has a mistake whose place is known, an anchor inside a text, or too
      many characters.

  >>> remove_anchors('it', '^yes$|^no$'), remove_anchors('it', '^(a|b)', '.*')
  ('yes|no', '(a|b).*')
  """
  if len(pattern) > LONGEST:
    raise UserError(f'{name} is too large: an expression may have {LONGEST:,} characters')
  expression = _Expression(name, pattern)
  return expression.write(expression.parse(), around, around)


def explain_mistake(pattern: str) -> str:
  """Returns why an expression does not compile, as far as Python's own parser knows."""
  try:
    with warnings.catch_warnings(action='ignore'):  # about brackets within brackets
      re.compile(pattern)
  except re.error as error:
    if error.pos is None:
      return error.msg
    return f'{error.msg} at character {error.pos + 1}'
  except (RecursionError, OverflowError):
    return 'it is nested too deep, or repeats too much'
  return (
    "it is too large, not in the syntax of Rust's crate regex, or has a part that no text matches"
  )


@dataclasses.dataclass(frozen=True)
class _Expression:
  """An expression, and its name for messages."""

  name: str
  pattern: str

  def parse(self) -> _Group:
    """Returns the whole expression as nested groups."""
    groups, place = [_Group('', 0, [[]])], 0  # the groups that are open
    while place < len(self.pattern):
      token = TOKEN.match(self.pattern, place)
      assert token is not None  # any character is a token
      kind, text, items = token.lastgroup, token[0], groups[-1].choices[-1]
      if kind in LACKING:
        raise self._mistake(place, f'{text} {LACKING[kind]}, which is not supported')
      if kind == 'class':
        text = self.pattern[place : self._find_class_end(place)]
      if kind == 'open':
        if len(groups) > MOST_NESTED:
          raise self._mistake(place, f'more than {MOST_NESTED} parentheses are open')
        groups.append(_Group(text, place, [[]]))
        items.append(groups[-1])
      elif kind == 'close':
        if len(groups) == 1:
          raise self._mistake(place, r') closes nothing (\) is the character)')
        groups[-1].end, groups[-1].stop = text, token.end()
        groups.pop()
      elif kind == 'either':
        groups[-1].choices.append([])
      elif kind == 'times':
        self._repeat(items, text, place)
      elif kind == 'anchor':
        for group in groups:
          group.is_anchored = True
        items.append({r'\A': '^', r'\z': '$'}.get(text, text))
      else:
        items.append(text)
      place += len(text)
    if len(groups) > 1:
      raise self._mistake(groups[-1].start, r'( is not closed (\( is the character)')
    return groups[0]

  def write(self, group: _Group, before: str | None, after: str | None) -> str:
    """Returns the alternatives of a group.

    Args:
      group: a part of the expression.
      before: may precede an alternative without ^; None: the group does not begin the text.
      after: may follow an alternative without $; None: the group does not end the text.
    """
    return '|'.join(self._write_choice(items, before, after) for items in group.choices)

  def _write_choice(
    self, items: Sequence[_Group | str], before: str | None, after: str | None
  ) -> str:
    # Take the anchors from both ends; flags may be among them.
    begin, end = 0, len(items)
    while begin < end and (items[begin] == '^' or _is_flags(items[begin])):
      begin += 1
    while begin < end and (items[end - 1] == '$' or _is_flags(items[end - 1])):
      end -= 1
    first, inner, last = list(items[:begin]), items[begin:end], list(items[end:])
    if before is not None and '^' in first:
      before, first = '', [item for item in first if item != '^']
    if after is not None and '$' in last:
      after, last = '', [item for item in last if item != '$']

    # Write the items. The first and the last group take what may surround the text, since some of
    # their alternatives may have anchors.
    parts = []
    for i, item in enumerate(inner):
      if not isinstance(item, _Group):
        parts.append(item)
        continue
      if not item.is_anchored:
        parts.append(self.pattern[item.start : item.stop])
        continue
      if item.end != ')':  # it is repeated, so its anchors are inside the text
        raise self._misplaced()
      group_before = group_after = None
      if i == 0:
        group_before, before = before, before and ''
      if i == len(inner) - 1:
        group_after, after = after, after and ''
      parts.append(f'{item.begin}{self.write(item, group_before, group_after)})')
    parts = [before or '', *first, *parts, *last, after or '']
    if '^' in parts or '$' in parts:
      raise self._misplaced()
    return ''.join(map(str, parts))

  def _find_class_end(self, start: int) -> int:
    """Returns the place after a class of characters, which may contain others."""
    depth = 0
    for token in IN_CLASS.finditer(self.pattern, start):
      depth += {'[': 1, ']': -1}.get(token[0][0], 0)
      if depth == 0:
        return token.end()
    raise self._mistake(start, r'[ is not closed (\[ is the character)')

  def _repeat(self, items: list[_Group | str], times: str, place: int) -> None:
    """Adds a repetition to the last item."""
    if not items:
      raise self._mistake(place, f'{times[0]} has nothing to repeat')
    if any(int(number) > MOST_TIMES for number in re.findall('[0-9]{1,9}', times)):
      raise self._mistake(place, f'{times} repeats more than {MOST_TIMES:,} times')
    last = items[-1]
    if isinstance(last, _Group):
      last.end, last.stop = last.end + times, last.stop + len(times)
    elif last in ('^', '$'):
      raise self._misplaced()
    else:
      items[-1] = last + times

  def _mistake(self, place: int, what: str) -> UserError:
    return UserError(f'{self.name} does not compile: at character {place + 1}, {what}')

  def _misplaced(self) -> UserError:
    return UserError(
      f'{self.name} has a ^ or $ that may be inside a text: leave them out, or write them around'
      ' the whole expression, as in ^(a|b)$'
    )


def _is_flags(item: _Group | str) -> bool:
  return isinstance(item, str) and item.startswith('(?')
