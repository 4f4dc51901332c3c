"""The benchmark of language models at toy size: what it times, what it counts, what it writes."""

import json

import jax
import numpy as np
import pytest

import fastdec as fd
from experiments.speed.lm import model_alone, random_lm
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.decoding.topology import Topology
from fastdec.evaluation.calls import Calls, FreeDraft
from fastdec.models.lm import LM, LMConfig
from fastdec.quantized import is_quantized
from fastdec.struct import Bound

SIZES = {
  'vocab_size': 50,
  'd_model': 16,
  'd_ff': 24,
  'layers': 1,
  'heads': 2,
  'key_heads': 1,
  'eos_ids': (),
}
PROMPTS = np.random.default_rng(0).integers(0, 50, (2, 4), np.int32)


def calls_of(calls, max_len, **settings):
  model = LM(LMConfig(**SIZES | settings))
  target = Bound(model, random_lm(model, 0, model.config.dtype))
  return target, Calls.after_prompt(target, NoDraft(), PROMPTS, max_len, calls)


def test_parameters_are_random_and_of_their_type():
  model = LM(LMConfig(**SIZES, dtype='bfloat16', qkv_bias=True, tied=False))
  params = random_lm(model, 0, 'bfloat16')
  expected = jax.eval_shape(model.init, jax.random.key(0))
  shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)
  assert shapes(params) == shapes(expected)
  assert {x.dtype.name for x in jax.tree.leaves(params)} == {'bfloat16'}
  assert (params['norm']['scale'] == 1).all() and (params['layer_0']['q']['bias'] == 0).all()
  assert float(params['output'].std()) == pytest.approx(16**-0.5, rel=0.1)
  assert not (params['output'] == params['embedding']).all()
  assert (params['output'] != random_lm(model, 1, 'bfloat16')['output']).any()


def test_in_int8_they_are_those_of_float32_quantized():
  model = LM(LMConfig(**SIZES, tied=False))
  jax.tree.map(
    np.testing.assert_array_equal,
    random_lm(model, 0, 'int8'),
    fd.quantize(model, random_lm(model, 0, 'float32')),
  )
  assert is_quantized(random_lm(model, 0, 'int8')) and not is_quantized(
    random_lm(model, 0, 'float32')
  )


def test_bare_calls_say_what_greedy_decoding_says():
  # tied, a random model says again what it reads
  (model, params), calls = calls_of(1, max_len=8, tied=False)
  expected = fd.decode(model, params, PROMPTS, fd.Greedy(), max_len=8).tokens
  assert min(len(set(row)) for row in expected.tolist()) > 2
  bare = model_alone(calls, Topology.chain(1))
  for i in range(1, 8):
    np.testing.assert_array_equal(bare()[0][:, 0], expected[:, i])
  np.testing.assert_array_equal(calls().tokens[:, :2], expected[:, :2])  # the caches are two
  for _ in range(8):
    bare()
  _, cache = bare.state
  assert (cache.length < cache.slots).all()  # it goes on beyond its room


@pytest.mark.parametrize('tied', [True, False])
def test_a_call_reads_one_vocabulary_matrix(tied):
  _, calls = calls_of(1, max_len=8, tied=tied)
  layer = 16 * (16 + 2 * 8 + 16) + 3 * 16 * 24 + 2 * 16
  cache = 2 * 2 * 8 * (4 + 8 + 1)  # rows, keys and values, width, slots
  # and lengths
  assert (
    calls.bytes('embedding' if tied else 'output') == 4 * (layer + 16 + 50 * 16 + cache) + 4 * 2
  )


def test_a_free_tree_is_scored_as_a_tree_and_keeps_its_root_alone():
  (model, params), _ = calls_of(1, max_len=20, tied=False)
  tree = Topology.from_choices([[0], [1], [0, 0]])
  calls = Calls.after_prompt(Bound(model, params), FreeDraft(tree), PROMPTS, 20, 5)
  np.testing.assert_array_equal(
    calls().tokens[:, :6], fd.decode(model, params, PROMPTS, fd.Greedy(), max_len=6).tokens
  )
  draft, _ = FreeDraft(tree).propose(calls.target, (), calls.state.root, None)
  assert draft.topology is tree and draft.tokens.shape == (2, 4)


def test_the_benchmark_writes_a_row_a_width_and_a_tree(launch, tmp_path):
  words = [
    "--config.dtypes=('float32',)",
    '--config.widths=(1, 16)',
    '--config.calls=2',
    '--config.rounds=1',
  ]
  ended = launch(
    'benchmark', '--config=configs/lm_speed.py:scale=smoke', *words, f'--workdir={tmp_path}'
  )
  assert (ended.code, ended.err) == (0, '')
  rows = [json.loads(line) for line in (tmp_path / 'speed.jsonl').read_text().splitlines()]
  assert [(row['variant'], row['dtype'], row['batch']) for row in rows] == [
    ('greedy', 'float32', 1), ('greedy, packed', 'float32', 1), ('width 16', 'float32', 1), ('tree 16', 'float32', 1)
  ]  # fmt: skip
  for row in rows:
    assert row['bandwidth_share'] * row['ms_per_call'] == pytest.approx(row['floor_ms'])
    assert row['overhead_ms'] == pytest.approx(row['ms_per_call'] - row['bare_ms'])
    assert row['overhead_share'] == pytest.approx(row['overhead_ms'] / row['ms_per_call'])
  _, _, chain, tree = rows
  assert tree['to_chain'] == pytest.approx(tree['ms_per_call'] / chain['ms_per_call'])
  assert rows[0]['to_chain'] == chain['to_chain'] == 1
  assert rows[0]['to_greedy'] == 1 and {'commit', 'config'} <= rows[0].keys()
  assert (tmp_path / 'speed.md').read_text().count('| float32 | 1 |') == 4


@pytest.mark.parametrize(
  'word', ['prompt=0', 'widths=()', 'dtypes=()', "dtypes=('float32', 'float8')"]
)
def test_what_cannot_be_timed_is_a_sentence(launch, tmp_path, word):
  ended = launch(
    'benchmark', '--config=configs/lm_speed.py', f'--config.{word}', f'--workdir={tmp_path / "new"}'
  )
  assert (
    ended.code == 2 and word.split('=')[0].rstrip('s') in ended.err and ended.err.count('\n') == 1
  )
  assert not (tmp_path / 'new').exists()
