"""Configs are strict: a mistake is answered by what is allowed."""

import dataclasses
import math
import random
import runpy
import types
import typing
from pathlib import Path
from typing import Annotated, Literal

import pytest
from ml_collections import ConfigDict

from experiments.lab.config import leaves_of, locked, parse_arg, read_text, to_dataclass
from fastdec.errors import UserError
from fastdec.fields import Between, value_of

PAGES = Path(__file__).parents[3] / 'configs'

DEFAULTS = {'k': 4, 'smoke': False, 'dropout': 0.1, 'name': 'base', 'scale': ('tiny', 'wmt14')}


@pytest.mark.parametrize(('arg', 'changed'), [
  ('', {}), ('k=8', {'k': 8}),
  (' k = 8 , smoke,', {'k': 8, 'smoke': True}),
  ('smoke=false', {'smoke': False}), ('dropout=0', {'dropout': 0.0}),
  ('scale=wmt14,name=a=b', {'scale': 'wmt14', 'name': 'a=b'}),
])  # fmt: skip
def test_an_argument_changes_what_it_names(arg, changed):
  expected = {**DEFAULTS, 'scale': 'tiny', **changed}
  assert parse_arg(arg, **DEFAULTS).to_dict() == expected


def test_values_have_the_type_of_their_default():
  parsed = parse_arg('dropout=0,k=3', **DEFAULTS)
  assert type(parsed.dropout) is float and type(parsed.k) is int and type(parsed.smoke) is bool


@pytest.mark.parametrize(('arg', 'words'), [
  ('kk=8', ["'kk'", 'known are k, smoke, dropout, name, scale', "given: 'kk=8'"]),
  ('k=eight', ["k='eight'", 'a whole number']),
  ('k=2.5', ["k='2.5'", 'a whole number']),
  ('dropout=high', ["dropout='high'", 'a number']),
  ('smoke=maybe', ["smoke='maybe'", 'true or false']),
  ('scale=huge', ["scale='huge'", 'tiny, wmt14']),
  ('scale', ["'scale' needs a value", 'scale=tiny']),
  ('k=1,k=2', ["'k' twice"]),
])  # fmt: skip
def test_a_wrong_argument_is_answered_by_what_is_allowed(arg, words):
  with pytest.raises(UserError) as error:
    parse_arg(arg, **DEFAULTS)
  assert all(word in str(error.value) for word in words), error.value


def test_a_locked_config_takes_values_but_no_keys_at_any_depth():
  config = locked(model={'d': 4}, steps=1)
  config.model.d = 8
  with pytest.raises(AttributeError):
    config.model.dd = 8
  with pytest.raises(AttributeError):
    config.step = 2


@dataclasses.dataclass(frozen=True)
class Inner:
  width: int
  rate: float = 0.5
  norm: Literal['pre', 'post'] = 'pre'


@dataclasses.dataclass(frozen=True)
class Outer:
  inner: Inner
  sizes: tuple[int, ...] = ()
  limit: int | None = None
  shared: bool = True


def test_a_config_becomes_nested_dataclasses():
  config = locked(inner={'width': 3, 'rate': 1, 'norm': 'post'}, sizes=[1, 2], limit=7)
  assert to_dataclass(Outer, config) == Outer(Inner(3, 1.0, 'post'), (1, 2), 7, True)
  assert type(to_dataclass(Outer, config).inner.rate) is float


def value_for(hint, draw):
  """A value of an annotation; words are such that another type could take them."""
  low, high = -(10**6), 10**6
  if typing.get_origin(hint) is Annotated:
    hint, between = typing.get_args(hint)
    low, high = max(low, between.low), min(high, between.high)
  kinds = typing.get_args(hint)
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    return value_for(
      draw.choice([kind for kind in kinds if not dataclasses.is_dataclass(kind)]), draw
    )
  if typing.get_origin(hint) is Literal:
    return draw.choice(kinds)
  if typing.get_origin(hint) is tuple:
    if kinds[-1] is ...:
      kinds = kinds[:1] * draw.randint(0, 3)
    return tuple(value_for(kind, draw) for kind in kinds)
  if hint is str:
    return draw.choice(['', 'a', '.gz', 'top-2', "don't", 'a, b', '1', 'None', 'true', '("', 'é'])
  if hint is bool:
    return draw.random() < 0.5
  if hint is int:
    return draw.randint(math.ceil(low), math.floor(high))
  if hint is float:
    return float(draw.choice([low, high, draw.uniform(low, high)]))
  assert hint is types.NoneType


