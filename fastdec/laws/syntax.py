"""Expressions as users write them: their mistakes, told by place, and their anchors.

A constraint matches whole texts, so ^ and $ at the ends of an expression, or of its alternatives,
add nothing. outlines-core cannot compile them there, and does not tell where a mistake is.
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
IN_CLASS = re.compile(r'\\.|\[\^?\]?|\]', re.DOTALL)  # a ']' right behind '[' is a letter
LONGEST = 2**20  # characters of an expression
MOST_NESTED = 250  # groups within one another: the library's own bound
MOST_TIMES = 4096  # each takes a state of an automaton at least
LACKING = {  # what an automaton, or this file, does not have
  'border': 'looks for the border of a word',
  'reference': 'refers to a group',
  'look': 'looks around',
  'blanks': 'sets the flag x',
}


@dataclasses.dataclass
class _Group:
  """A part in parentheses, or the whole.

  Attributes:
    begin: '(', '(?:' or the like, at place `start` of the expression.
    choices: the alternatives, each a list of groups and texts; an anchor is the text '^' or '$'.
    end: ')', and how often the group is repeated.
    stop: the place behind it.
    is_anchored: true if an anchor is within.
  """

  begin: str
  start: int
  choices: list[list['_Group | str']]
  end: str = ''
  stop: int = 0
  is_anchored: bool = False


def unanchored(name: str, pattern: str, around: str = '') -> str:
  """Returns an expression without anchors, of which whole texts match where `pattern` does.

  Args:
    name: of the expression, for messages.
    pattern: in the syntax of Rust's crate regex.
    around: the expression of what may stand before and behind a match that has no anchor there.

  Raises:
    UserError: an anchor within the expression, a mistake whose place is known, or a text that is
      too long.

  >>> unanchored('it', '^yes$|^no$'), unanchored('it', '^(a|b)', '.*')
  ('yes|no', '(a|b).*')
  """
  if len(pattern) > LONGEST:
    raise UserError(f'{name} is too large: an expression may have {LONGEST:,} characters')
  expression = _Expression(name, pattern)
  return expression.without_anchors(expression.parsed(), around, around)


def reason_of(pattern: str) -> str:
  """Returns why an expression does not compile: Python's parser tells, where the two agree."""
  try:
    with warnings.catch_warnings(action='ignore'):  # of brackets within brackets
      re.compile(pattern)
  except re.error as error:
    return error.msg if error.pos is None else f'{error.msg} at character {error.pos + 1}'
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

  def parsed(self) -> _Group:
    """Returns the groups within one another."""
    groups, place = [_Group('', 0, [[]])], 0  # those that are open
    while place < len(self.pattern):
      token = TOKEN.match(self.pattern, place)
      assert token is not None  # any character is one
      kind, text, items = token.lastgroup, token[0], groups[-1].choices[-1]
      if kind in LACKING:
        raise self._mistake(place, f'{text} {LACKING[kind]}, which is not supported')
      if kind == 'class':
        text = self.pattern[place : self._end_of_class(place)]
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
        items.append('^' if text in ('^', r'\A') else '$')
      else:
        items.append(text)
      place += len(text)
    if len(groups) > 1:
      raise self._mistake(groups[-1].start, r'( is not closed (\( is the character)')
    return groups[0]

  def without_anchors(self, group: _Group, before: str | None, behind: str | None) -> str:
    """Returns the alternatives of a group.

    Args:
      group: a part of the expression.
      before: what may stand before an alternative without ^; None: the group begins no text.
      behind: what may stand behind one without $; None: the group ends no text.
    """
    return '|'.join(self._choice(items, before, behind) for items in group.choices)

  def _choice(self, items: Sequence[_Group | str], before: str | None, behind: str | None) -> str:
    """Returns an alternative; arguments are those of `without_anchors`."""
    begin, end = 0, len(items)
    while begin < end and (items[begin] == '^' or _is_flags(items[begin])):
      begin += 1
    while begin < end and (items[end - 1] == '$' or _is_flags(items[end - 1])):
      end -= 1
    first, inner, last = list(items[:begin]), items[begin:end], list(items[end:])
    if before is not None and '^' in first:
      before, first = '', [item for item in first if item != '^']
    if behind is not None and '$' in last:
      behind, last = '', [item for item in last if item != '$']
    parts = []
    for i, item in enumerate(inner):
      if not isinstance(item, _Group):
        parts.append(item)
      elif not item.is_anchored:
        parts.append(self.pattern[item.start : item.stop])
      elif item.end != ')':  # repeated, so that its anchors are within the text
        raise self._misplaced()
      else:  # what may stand around goes into the alternatives that have no anchor
        is_first, is_last = i == 0, i == len(inner) - 1
        part = self.without_anchors(item, before if is_first else None, behind if is_last else None)
        parts.append(f'{item.begin}{part})')
        before = '' if is_first and before else before
        behind = '' if is_last and behind else behind
    parts = [before or '', *first, *parts, *last, behind or '']
    if '^' in parts or '$' in parts:
      raise self._misplaced()
    return ''.join(map(str, parts))

  def _end_of_class(self, start: int) -> int:
    """Returns the place behind a class of characters, which may have others within."""
    depth = 0
    for token in IN_CLASS.finditer(self.pattern, start):
      depth += {'[': 1, ']': -1}.get(token[0][0], 0)
      if depth == 0:
        return token.end()
    raise self._mistake(start, r'[ is not closed (\[ is the character)')

  def _repeat(self, items: list[_Group | str], times: str, place: int) -> None:
    """Lets the last item be repeated."""
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
      f'{self.name} has a ^ or $ where a text may have begun or may go on: leave them out, or write'
      ' them around the whole, as in ^(a|b)$'
    )


def _is_flags(item: _Group | str) -> bool:
  return isinstance(item, str) and item.startswith('(?')
