"""Super-resolution's page: settings, rows and their stages, images that a base writes, and the
whole page at toy size."""

import dataclasses
import pathlib
import shutil

import jax
import numpy as np
import pytest

import fastdec as fd
from configs import celeba
from experiments.lab import rows
from experiments.lab.config import to_dataclass
from experiments.lab.train import seed_of
from experiments.lab.workdir import Workdir
from experiments.stern2018 import image_tables, images, runs, tables
from experiments.stern2018.images import Table2
from fastdec import folders
from fastdec.data.images import embedded
from fastdec.data.images.resizing import shrink
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.struct import Bound
from fastdec.training import stage
from tests.experiments.conftest import ROOT, run, with_settings

ONCE = {}
for section in ('train', 'freeze', 'finetune'):
  ONCE |= {f'{section}.steps': 1, f'{section}.every': 1}
SMALL = ONCE | {
  'model.d_model': 32,  # less has no waves to tell intensities apart
  'model.d_ff': 8,
  'model.heads': 1,
  'heads.d_ff': 8,
  'table.ks': (2,),
  'table.repeats': 1,
}
OWN = SMALL | {
  'data.max_train': 3,
  'data.side': 16,
  'data.mirrored': True,
  'model.size': 16,
  'table.forecast': (),
  'table.taus': (),
  'table.images': 1,
}
WHOLE = SMALL | {'data.max_train': 4, 'table.forecast': (2,), 'table.taus': (9,), 'table.images': 2}


@pytest.fixture(scope='module', autouse=True)
def few_images():
  """Caches the windows: cutting thousands of them again and again would take most of the time."""
  images.open_once.cache_clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(embedded, 'SIZES', {'train': 8, 'dev': 4, 'test': 4})
    yield
  images.open_once.cache_clear()


def settings(scale='smoke', **changed):
  return to_dataclass(Table2, with_settings(celeba.get_config(f'scale={scale}'), changed))


# --- settings and rows


