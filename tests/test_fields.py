"""Values of JSON and of configs are of the kinds that a dataclass says, or named
(tests/experiments/lab/test_config.py too)."""

import dataclasses
from typing import Literal

import pytest

from fastdec.errors import UserError
from fastdec.fields import Layers, Positive, Size, Token, read


@dataclasses.dataclass(frozen=True)
class Sizes:
  size: Size
  layers: Layers = 1
  epsilon: Positive | None = 1e-6
  flag: bool = False
  ends: Token | tuple[Token, ...] | None = None
  pairs: tuple[tuple[int, int], ...] = ()
  rope: dict | None = None
  word: str = ''
  side: Literal['left', 'right'] = 'left'


def test_values_of_the_right_kinds_are_read_and_other_names_are_left_aside():
  values = {
    'size': 8,
    'epsilon': 1,
    'ends': [2, 3],
    'pairs': [[1, 2]],
    'rope': {'a': None},
    'more': object(),
  }
  sizes = read(Sizes, values, 'config.json', ': ', ignores=True)
  assert sizes == Sizes(8, epsilon=1.0, ends=(2, 3), pairs=((1, 2),), rope={'a': None})
  assert type(sizes.epsilon) is float


HUGE, DEEP = 10**400, []
for _ in range(10**5):
  DEEP = [DEEP]


@pytest.mark.parametrize(
  ('name', 'value', 'words'),
  [
    ('size', 8.0, r'size=8\.0 is not possible: give a whole number from 1 to 2147483647'),
    ('size', True, 'size=True'),
    ('size', 2**31, 'size=2147483648'),
    ('size', HUGE, 'size=10000'),
    ('layers', 10**9, 'layers=1000000000 is not possible: give a whole number from 1 to 9999'),
    (
      'epsilon',
      '1e-5',
      r"epsilon='1e-5' is not possible: give a number from 1e-30 to 1e\+30 or"
      r' None',
    ),
    ('epsilon', float('nan'), 'epsilon=nan'),
    ('flag', 1, 'flag=1 is not possible: give true or false'),
    (
      'ends',
      '2',
      "ends='2' is not possible: give a whole number from 0 to 2147483647 or a list, each a whole"
      ' number from 0 to 2147483647 or None',
    ),
    ('ends', [2, '3'], r"ends\[1\]='3'"),
    ('ends', DEEP, r'ends\[0\]=a value that is nested too deep'),
    ('pairs', [[1, 2, 3]], r'pairs\[0\]=\[1, 2, 3\] is not possible: give 2 values'),
    ('side', 'x' * 500, r"side='x{79}\.\.\. is not possible"),
  ],
)
def test_a_value_of_a_wrong_kind_is_named_with_what_is_allowed(name, value, words):
  with pytest.raises(UserError, match=f'^config: {words}'):
    read(Sizes, {'size': 8, name: value}, 'config', ': ')


def test_a_field_that_is_needed_is_named():
  with pytest.raises(
    UserError,
    match=r"^config lacks the field 'size': set it to a whole number"
    r' from 1',
  ):
    read(Sizes, {}, 'config')
