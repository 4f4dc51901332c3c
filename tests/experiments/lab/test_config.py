"""Configs are strict: a mistake is answered by what is allowed."""

import dataclasses
from typing import Literal

import pytest
from ml_collections import ConfigDict

from experiments.lab.config import locked, parse_arg, to_dataclass
from fastdec.errors import UserError

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
  ('k=eight', ['k=eight', 'a whole number', 'such as 4']),
  ('k=2.5', ['k=2.5', 'a whole number']),
  ('dropout=high', ['dropout=high', 'a number']),
  ('smoke=maybe', ['smoke=maybe', 'true or false']),
  ('scale=huge', ['scale=huge', 'tiny, wmt14']),
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
