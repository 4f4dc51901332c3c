"""What of a run's record must be the same when it goes on, and what may change."""

import json

import pytest

from experiments.lab import record
from fastdec.errors import UserError

TRAINING = {
  'steps': 100,
  'schedule': 'rsqrt',
  'every': 10,
  'average': 2,
  'span': 0.0,
  'accumulate': 1,
  'b2': 0.98,
}
DATA = {'kind': 'files', 'folder': 'there', 'cache': 'out/data', 'vocab_size': 30, 'content': 'abc'}
RECORD = {'seed': 0, 'data': DATA, 'model': {'width': 8}, 'training': TRAINING}


def changed(name, **fields):
  return RECORD | {name: RECORD[name] | fields}


@pytest.fixture
def workdir(tmp_path):
  record.claim(tmp_path / 'run', RECORD)
  return tmp_path / 'run'


@pytest.mark.parametrize('is_finished', [False, True])
@pytest.mark.parametrize(
  'wanted',
  [
    RECORD,
    changed('data', folder='/elsewhere', cache='/tmp'),
    changed('training', accumulate=4),
    # before it was opened
    RECORD | {'data': {name: value for name, value in DATA.items() if name != 'content'}},
  ],
)
def test_places_and_memory_may_change(workdir, wanted, is_finished):
  record.check(workdir, wanted, is_finished)


@pytest.mark.parametrize('fields', [{'every': 20}, {'average': 3, 'span': 0.05}, {'steps': 1000}])
def test_until_a_run_has_finished_its_end_may_change(workdir, fields):
  record.check(workdir, changed('training', **fields), is_finished=False)
  with pytest.raises(UserError, match='made by another config: training'):
    record.check(workdir, changed('training', **fields), is_finished=True)
  record.claim(workdir, changed('training', **fields))
  assert record.read(workdir) == changed('training', **fields)


@pytest.mark.parametrize(
  ('wanted', 'words'),
  [
    (changed('data', content='abd'), 'data.content is "abc" there and "abd" here'),
    (changed('data', vocab_size=31), r'data\.vocab_size is 30'),
    (changed('training', b2=0.9), r'training\.b2 is 0\.98'),
    (RECORD | {'seed': 1}, 'seed is 0 there and 1 here'),
    (RECORD | {'k': 4}, 'k is nothing there and 4 here'),
  ],
)
def test_what_decides_the_result_may_not(workdir, wanted, words):
  for is_finished in (False, True):
    with pytest.raises(UserError, match=words):
      record.check(workdir, wanted, is_finished)
  with pytest.raises(UserError, match=words):
    record.claim(workdir, wanted)
  assert record.read(workdir) == RECORD


def test_a_rate_that_falls_to_zero_knows_the_steps(tmp_path):
  record.claim(tmp_path, changed('training', schedule='linear'))
  with pytest.raises(UserError, match=r'training\.steps is 100 there and 200 here'):
    record.check(tmp_path, changed('training', schedule='linear', steps=200), is_finished=False)


def test_a_record_from_before_content_was_named_goes_on_and_gets_it(tmp_path):
  before = RECORD | {'data': {name: value for name, value in DATA.items() if name != 'content'}}
  (tmp_path / 'config.json').write_text(json.dumps(before))
  record.claim(tmp_path, RECORD)
  assert record.read(tmp_path) == RECORD


@pytest.mark.parametrize(
  ('text', 'words'),
  [('[]', 'is no record'), ('{', 'cannot be read'), ('{"training": 3}', 'by another config')],
)
def test_a_record_that_is_none_is_told(tmp_path, text, words):
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(UserError, match=words):
    record.claim(tmp_path, RECORD)


def test_where_one_process_cannot_write_none_begins(tmp_path, monkeypatch):
  monkeypatch.setattr(record, 'everywhere', lambda fact: False)  # as another process finds
  with pytest.raises(UserError, match='another process cannot train in'):
    record.claim(tmp_path / 'run', RECORD)
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='is a file'):
    record.claim(tmp_path / 'file' / 'run', RECORD)