@pytest.mark.parametrize('setting, message', [
  ({'table.ks': (1,)}, r'config.table.ks\[0\]=1'),
  ({'table.own': True, 'data.own': 'there'}, 'config.table.own=True with config.data.own=there'),
  ({'model.heads': 16}, 'a head needs 4 numbers or'),
  ({'model.size': 16}, 'makes 16 x 16 pixels of 8 x 8: .* let size be data.side, 32'),
  ({'table.forecast': (1,)}, r'config.table.forecast\[0\]=1'),
  ({'model.forecast': False}, 'with config.model.forecast=False is not possible: give forecast=()'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    settings(**setting)


def test_every_scale_is_an_experiment():
  for scale in ('tiny', 'smoke', 'faces16', 'faces32', 'celeba'):
    c = to_dataclass(Table2, celeba.get_config(f'scale={scale},k=4,regime=finetune'))
    assert (c.scale, c.k, c.regime) == (scale, 4, 'finetune')
    assert c.model.size == c.data.side == (16 if scale == 'faces16' else 32)


def test_tolerances_can_be_swept():
  assert celeba.PAPER.axes['tolerance'] == 'table.taus'


def test_the_sweep_is_of_the_largest_k_and_a_forecast_has_no_likeliest_window():
  cells = {(regime, k): rules for k, regime, rules in images.list_cells(settings('faces32'))}
  swept = [f'distance-{tau}' for tau in (1, 4, 6, 8)]
  for (regime, k), rules in cells.items():
    centred = ['window-2'] if regime in ('regular', 'finetune') else []
    columns = ['exact'] if k == 1 else ['exact', 'distance-2', *centred]
    assert list(rules) == columns + swept * (k == 10)
  assert [k for regime, k in cells if regime == 'forecast'] == [2, 4, 6, 8, 10, 16, 24]
  assert not any(regime == 'fitted' for regime, _ in cells)
  own = images.list_cells(settings('faces32', **{'table.own': True}))
  assert sum(len(rules) for _, regime, rules in own if regime == 'fitted') == 7 * 2 + 4


@pytest.mark.parametrize('one_run', [False, True])
def test_frozen_heads_for_the_largest_k_serve_smaller_ones(tmp_path, monkeypatch, one_run):
  made, used = {}, {}

  def record(work, name, make, **inputs):
    made[name] = inputs.get('base', pathlib.Path()).name, inputs.get('order')
    return work.root / name

  def measure(task, work, cells, models):
    used.update({cell: folder.name for cell, folder in models.items()})
    return []

  monkeypatch.setattr(Workdir, 'stage', record)
  monkeypatch.setattr(runs, 'measure_rows', measure)
  images.table2(settings(**{'table.one_run': one_run}), Workdir(tmp_path))
  # batches come in the order in which they always have
  assert all(order in (None, seed_of(0, name)) for name, (_, order) in made.items())
  assert {name: base for name, (base, _) in made.items()} == {
    'base': '',
    'k4-regular': 'base',
    'k4-finetune': 'k4-regular',
  } | ({} if one_run else {'k2-finetune': 'k4-regular'})
  assert used == {
    (1, 'regular'): 'base',
    (4, 'forecast'): 'base',  # nothing is trained
    (2, 'regular'): 'k4-regular',
    (4, 'regular'): 'k4-regular',
    (2, 'finetune'): 'k4-finetune' if one_run else 'k2-finetune',
    (4, 'finetune'): 'k4-finetune',
  }


# --- strategies


def test_all_rules_are_one_program():
  rules = [images.parse_rule(name) for name in ('exact', 'distance-2', 'distance-8', 'min-3')]
  assert len({jax.tree.structure(rule) for rule in rules}) == 1
  assert [int(rule.rule.tau) for rule in rules] == [0, 2, 8, 0]
  assert [int(rule.size) for rule in rules] == [1, 1, 1, 3]
  for name in ('min-0', 'window-0', 'window-128', 'centre-2'):
    with pytest.raises(fd.UserError, match=f'{name} is unknown'):
      images.parse_rule(name)


def test_a_window_is_a_distance_with_other_guesses():
  heads = BlockwiseHeads(4, 8, 8)
  bound = heads, heads.init(jax.random.key(0))
  centred, plain = (images.make_strategy(bound, 3, f'{name}-2') for name in ('window', 'distance'))
  assert (centred.window, plain.window) == (2, 0) and centred.k == plain.k == 3
  assert int(centred.rule.rule.tau) == 2 == int(plain.rule.rule.tau)


# --- images that a base writes


def write(c, base, folder):
  stage.in_place(
    folder, images.write_images, base=base, data=c.data.originals, images=c.distill.images
  )


def with_own(folder, **changed):
  return settings(**OWN | {'data.own': str(folder), 'k': 2} | changed)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A base, in base/, and what it has written, in own/."""
  folder = tmp_path_factory.mktemp('own')
  assert images.train_run(settings(**OWN), folder / 'base')
  write(settings(**OWN), folder / 'base', folder / 'own')
  return folder


@pytest.mark.slow
def test_a_base_writes_greedily_of_each_image_and_of_its_mirror(made):
  own = images.open_written(made / 'own')
  originals = settings(**OWN).data.images.array('train')
  np.testing.assert_array_equal(own.source, [*shrink(originals), *shrink(originals[:, :, ::-1])])
  greedy = fd.decode(*folders.load(made / 'base'), own.source, fd.Greedy()).checked().tokens
  np.testing.assert_array_equal(own.written.reshape(6, -1), greedy)
  assert own.written.std() > 0 and not (made / 'own' / 'parts').exists()


@pytest.mark.slow
def test_what_is_cut_off_continues_and_may_be_of_some_images_evenly_spaced(
  made, tmp_path, monkeypatch
):
  monkeypatch.setattr(images, 'PART', 2)
  c, own = settings(**OWN, **{'distill.images': 3}), tmp_path / 'own'
  left = iter([1.0, stage.OutOfTime])  # the second part is not begun

  def check_budget():
    if (outcome := next(left)) is stage.OutOfTime:
      raise outcome

  with monkeypatch.context() as patch:
    patch.setattr(images, 'check_budget', check_budget)
    with pytest.raises(stage.OutOfTime):
      write(c, made / 'base', own)
  assert [path.name for path in (own / 'parts').iterdir()] == ['000000.npy']
  with pytest.raises(fd.UserError, match=r'holds no images that a base has written.*distill'):
    images.open_written(own)
  first = (own / 'parts' / '000000.npy').stat().st_mtime_ns
  monkeypatch.setattr(images.shutil, 'rmtree', lambda _: None)
  write(c, made / 'base', own)
  assert (own / 'parts' / '000000.npy').stat().st_mtime_ns == first
  some, every = images.open_written(own), images.open_written(made / 'own')
  np.testing.assert_array_equal(some.source, every.source[[0, 2, 5]])
  np.testing.assert_array_equal(some.written, every.written[[0, 2, 5]])
  with pytest.raises(fd.UserError, match=r'was made with other settings \(images\)'):
    write(settings(**OWN), made / 'base', own)


@pytest.mark.slow
def test_heads_learn_from_it_and_what_is_measured_says_so(made, tmp_path):
  c = with_own(made / 'own')
  own, batch = images.open_written(made / 'own'), c.data.open().train_batches()[0]
  pairs = set()
  for small, large in zip(own.source, own.written, strict=True):
    pairs.add((small.tobytes(), large.astype(np.int32).tobytes()))
  for source, target in zip(batch['source'], batch['target'], strict=True):
    assert (source.tobytes(), target.tobytes()) in pairs
  assert (
    c.data.key != c.data.originals.key and c.data.key.split()[0] == c.data.originals.key.split()[0]
  )
  run = dataclasses.replace(c, base=str(made / 'base'))
  assert images.train_run(run, tmp_path / 'heads')
  assert not images.train_run(run, tmp_path / 'heads')
  images.evaluate(c, Workdir(tmp_path / 'heads'))
  measured = rows.read(tmp_path / 'heads' / 'results.jsonl')
  assert [row['rule'] for row in measured] == ['exact', 'distance-2', 'window-2']
  for row in measured:
    assert row['tolerance'] == {'exact': 0, 'distance-2': 2}.get(row['rule'])
    assert row['heads_text'] == 'own' and row['speedup'] > 0 and row['outputs'] == 1
    # p1 names what it chose itself, near ties aside
    assert row['own_accuracy'][0] > 0.99 > row['head_accuracy'][0]
  assert tables.OWN_NOTE in image_tables.table2(measured).notes


def test_a_base_begins_with_the_forecast_of_its_photographs(made):
  c = settings(**OWN)
  pictures = c.data.open()
  model, originals = pictures.model_of(c.model), pictures.images.array('train')
  begun = pictures.fresh(model, jax.random.key(0))['forecast']['weights']
  np.testing.assert_array_equal(begun, fd.fit_forecast(model, shrink(originals), originals))
  plain = pictures.model_of(dataclasses.replace(c.model, forecast=False))
  assert 'forecast' not in pictures.fresh(plain, jax.random.key(0))


def test_an_image_that_parts_from_greedy_decoding_s_is_an_error_unless_rounding_explains_it(
  made, tmp_path
):
  split = images.Split(settings(**OWN), settings(**OWN).data, tmp_path, made / 'base')
  target = Bound(*folders.load(made / 'base'))
  greedy = split.decode(target, fd.Greedy())
  split.check_only_near_ties(target, greedy, greedy)
  wrong = np.array(greedy.tokens)
  wrong[0, 5] = 255 - wrong[0, 5]
  with pytest.raises(fd.UserError, match=r"1 of 1 outputs differ from plain greedy decoding's"):
    split.check_only_near_ties(target, dataclasses.replace(greedy, tokens=wrong), greedy)


def test_mistakes_are_a_sentence(made, tmp_path):
  def refused(message, c, base='', folder=tmp_path / 'run'):
    with pytest.raises(fd.UserError, match=message):
      images.train_run(dataclasses.replace(c, base=str(base)), folder)

  refused('data.own=.* is for heads', with_own(made / 'own', k=1))
  refused('k=2 with regime=regular is trained on a base model', with_own(made / 'own'))
  refused('k=1 has no heads to train', settings(**OWN, regime='finetune'))
  other = shutil.copytree(made / 'base', tmp_path / 'other')
  model, params = folders.load(made / 'base')
  folders.save(model, jax.tree.map(lambda x: x + 1, params), other / 'model')
  refused('were written by another model than .*other', with_own(made / 'own'), other)
  refused('another model than this config', settings(**OWN | {'model.d_ff': 16}, k=2), other)
  fewer = OWN | {'data.max_train': 2}
  refused('base was trained on other images than', settings(**fewer, k=2), made / 'base')
  unmirrored = with_own(made / 'own', **{'data.mirrored': False})
  refused('were written of other images than this config means', unmirrored, made / 'base')
  damaged = shutil.copytree(made / 'own', tmp_path / 'damaged')
  whole = (made / 'own' / 'images.npz').read_bytes()
  (damaged / 'images.npz').write_bytes(whole[:-100])
  with pytest.raises(fd.UserError, match=r'cannot read .*images\.npz'):
    images.open_written(damaged)


# --- all of it at toy size


def words(**changed):
  flags = [f'--config.{name}={value}' for name, value in (WHOLE | changed).items()]
  return [f'--config={ROOT}/configs/celeba.py:scale=smoke', *flags]


@pytest.fixture(scope='module')
def table(tmp_path_factory):
  folder = tmp_path_factory.mktemp('table2')
  assert run('table2', *words(**{'table.own': True}), f'--workdir={folder}') == 0
  return folder


@pytest.mark.slow
def test_a_table_with_all_that_belongs_to_it(table):
  measured = tables.by_key(rows.read(table / 'results.jsonl'))
  columns = ('exact', 'distance-2', 'window-2', 'distance-9')
  keys = {(1, 'regular', 'exact')}
  keys |= {(2, regime, rule) for regime in ('regular', 'finetune') for rule in columns}
  untrained = [rule for rule in columns if rule != 'window-2']
  keys |= {(2, regime, rule) for regime in ('forecast', 'fitted') for rule in untrained}
  assert set(measured) == keys
  assert all('error' not in row and row['outputs'] == 2 for row in measured.values())
  base, frozen, forecast = (
    measured[1, 'regular', 'exact'],
    *(measured[2, regime, 'exact'] for regime in ('regular', 'forecast')),
  )
  assert forecast['models'] == base['models'] and forecast['same_as_greedy'] == 1
  assert forecast['speedup'] and base['speedup'] == 1
  assert frozen['same_as_greedy'] == 1 and frozen['psnr'] == base['psnr']
  tuned = [measured[2, 'finetune', rule]['mean_block_size'] for rule in untrained]
  assert 1 <= tuned[0] <= tuned[1] <= tuned[2] <= 2
  # of the sweep, the columns are timed
  assert frozen['speedup'] and 'speedup' not in measured[2, 'regular', 'distance-9']
  assert '1.07' in (table / 'table2.md').read_text()  # the paper's k = 2
  for name in ('table2', 'tau', 'figure4', 'samples'):
    assert (table / f'{name}.png').stat().st_size > 2000
  with np.load(table / 'images' / 'dev-k2-finetune-distance-9.npz') as arrays:
    shapes = {name: arrays[name].shape for name in ('input', 'output', 'original')}
    sums = arrays['block_sizes'].sum(axis=1)
  large = 2, 32, 32, 3
  assert shapes == {'input': (2, 8, 8, 3), 'output': large, 'original': large}
  assert (sums == 3071).all()


@pytest.mark.slow
def test_a_finished_table_is_drawn_again_and_other_images_are_measured(table, launch):
  changed = {'table.own': True}
  before = (table / 'results.jsonl').read_bytes()
  assert launch('table2', *words(**changed), f'--workdir={table}').code == 0
  assert (table / 'results.jsonl').read_bytes() == before
  changed |= {'table.images': 1, 'table.regimes': ('regular',), 'table.forecast': ()}
  assert launch('table2', *words(**changed), f'--workdir={table}').code == 0
  added = rows.read(table / 'results.jsonl')[before.count(b'\n') :]
  assert len(added) == 1 + 4 and {row['outputs'] for row in added} == {1}


@pytest.mark.slow
def test_evaluate_measures_a_single_run_and_finds_the_same(table, launch):
  folder, (config, *others) = table / 'k2-finetune', words()
  ended = launch('evaluate', f'{config},k=2,regime=finetune', *others, f'--workdir={folder}')
  assert ended.code == 0 and 'PSNR' in ended.out
  whole = tables.by_key(rows.read(table / 'results.jsonl'))
  alone = tables.by_key(rows.read(folder / 'results.jsonl'))
  assert {rule for _, _, rule in alone} == {'exact', 'distance-2', 'window-2'}
  for key, row in alone.items():
    for name in ('mean_block_size', 'psnr', 'ssim'):
      assert row[name] == whole[key][name]
