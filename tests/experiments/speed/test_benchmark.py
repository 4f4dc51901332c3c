"""The benchmarks at toy size: what they time, what they count, what they write."""

import json

import jax
import numpy as np
import pytest

import fastdec as fd
from configs import image_speed as page
from configs.common import to_dataclass
from experiments.speed import images
from experiments.speed.images import AllSlots, ImageTransformer
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.evaluation.calls import Calls
from fastdec.struct import Bound

BLOCK = 8
SIDES = (4, 8)  # 48 and 192 tokens
SMALL = {'model.block_length': BLOCK, 'model.size': 4, 'sides': SIDES, 'batches': (2,), 'calls': 2}
WORDS = [f'--config.{name}={value}' for name, value in SMALL.items()]


@pytest.fixture(scope='module')
def config():
  made = page.get_config('scale=smoke')
  made.update_from_flattened_dict(SMALL)
  return to_dataclass(images.SpeedConfig, made)


@pytest.fixture(scope='module')
def params(config):
  """Matrices all random, so that tokens differ: fresh embeddings are alike where intensities
  are."""
  fresh, rng = ImageTransformer(config.model).init(jax.random.key(0)), np.random.default_rng(0)
  return jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32) if x.ndim > 1 else x, fresh
  )


def pictures(rows):
  return np.random.default_rng(0).integers(0, 256, (rows, 8, 8, 3), np.uint8)


def test_a_cache_of_all_slots_gives_the_same_image(config, params):
  ring, whole = (
    np.asarray(fd.decode(kind(config.model), params, pictures(2), fd.Greedy()).tokens)
    for kind in (ImageTransformer, AllSlots)
  )
  assert len(set(ring.ravel().tolist())) > 10
  np.testing.assert_array_equal(ring, whole)


def test_calls_go_on_with_the_decode_and_beyond_its_end(config, params):
  model = ImageTransformer(config.model)
  expected = fd.decode(model, params, pictures(2), fd.Greedy()).tokens
  calls = Calls.after_prompt(
    Bound(model, params), NoDraft(), pictures(2), model.fixed_length, calls=20
  )
  assert calls().length.tolist() == [21, 21]
  np.testing.assert_array_equal(calls().tokens[:, :41], expected[:, :41])
  assert calls().done.all()
  np.testing.assert_array_equal(calls().tokens, expected)


def test_a_call_reads_decoder_output_and_cache(config, params):
  model, rows, d, f = ImageTransformer(config.model), 2, config.model.d_model, config.model.d_ff
  attention, cross, feed_forward, norms = 4 * d * d, 2 * d * d, 2 * d * f + f + d, 4 * 2 * d
  cache = rows * 2 * d * (2 * BLOCK + 8 * 8 * 3)  # keys and values: the ring, the small picture
  others = rows * 4 + rows * 8 * 8 * 3  # lengths, the memory's mask
  floats = attention + cross + feed_forward + norms + 256 * (d + 1) + cache
  calls = Calls.after_prompt(
    Bound(model, params), NoDraft(), pictures(rows), model.fixed_length, calls=1
  )
  assert calls.bytes('output') == 4 * floats + others


@pytest.mark.slow
def test_the_ring_is_as_large_whatever_the_length(config, params):
  strategies = {'greedy': fd.Greedy(), 'k = 2': fd.Blockwise(images._heads(config, 2, 'float32'))}
  rows = images._lengths(config, params, strategies, 1)
  slots = {(row['variant'], row['cache'], row['tokens']): row['slots'] for row in rows}
  ring, whole = 2 * BLOCK, lambda n, tokens: 1 + tokens + n  # prompt, output, nodes
  assert slots == {
    ('greedy', 'ring', 48): ring,
    ('greedy', 'ring', 192): ring,
    ('greedy', 'all slots', 48): whole(1, 48),
    ('greedy', 'all slots', 192): whole(1, 192),
    ('k = 2', 'ring', 48): ring + 1,
    ('k = 2', 'ring', 192): ring + 1,
    ('k = 2', 'all slots', 48): whole(2, 48),
    ('k = 2', 'all slots', 192): whole(2, 192),
  }


