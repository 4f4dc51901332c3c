"""The benchmark of memory at toy size: what is counted, and that few layers stand for all."""

import json

import pytest

from benchmarks import memory


def test_a_row_for_each_type_batch_and_length(script, tmp_path):
  words = ['--models', 'toy', '--tokens', 64, 512, '--chunks', 16, 128, '--batches', 2]
  ended = script('memory.py', f'--out={tmp_path}/memory.jsonl', *words)
  assert ended.returncode == 0, ended.stderr
  rows = [json.loads(line) for line in (tmp_path / 'memory.jsonl').read_text().splitlines()]
  assert [(row['dtype'], row['tokens']) for row in rows] == [
    (dtype, tokens) for dtype in ('bfloat16', 'int8') for tokens in (64, 512)
  ]
  short, long, small = rows[:3]
  assert small['weights_gb'] < 0.7 * short['weights_gb'] == 0.7 * long['weights_gb']
  assert 'prefill_128_gb' not in short
  assert long['prefill_16_gb'] < long['prefill_128_gb'] < 0.01
  whole = long['weights_gb'] + long['cache_gb'] + long['prefill_16_gb']
  assert long['total_gb'] == pytest.approx(whole) and long['fits'] == 24 and 'commit' in long


@pytest.mark.slow
def test_few_layers_take_the_temporary_memory_of_all():
  model = memory.model_of('toy')
  few = memory.shortened(model)
  assert set(few.config.layer_windows) == set(model.config.layer_windows) and few.layers == 4
  measured = [memory.prefill_bytes(one, 'bfloat16', 1, 1024, 64) for one in (few, model)]
  assert measured[1] == pytest.approx(measured[0], rel=0.1)
