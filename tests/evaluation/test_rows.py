"""Rows of measurements: whole lines, their conditions, and tables of them."""

import json
import re
import sys

import jax

from fastdec.evaluation import rows


def test_conditions_name_the_machine_and_the_commit():
  conditions = rows.conditions()
  assert conditions['platform'] == 'cpu' and conditions['cpus'] >= 1
  assert re.fullmatch(r'[0-9a-f]{12}(-dirty)?|unknown', conditions['commit'])


def test_conditions_name_the_flags_of_the_compiler_where_there_are_some(monkeypatch):
  jax.devices()  # they were read long ago
  monkeypatch.setenv('XLA_FLAGS', '--fast')
  assert rows.conditions()['xla_flags'] == '--fast'
  monkeypatch.delenv('XLA_FLAGS')
  assert 'xla_flags' not in rows.conditions()


def test_rows_name_files_without_the_folders_of_a_machine(monkeypatch):
  words = ['calls.py', '--model=/models/a/b.gguf', '--out', '/disk/rows.jsonl', 'out/c', '--k=1,2']
  monkeypatch.setattr(sys, 'argv', words)
  assert rows.command() == '--model=b.gguf --out rows.jsonl out/c --k=1,2'
  monkeypatch.setenv('XLA_FLAGS', '--dump_to=/disk/tmp1 --fast')
  assert rows.conditions()['xla_flags'] == '--dump_to=tmp1 --fast'


def test_a_line_does_not_join_the_fragment_of_a_killed_write(tmp_path):
  file = tmp_path / 'new' / 'rows.jsonl'
  rows.append(file, {'ms': 1.5})
  with open(file, 'a') as out:
    out.write('{"ms": 1')
  rows.append(file, {'ms': 2.5})
  lines = file.read_text().splitlines()
  assert [json.loads(lines[i]) for i in (0, 2)] == [{'ms': 1.5}, {'ms': 2.5}]


def test_a_table_has_dashes_for_gaps_and_no_column_without_entries():
  measured = [
    {'name': 'a|b', 'to_greedy': 2.0, 'spread': (1.0, 3.123), 'gap': None, 'jax': 1},
    {'name': 'c', 'to_greedy': 1234.5, 'steps': 12345, 'jax': 1},
  ]
  assert rows.table(measured, hidden={'jax'}).splitlines() == [
    '| name | to greedy | spread | steps |',
    '| --- | --- | --- | --- |',
    r'| a\|b | 2 | 1 .. 3.12 | – |',
    '| c | 1,234 | – | 12345 |',
  ]
