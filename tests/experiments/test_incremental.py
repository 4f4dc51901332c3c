"""Incremental decoding's page: settings, three ways that write the same, operations by hand, tables
on hand-made rows, and all of it at toy size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from configs import incremental
from experiments import incremental_decoding as page
from experiments.incremental_decoding import Incremental, compare_texts, rewrite, step_by_step
from experiments.lab import rows
from experiments.lab.config import to_dataclass
from experiments.lab.report import markdown
from fastdec.struct import Bound
from tests.experiments.conftest import ROOT, with_settings

MODELS = 'transformer', 'fconv'
SOURCE = np.random.default_rng(0).integers(2, 60, (3, 5), np.int32)


def settings(**changed):
  return to_dataclass(Incremental, with_settings(incremental.get_config('scale=smoke'), changed))


@pytest.mark.parametrize('setting, message', [
  ({'growth.lengths': (32, 0)}, r'config.growth.lengths\[1\]=0 is not possible: give 1 or more'),
  ({'growth.models': ('transformer', 'lstm')}, "='lstm' .* give one of transformer, fconv"),
  ({'growth.lengths': (8, 2048)}, 'lengths=2048 is not possible: models.transformer.max_pos'),
  ({'layout.float32': ((1, 32, 4),)}, r'layout.float32\[0\]=\[1, 32, 4\] .* give 2 values'),
  ({'layout.bfloat16': ((1, 1025),)}, 'layout.bfloat16=1025 is not possible: layout.model.max'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    settings(**setting)


def test_every_scale_is_an_experiment():
  for scale in ('smoke', 'small', 'paper'):
    config = incremental.get_config(f'scale={scale}')
    assert to_dataclass(Incremental, config).scale == scale


def test_lengths_are_measured_together_and_other_sizes_are_other_rows():
  groups = page.keys(settings())
  growth = [group for group in groups if group[0]['part'] == 'growth']
  assert len(growth) == 2 * 2
  for group in growth:
    assert [key['length'] for key in group] == [4, 8]
    assert all(key['lengths'] == (4, 8) for key in group)
  keys = [key for group in groups for key in group]
  assert len({tuple(key[name] for name in page.KEY) for key in keys}) == len(keys)
  assert len(keys) == 2 * 2 * 2 + 3
  assert len({key['models'] for key in keys if key['model'] == 'fconv'}) == 1
  for changed in ({'models.transformer.d_model': 32}, {'seed': 1}):
    assert page.keys(settings(**changed))[0][0]['models'] != keys[0]['models']
  same = set()
  for group, other in zip(groups, page.keys(settings(**{'growth.rounds': 2})), strict=True):
    same.add((group[0]['part'], group == other))
  assert same == {('growth', False), ('layout', True)}


# --- ways, and operations


@pytest.fixture
def in_float64():
  with jax.enable_x64():
    yield


def target_of(name):
  model = page.make_model(settings(), {'part': 'growth', 'model': name, 'dtype': 'float64'})
  # larger: it repeats itself less
  return Bound(
    model, jax.tree.map(lambda x: 4 * x.astype('float64'), model.init(jax.random.key(1)))
  )


@pytest.mark.wide('fconv')
@pytest.mark.parametrize('name', MODELS)
def test_all_three_ways_write_the_same(in_float64, name):
  target = target_of(name)
  text = fd.decode(*target, SOURCE, fd.Greedy(), max_len=7)
  assert (text.lengths == 7).all() and len(set(np.asarray(text.tokens).ravel().tolist())) > 3
  by_host = step_by_step(target, fd.Greedy(), SOURCE, 7)
  jax.tree.map(np.testing.assert_array_equal, by_host, text)
  from_nothing = rewrite(target, SOURCE, jnp.zeros_like(text.tokens), 7)
  np.testing.assert_array_equal(from_nothing, text.tokens)
  assert compare_texts(target, SOURCE, text, [text, by_host]) == {'parted': 0, 'largest_gap': None}
  worse = dataclasses.replace(text, tokens=text.tokens.at[0, 3].add(1))
  with pytest.raises(fd.UserError, match='1 of 3 outputs differ'):
    compare_texts(target, SOURCE, text, [text, worse])


@pytest.mark.slow
def test_beams_from_the_host_are_those_of_the_whole_loop(in_float64):
  target, search = target_of('transformer'), fd.Beam(3, n_best=2)
  whole = fd.decode(*target, SOURCE, search, max_len=5)
  jax.tree.map(np.testing.assert_array_equal, step_by_step(target, search, SOURCE, 5), whole)


def test_fewer_steps_write_fewer_tokens_evenly_spread(in_float64):
  target = target_of('transformer')
  text = fd.decode(*target, SOURCE, fd.Greedy(), max_len=7).tokens
  wrong = text.at[:, 2:].set(0)  # 0 is never written
  mended = np.asarray(rewrite(target, SOURCE, wrong, 3))  # at 0, 2 and 4
  np.testing.assert_array_equal(mended[:, :3], text[:, :3])
  assert (mended[:, [3, 5, 6]] == 0).all() and (mended[:, 4] != 0).all()


# --- tables


def a_row(part, model, dtype, batch, length, **figures):
  key = dict(zip(page.KEY, (part, model, dtype, batch, length), strict=True))
  return {**key, 'platform': 'cpu', 'device': 'cpu', 'seed': 0, **figures}


def a_growth(model, batch, length, uncached, host, device):
  times = {'uncached': uncached, 'host': host, 'device': device}
  ratios = {'uncached': uncached / device, 'host': host / device}
  figures = {'milliseconds': times, 'to_fastest': ratios, 'to_shortest': dict.fromkeys(times, 1.5)}
  return a_row('growth', model, 'float32', batch, length, **figures, steps=4, parted=0)


def a_search(dtype, batch, length, host, device):
  times, ratios = {'host': host, 'device': device}, {'host': host / device}
  figures = {'milliseconds': times, 'to_fastest': ratios, 'spread': {'host': [1.25, 2.25]}}
  return a_row('layout', 'transformer', dtype, batch, length, **figures, parted=0)


GROWN = {
  'milliseconds': {'uncached': 8.0, 'host': 4.0, 'device': 2.0},
  'to_fastest': {'uncached': 4.0, 'host': 2.0},
  'steps': 4,
  'parted': 0,
}
SEARCHED = {
  'milliseconds': {'host': 20.0, 'device': 10.0},
  'to_fastest': {'host': 2.0},
  'parted': 0,
}
ROWS = [
  a_growth('fconv', 1, 32, 9.0, 3.0, 1.0),
  a_growth('transformer', 1, 512, 80.0, 5.0, 2.0),
  a_growth('transformer', 1, 32, 8.0, 4.0, 2.0),
  a_growth('transformer', 32, 32, 8.0, 4.0, 2.0),
  a_search('bfloat16', 1, 128, 30.0, 20.0),
  a_search('float32', 256, 32, 25.0, 20.0),
  a_search('float32', 1, 32, 20.0, 10.0),
]


def drawn(rows):
  return {table.title: markdown(table) for table in page.tables(rows)}


def test_lengths_are_rows_and_the_last_row_is_how_time_grows():
  tables = drawn(ROWS)
  lines = tables['Milliseconds a token against length, batch 1'].splitlines()
  assert lines[2].startswith(
    '| Tokens | Transformer (a) | Transformer (b) | Transformer (c) | Transformer (a)/(c) |'
  )
  assert lines[4:7] == [
    '| 32 | 8.00 | 4.00 | 2.00 | 4.00× | 2.00× | 9.00 | 3.00 | 1.00 | 9.00× | 3.00× |',
    '| 512 | 80.00 | 5.00 | 2.00 | 40.00× | 2.50× | – | – | – | – | – |',
    '| 512 / 32 | 1.50× | 1.50× | 1.50× | – | – | – | – | – | – | – |',
  ]
  assert 'Conditions: steps 4' in tables['Milliseconds a token against length, batch 1']
  assert 'Milliseconds a token against length, batch 32' in tables


def test_the_layout_of_faster_transformers_tables():
  lines = drawn(ROWS)["FasterTransformer's tables"].splitlines()[4:7]
  assert lines[0] == (
    '| float32 | 1, 32 | 20.00 | 10.00 | 2.00× (1.25 .. 2.25) | 0 | 441.68 / 111.14 = 3.97× |'
    ' 430.39 / 64.16 = 6.71× | 440.46 / 58.70 = 7.50× |'
  )
  assert lines[1].startswith('| float32 | 256, 32 | 25.00 | 20.00 | 1.25×')
  assert '| 802.18 / 439.33 = 1.83× |' in lines[1]
  theirs = '| 2082.92 / 661.00 = 3.15× | 2145.74 / 240.85 = 8.91× | 2076.63 / 293.21 = 7.08× |'
  assert lines[2].endswith(theirs)
  published = list(page.read_published())
  for column in page.COLUMNS:
    sizes = [size for name, _, *size in published if name == column]
    assert len(sizes) == 14 and len(set(map(tuple, sizes))) == 7


def test_the_picture_has_a_panel_a_batch(tmp_path):
  page.picture(ROWS, tmp_path / 'picture.png')
  assert (tmp_path / 'picture.png').stat().st_size > 10_000


# --- the command

CONFIG = f'--config={ROOT}/configs/incremental.py:scale=smoke'
QUICK = {
  'growth.models': ('transformer',), 'growth.batches': (1,), 'layout.float32': (),
  'layout.bfloat16': ((1, 4),),
}  # fmt: skip


def test_what_is_done_is_not_done_again_and_what_failed_is(launch, tmp_path, monkeypatch):
  def no_memory(c, key):
    raise fd.UserError('no memory is left')

  words = [CONFIG, *(f'--config.{name}={value}' for name, value in QUICK.items())]
  words.append(f'--workdir={tmp_path}')
  results = tmp_path / 'results.jsonl'
  monkeypatch.setattr(page, 'measure_growth', lambda c, key: [GROWN for _ in key['lengths']])
  monkeypatch.setattr(page, 'measure_search', no_memory)
  assert launch('incremental', *words).code == 1
  assert 'failed: no memory is left' in (tmp_path / 'incremental.md').read_text()
  lines = rows.latest(rows.read(results), *page.KEY)
  assert [row['part'] for row in lines] == ['growth', 'growth', 'layout']
  assert {'commit', 'device', 'config', 'processor', 'source', 'rounds'} <= lines[0].keys()
  before = results.read_text()
  monkeypatch.setattr(page, 'measure_search', lambda c, key: [SEARCHED])
  ended = launch('incremental', *words)
  assert ended.code == 0 and '| bfloat16 | 1, 4 | 20.00 | 10.00 | 2.00× | 0 |' in ended.out
  after = results.read_text()
  assert after.startswith(before) and after.count('\n') == before.count('\n') + 1
  assert launch('incremental', *words).code == 0 and results.read_text() == after
  # Lengths that were measured without the new one are measured again, together with it.
  assert launch('incremental', *words, '--config.growth.lengths=(4, 8, 16)').code == 0
  assert results.read_text().count('\n') == after.count('\n') + 3


@pytest.mark.slow
def test_all_of_it_at_toy_size(launch, tmp_path):
  assert launch('incremental', CONFIG, f'--workdir={tmp_path}').code == 0
  lines = rows.read(tmp_path / 'results.jsonl')
  assert len(lines) == 8 + 3
  for row in lines:
    assert 'error' not in row
    assert row['dtype'] != 'float32' or row.get('parted', 0) == 0
  plan = {'part': 'growth', 'model': 'transformer', 'dtype': 'float32', 'batch': 1}
  short, long = (row for row in lines if plan.items() <= row.items())
  assert short['to_shortest'] == {'uncached': 1, 'host': 1, 'device': 1}
  times = long['milliseconds']
  grown = times['host'] / short['milliseconds']['host']
  assert long['to_shortest']['host'] == pytest.approx(grown)
  assert long['to_fastest']['uncached'] == pytest.approx(times['uncached'] / times['device'])
  text = (tmp_path / 'incremental.md').read_text()
  for title in ('length, batch 1', 'length, batch 2', "FasterTransformer's tables"):
    assert title in text
  assert (tmp_path / 'incremental.png').read_bytes().startswith(b'\x89PNG')