@pytest.mark.parametrize('page, choices', [
  ('wmt14', ''), ('wmt14', 'model=fconv'), ('celeba', ''), ('incremental', ''), ('lookahead', ''),
  ('medusa', ''), ('speculative', ''), ('drafts', ''), ('drafts', 'kind=eagle'),
  ('drafts', 'kind=block'), ('drafts', 'kind=heads'),
])  # fmt: skip
def test_the_command_line_reads_every_setting_as_it_is_written(page, choices):
  """So sweeps, and the config that rows name, mean what they say."""
  config, draw = runpy.run_path(f'{PAGES}/{page}.py')['get_config'](choices), random.Random(page)
  assert set(config.hints) == set(leaves_of(config))
  for name, hint in config.hints.items():
    default = value_of(hint, leaves_of(config)[name], name)
    for value in (default, *(value_for(hint, draw) for _ in range(5))):
      read = read_text(hint, str(value), name)
      assert repr(read) == repr(value), name  # the types of entries are equal too
      config.set({name: read})
      assert leaves_of(config)[name] == value


@pytest.mark.parametrize(('hint', 'texts', 'value'), [
  (int, ['2', '02', ' 2'], 2), (float, ['0.001', '1e-3'], 0.001), (float, ['2'], 2.0),
  (bool, ['true', ' True', '1'], True), (bool, ['false', 'FALSE', '0'], False),
  (int | None, ['None'], None), (int | None, ['7'], 7), (float | None, ['7'], 7.0),
  (str | None, ['None'], None), (str | None, ['7'], '7'), (str, ['None'], 'None'), (str, [''], ''),
  (tuple[int, ...], ['2,4', '(2, 4)', '[2,4,]', '02,4'], (2, 4)), (tuple[int, ...], ['2'], (2,)),
  (tuple[int, ...], ['()', '', '[]'], ()), (tuple[float, ...], ['1,1e-3'], (1.0, 0.001)),
  (tuple[bool, ...], ['true,0'], (True, False)), (tuple[int | None, ...], ['1,None'], (1, None)),
  (tuple[str, ...], ['exact,top-2', "('exact', 'top-2')", '[exact, "top-2"]'], ('exact', 'top-2')),
  (tuple[str, ...], ['2,4'], ('2', '4')), (tuple[str, ...], ["('',)", "''"], ('',)),
  (tuple[tuple[int, int], ...], ['(1,4),(2,4)', '((1, 4), (2, 4))'], ((1, 4), (2, 4))),
  (tuple[Literal['a', 'b-1'], ...], ['b-1,a'], ('b-1', 'a')),
])  # fmt: skip
def test_words_are_read_by_their_meaning(hint, texts, value):
  for text in texts:
    assert repr(read_text(hint, text, 'k')) == repr(value), text


@pytest.mark.parametrize(('hint', 'text', 'message'), [
  (bool, 'off', "k='off' is not possible: give true or false"), (bool, '', 'give true or false'),
  (bool, '2', 'give true or false'), (int, '2.0', 'a whole number'), (int, '1e3', 'whole number'),
  (int, '', "k='' is not possible: give a whole number"), (float, 'fast', 'give a number'),
  (float, 'nan', 'give a number'), (float, '1e999', 'give a number'), (int, 'None', 'whole number'),
  (int | None, 'none', 'give a whole number or None'), (Literal['a', 'b'], 'c', 'give one of a, b'),
  (tuple[int, ...], '2,x', r"k[1]='x' is not possible: give a whole number"),
  (tuple[bool, ...], 'true,off', 'k[1]='), (tuple[int, int], '1', 'give 2 values'),
  (tuple[Annotated[int, Between(2, 9)], ...], '2,10', 'k[1]=10 is not possible'),
])  # fmt: skip
def test_a_word_that_means_no_value_is_answered_by_what_is_allowed(hint, text, message):
  with pytest.raises(UserError) as error:
    read_text(hint, text, 'k')
  assert message in str(error.value)


@pytest.mark.parametrize(('fields', 'words'), [
  ({'inner': {'width': 3, 'depth': 1}},
    ["config.inner has no field 'depth'", 'known are width, rate, norm']),
  ({'inner': {}}, ["config.inner lacks the field 'width'", 'a whole number']),
  ({'inner': {'width': 'wide'}}, ["config.inner.width='wide'", 'a whole number']),
  ({'inner': {'width': True}}, ['config.inner.width=True', 'a whole number']),
  ({'inner': {'width': 3, 'norm': 'none'}}, ["config.inner.norm='none'", 'one of pre, post']),
  ({'inner': 3}, ['config.inner=3', 'give an object']),
  ({'inner': {'width': 3}, 'limit': 'no'}, ["config.limit='no'", 'a whole number or None']),
])  # fmt: skip
def test_a_wrong_field_is_named_by_its_full_path(fields, words):
  with pytest.raises(UserError) as error:
    to_dataclass(Outer, ConfigDict(fields))
  assert all(word in str(error.value) for word in words), error.value
