"""The benchmark of calls at toy size: a row for each draft, width and type, packed or not."""

import json

import pytest


def test_calls_of_a_chain_compared_with_greedy_ones(script, tmp_path):
  words = ['--shapes', 'toy', '--drafts', 'free', '--widths', 4, '--dtypes', 'int8']
  words += ['--calls=2', '--rounds=1', '--prompt=4']
  process = script('calls.py', f'--out={tmp_path}/calls.jsonl', *words)
  assert process.returncode == 0, process.stderr
  greedy, chain, long = map(json.loads, (tmp_path / 'calls.jsonl').read_text().splitlines())
  assert greedy['to_greedy'] == 1 and {'shape', 'batch', 'config', 'commit'} <= greedy.keys()
  assert (chain['variant'], long['variant']) == ('width 4', 'greedy, max_len=4092')


@pytest.mark.slow
def test_a_row_for_each_draft_and_type(script, tmp_path):
  words = ['--shapes', 'toy', '--drafts', 'free', 'heads', '--widths', 1, 16]
  words += ['--dtypes', 'float32', 'int8', '--packed', '--calls=2', '--rounds=1', '--prompt=4']
  process = script('calls.py', f'--out={tmp_path}/calls.jsonl', *words)
  assert process.returncode == 0, process.stderr
  rows = [json.loads(line) for line in (tmp_path / 'calls.jsonl').read_text().splitlines()]
  variants = ['greedy', 'width 16', 'tree 16', 'k = 8, separate heads']
  forms = [*variants, *(f'{variant}, packed' for variant in variants)]
  forms.insert(4, 'greedy, max_len=4092')
  named = [(row['dtype'], row['variant']) for row in rows]
  assert named == [(dtype, form) for dtype in ('float32', 'int8') for form in forms]
  assert rows[0]['to_greedy'] == 1 and {'shape', 'batch', 'config', 'commit'} <= rows[0].keys()
  half = len(forms)
  assert rows[half]['megabytes'] < rows[0]['megabytes']  # kernels are in int8
  assert rows[5]['megabytes'] == rows[0]['megabytes']  # a call reads one of a packed kernel's forms
  assert '| toy | float32 | 1 | tree 16 |' in process.stdout


def test_an_unknown_shape_is_a_sentence(script, tmp_path):
  process = script('calls.py', f'--out={tmp_path}/calls.jsonl', '--shapes', '2b')
  assert process.returncode == 2 and "invalid choice: '2b'" in process.stderr
  assert not list(tmp_path.iterdir())
