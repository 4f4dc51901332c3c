"""Rows as lines of a file, and their names."""

import json

import pytest

import fastdec as fd
from experiments.lab import rows
from fastdec.evaluation.rows import append


def test_a_fragment_of_a_killed_write_is_passed_over(tmp_path):
  path = tmp_path / 'results.jsonl'
  append(path, {'k': 1})
  with open(path, 'a') as file:
    file.write('{"k": 2, "tok')
  append(path, {'k': 3})
  assert [row['k'] for row in rows.read(path)] == [1, 3]
  path.write_text(json.dumps([1]) + '\n')
  with pytest.raises(fd.UserError, match=r'line 1 of .* is not a row'):
    rows.read(path)


def test_latest_is_the_last_that_was_finished():
  lines = [{'k': 1, 'n': 1}, {'k': 1, 'n': 2}, {'k': 1, 'error': 'x'}, {'k': 2, 'error': 'y'}]
  assert rows.latest(lines, 'k') == [lines[1], lines[3]]


def test_a_failure_may_lack_fields_and_a_finished_row_may_not():
  lines = [{'k': 1, 'rule': 'a'}, {'k': 2}, {'k': 2, 'error': 'x'}, {'k': 1, 'error': 'y'}]
  assert rows.find(lines, k=1, rule='a') == lines[0] and rows.find(lines, k=2, rule='a') is None
  assert rows.find_failure(lines, k=2, rule='a') == lines[2]
  assert rows.find_failure(lines, k=3, rule='a') is None
  assert rows.find_failure(lines[:2], k=2) is None


def test_a_long_key_has_a_short_name_of_its_own():
  assert rows.name_of({'k': 2, 'rule': 'top-2', 'text': 'a/b'}) == 'k=2-rule=top-2-text=a|b'
  long = {'k': 2, 'models': 'a' * 64}
  names = {rows.name_of(long | {'models': letter * 64}) for letter in 'ab'}
  assert len(names) == 2 and all(name.startswith('k=2-') for name in names)
  assert max(map(len, names)) < 80
