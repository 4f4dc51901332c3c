"""Rows: measured once, failures that say why, a budget, several processes."""

import json

import pytest

import fastdec as fd
from experiments.lab import rows, stage
from experiments.lab.rows import Rows, each, latest


@pytest.fixture
def results(tmp_path):
  return Rows(tmp_path / 'results.jsonl', {'machine': 'here'})


def test_a_row_is_measured_once_and_has_the_conditions(results):
  key = {'k': 4, 'size': (1, 2)}
  first = results.measure(key, lambda: {'tokens': 2.5, 'spread': (1.0, float('nan'))})
  assert first == {
    'k': 4, 'size': [1, 2], 'tokens': 2.5, 'spread': [1.0, None], 'machine': 'here',
  }  # fmt: skip
  assert results.measure(key, lambda: pytest.fail('it is there')) == first
  assert results.all([key, {'k': 8}]) == [first]


def test_a_failure_is_a_row_that_says_why_while_the_rest_goes_on(results):
  def work(k, is_broken=True):
    if k == 2 and is_broken:
      raise fd.UserError('no space\nleft')
    if k == 3 and is_broken:
      raise ZeroDivisionError('by nothing')
    results.measure({'k': k}, lambda: {'tokens': 1.0})

  keys = [{'k': k} for k in (1, 2, 3, 4)]
  each(results, keys, work)
  assert [row.get('error') for row in results.all(keys)] == [
    None, 'no space left', 'ZeroDivisionError: by nothing', None,
  ]  # fmt: skip
  assert results.failed == ['k=2', 'k=3']
  log = results.path.parent / 'failures' / 'k=3.log'
  assert 'Traceback' in log.read_text()
  same = [{'k': 2, 'model': 'a'}, {'k': 2, 'model': 'b'}]  # failed before the model was known
  assert [row['error'] for row in results.all(same)] == ['no space left']
  each(results, keys, lambda k: work(k, is_broken=False))  # tried again
  assert [row.get('error') for row in results.all(keys)] == [None] * 4


def test_the_budget_leaves_the_rest_out(results):
  def work(k):
    results.measure({'k': k}, lambda: {})
    raise stage.OutOfTime

  each(results, [{'k': 1}, {'k': 2}], work)
  assert len(rows.read(results.path)) == 1 and not results.is_complete and not results.failed


def test_what_another_process_is_at_comes_last(results, monkeypatch):
  monkeypatch.setattr(stage, 'POLL_SECONDS', 0.0)
  order = []

  def work(k):
    order.append(k)
    if k == 1 and order.count(1) < 3:
      raise stage.Busy

  each(results, [{'k': 1}, {'k': 2}], work)
  assert order == [1, 2, 1, 1]


def test_a_job_opens_what_comes_before_its_keys_and_ends_after_them(results):
  order = []
  with pytest.raises(rows.JobDone), rows.only([{'k': 2}]):
    for name in ('a', 'k', 'z'):
      each(results, [{name: 1}, {name: 2}], lambda **key: order.append(key))
  assert order == [{'a': 1}, {'a': 2}, {'k': 2}]
  with pytest.raises(rows.JobDone), rows.only([]):  # what all rows need
    each(results, [{'a': 1}], lambda **key: pytest.fail('not yet'))


def test_keys_are_submitted_and_those_that_are_done_are_opened(results):
  opened = []
  submit = lambda keys: ([(keys[0], 'no machine'), (keys[1], '')], True)
  with rows.as_jobs(submit):
    each(results, [{'k': 1}, {'k': 2}, {'k': 3}], lambda k: opened.append(k))
  assert opened == [3] and results.failed == ['k=1', 'k=2']
  assert [row['error'] for row in rows.read(results.path)] == ['no machine']


def test_a_fragment_of_a_killed_write_is_passed_over(results):
  results.add({'k': 1})
  with open(results.path, 'a') as file:
    file.write('{"k": 2, "tok')
  results.add({'k': 3})
  assert [row['k'] for row in rows.read(results.path)] == [1, 3]
  results.path.write_text(json.dumps([1]) + '\n')
  with pytest.raises(fd.UserError, match=r'line 1 of .* is not a row'):
    rows.read(results.path)


def test_latest_is_the_last_that_was_finished():
  lines = [{'k': 1, 'n': 1}, {'k': 1, 'n': 2}, {'k': 1, 'error': 'x'}, {'k': 2, 'error': 'y'}]
  assert latest(lines, 'k') == [lines[1], lines[3]]
