"""The GPU benchmark on a CPU: all parts run; a failure is a row, and the next piece runs."""

import json
import sys

import jax
import pytest

import fastdec as fd
from benchmarks import gpu


def rows_of(folder):
  return [json.loads(line) for line in (folder / 'results.jsonl').read_text().splitlines()]


@pytest.mark.slow
def test_every_part_has_its_rows_at_smoke_size(script, tmp_path):
  process = script('gpu.py', f'--out={tmp_path}', '--smoke', '--budget=3600s')
  assert process.returncode == 0, process.stdout + process.stderr
  rows = rows_of(tmp_path)
  assert [row for row in rows if 'error' in row] == []
  for row in rows:
    assert {'device', 'jax', 'jaxlib', 'python', 'commit', 'dtype'} <= row.keys()
  by_part = {part: [row for row in rows if row['part'] == part] for part in gpu.PARTS}
  assert all(row['nats_apart'] < 1e-3 for row in by_part['parity'])
  assert [row['same_texts'] for row in by_part['exact']] == [1, 1, 1]
  assert {row['dtype'] for row in by_part['widths']} == {'bfloat16', 'int8'}
  assert all(row['to_floor'] > 0 and row['to_greedy'] > 0 for row in by_part['widths'])
  base, draft, clock = by_part['translator']
  assert base['steps'] == draft['steps'] == 2 and clock['times_greedy'] > 0
  assert len(by_part['growth']) == 1
  report = (tmp_path / 'report.md').read_text()
  assert report in process.stdout
  assert all(f'## {part.title()}' in report for part in gpu.PARTS)


def test_a_part_as_a_user_runs_it(script, tmp_path):
  process = script('gpu.py', f'--out={tmp_path}', '--smoke', '--parts=growth')
  assert process.returncode == 0, process.stdout + process.stderr
  (row,) = rows_of(tmp_path)
  assert row['part'] == 'growth' and row['to_floor'] > 0 and row['to_greedy'] > 0
  report = (tmp_path / 'report.md').read_text()
  assert report in process.stdout and '## Growth' in report


def run(monkeypatch, tmp_path, pieces, *words):
  """Runs the benchmark on these pieces, and returns its exit code."""
  monkeypatch.setattr(gpu, 'pieces', lambda *_: pieces)
  monkeypatch.setattr(sys, 'argv', ['gpu.py', f'--out={tmp_path}', '--smoke', *words])
  with pytest.raises(SystemExit) as exited:
    gpu.main()
  return exited.value.code


def broken():
  yield {'piece': 'whole', 'figure': 1.5}
  raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory')


def test_a_failure_is_a_row_and_the_next_piece_runs(monkeypatch, tmp_path):
  pieces = [('widths', 'large', 0, broken()), ('growth', 'small', 0, iter([{'figure': 2.5}]))]
  assert run(monkeypatch, tmp_path, pieces) == 1
  rows = rows_of(tmp_path)
  assert [row['piece'] for row in rows] == ['whole', 'large', 'small']
  assert rows[1]['error'] == 'RuntimeError: RESOURCE_EXHAUSTED: Out of memory'
  report = (tmp_path / 'report.md').read_text()
  assert '| large | – | RuntimeError: RESOURCE_EXHAUSTED: Out of memory |' in report
  assert '| small | 2.5 |' in report


def test_an_exhausted_budget_is_not_a_failure(monkeypatch, tmp_path):
  pieces = [('widths', 'late', 0, broken())]
  assert run(monkeypatch, tmp_path, pieces, '--budget=0s') == 0
  (row,) = rows_of(tmp_path)
  assert row['error'].startswith('TimeoutError: it wants 0 s of the budget')


def test_parts_may_be_chosen(monkeypatch, tmp_path):
  pieces = [('widths', 'other', 0, broken()), ('growth', 'small', 0, iter([{'figure': 2.5}]))]
  assert run(monkeypatch, tmp_path, pieces, '--parts=growth') == 0
  assert [row['piece'] for row in rows_of(tmp_path)] == ['small']


def test_real_sizes_are_not_for_a_cpu(script, tmp_path):
  process = script('gpu.py', f'--out={tmp_path}')
  assert process.returncode == 2 and 'JAX sees only the CPU' in process.stderr


def test_real_sizes_have_all_pieces_in_their_order(tmp_path):
  pieces = [(part, name) for part, name, _, _ in gpu.pieces(tmp_path, 'data/multi30k', False)]
  assert len(set(pieces)) == len(pieces)
  assert [part for part, _ in pieces[:12]] == ['parity'] * 2 + ['exact'] * 10
  assert [name for _, name in pieces[12:15]] == [
    '8b, bfloat16, batch 1',
    '8b, int8, batch 1',
    'base',
  ]
  widths = [name for part, name in pieces if part == 'widths']
  assert len(widths) == 12  # two shapes, two types, three batches
  assert [name for part, name in pieces if part == 'parity'] == list(gpu.KINDS)


@pytest.mark.parametrize('kind', gpu.KINDS)
@pytest.mark.wide('lm', 'image')
def test_models_of_every_kind_can_be_made(kind):
  model, params, inputs = gpu.case(kind, 16, 300)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, shapes)
  assert len(inputs) == 4


def test_a_strategy_that_is_not_exact_fails(monkeypatch):
  monkeypatch.setattr(fd, 'Blockwise', lambda heads: fd.Medusa(heads, [[0]], rule=fd.TopN(4)))
  with pytest.raises(fd.UserError, match="differ from plain greedy decoding's"):
    next(gpu.exact('blockwise', 16))