def test_an_image_takes_its_calls(config):
  calls = [
    {'variant': 'greedy', 'ms_per_call': 4.0, 'to_greedy': 1.0},
    {'variant': 'k = 2', 'ms_per_call': 6.0, 'to_greedy': 1.5},
    {'variant': 'width 4', 'ms_per_call': 7.0, 'to_greedy': 1.7},
  ]
  rows = list(images._calculated(config, calls, batch=8))
  assert [
    (row['variant'], row['mean_block'], row['ms_per_image'], row['to_greedy']) for row in rows
  ] == [('greedy', 1.0, 47 * 4.0 / 8, 1.0), ('k = 2', 2.0, 47 / 2 * 6.0 / 8, 0.75)]
  assert {row['how'] for row in rows} == {'calculated'}


@pytest.mark.slow
def test_the_image_benchmark_writes_its_tables_with_their_conditions(launch, tmp_path):
  ended = launch(
    'benchmark', '--config=configs/image_speed.py:scale=smoke', *WORDS, f'--workdir={tmp_path}'
  )
  assert (ended.code, ended.err) == (0, '')
  rows = [json.loads(line) for line in (tmp_path / 'speed.jsonl').read_text().splitlines()]
  named = lambda table: [row['variant'] for row in rows if row['table'] == table]
  assert named('calls') == ['greedy', 'k = 2', 'width 4']
  assert named('length') == ['greedy'] * 4 + ['k = 2'] * 4
  assert [(row['variant'], row['how']) for row in rows if row['table'] == 'images'] == [
    ('greedy', 'calculated'), ('k = 2', 'calculated'), ('greedy', 'measured'), ('k = 2', 'measured')
  ]  # fmt: skip
  assert all(
    row['batch'] == 2 and row['dtype'] == 'float32' and {'commit', 'config'} <= row.keys()
    for row in rows
  )
  assert {
    row['to_greedy'] for row in rows if row['variant'] == 'greedy' and 'to_greedy' in row
  } == {1.0}
  text = (tmp_path / 'speed.md').read_text()
  assert text.count('| greedy |') == 1 + 4 + 2 and 'commit' in text and text in ended.out


def test_the_text_benchmark_names_its_dtype_in_each_row(launch, tmp_path):
  words = [
    "--config.dtypes=('float32', 'int8')",
    '--config.widths=(1, 2)',
    '--config.calls=2',
    '--config.rounds=1',
  ]
  ended = launch(
    'benchmark', '--config=configs/speed.py:scale=smoke', *words, f'--workdir={tmp_path}'
  )
  assert (ended.code, ended.err) == (0, '')
  rows = [json.loads(line) for line in (tmp_path / 'speed.jsonl').read_text().splitlines()]
  variants = ['greedy', 'width 2', 'k = 8, separate heads', 'k = 8, paper heads']
  forms = [f'{variant}{suffix}' for variant in variants for suffix in ('', ', packed')]
  named = [(row['dtype'], row['variant']) for row in rows]
  assert named == [(dtype, form) for dtype in ('float32', 'int8') for form in forms]
  assert {row['batch'] for row in rows} == {1}
  assert rows[8]['megabytes'] < 0.5 * rows[0]['megabytes']  # a call reads kernels in int8
  assert rows[1]['megabytes'] == rows[0]['megabytes']  # and of a packed one a single form


@pytest.mark.parametrize('word', ['rounds=0', 'batches=(1, 0)', 'decodes=-1', 'ks=()'])
def test_what_cannot_be_timed_is_a_sentence(launch, tmp_path, word):
  ended = launch(
    'benchmark',
    '--config=configs/image_speed.py',
    f'--config.{word}',
    f'--workdir={tmp_path / "new"}',
  )
  assert ended.code == 2 and word.split('=')[0] in ended.err and ended.err.count('\n') == 1
  assert not (tmp_path / 'new').exists()
