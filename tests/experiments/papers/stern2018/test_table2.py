"""Table 2 at toy size: the graph of its runs and cells, what it leaves, and mistakes that are told
before any work."""

import csv

import jax
import numpy as np
import pytest

import fastdec as fd
from configs import celeba
from experiments.lab import cells
from experiments.papers.stern2018 import image_page, images
from experiments.papers.stern2018.cells import BlockwiseCell
from fastdec.heads.blockwise import BlockwiseHeads
from tests.experiments.conftest import ROOT, run

SETTINGS = {
  'data.max_train': 4,
  'model.d_model': 32,
  'model.d_ff': 8,
  'model.heads': 1,
  'heads.d_ff': 8,
  'table.ks': (2,),
  'table.forecast': (2,),
  'table.taus': (9,),
  'table.images': 2,
  'table.repeats': 1,
  **{
    f'{name}.{part}': 1 for name in ('train', 'freeze', 'finetune') for part in ('steps', 'every')
  },
}


def words(cache, **changed):
  settings = SETTINGS | {'data.cache': cache} | changed
  page = f'{ROOT}/configs/celeba.py:scale=smoke'
  return [f'--config={page}', *(f'--config.{name}={value}' for name, value in settings.items())]


def test_the_graph_of_table_2(tmp_path):
  experiment = images.ImageExperiment.of(celeba.get_config('scale=smoke'))
  nodes = image_page.ImagePage(
    experiment, tmp_path, None, {}, image_page.table2_cells(experiment)
  ).nodes()
  assert {node.name: ' '.join(node.needs) for node in nodes} == {
    'base': '',
    'cells-k1-regular-dev': 'base',
    'cells-k4-forecast-dev': 'base',  # nothing is trained
    'sweep-k4-forecast-dev': 'base',
    'k4-regular': 'base',  # serves k = 2 too
    'cells-k2-regular-dev': 'k4-regular',
    'cells-k4-regular-dev': 'k4-regular',
    'k2-finetune': 'k4-regular',
    'cells-k2-finetune-dev': 'k2-finetune',
    'k4-finetune': 'k4-regular',
    'cells-k4-finetune-dev': 'k4-finetune',
    'sweep-k4-regular-dev': 'k4-regular',
    'sweep-k4-finetune-dev': 'k4-finetune',
  }


def test_the_sweep_is_of_the_largest_k(tmp_path):
  experiment = images.ImageExperiment.of(celeba.get_config('scale=faces32'))
  groups = image_page.table2_cells(experiment)
  sweep = [group for group in groups if group.kind == 'sweep']
  assert {(group.k, group.regime) for group in sweep} == {
    (10, 'forecast'),
    (10, 'regular'),
    (10, 'finetune'),
  }
  assert all(group.rules == tuple(f'distance-{tau}' for tau in (1, 4, 6, 8)) for group in sweep)
  others = [group for group in groups if group.k > 1 and group not in sweep]
  for group in others:
    # a forecast has no likeliest window
    centred = () if group.regime == 'forecast' else ('window-2',)
    assert group.rules == ('exact', 'distance-2', *centred)
  assert [group.k for group in others if group.regime == 'forecast'] == [2, 4, 6, 8, 10, 16, 24]


def test_all_rules_are_one_program():
  rules = [images.rule_of(name) for name in ('exact', 'distance-2', 'distance-8', 'min-3')]
  assert len({jax.tree.structure(rule) for rule in rules}) == 1
  assert [int(rule.rule.tau) for rule in rules] == [0, 2, 8, 0] and [
    int(rule.size) for rule in rules
  ] == [1, 1, 1, 3]
  for name in ('min-0', 'window-0', 'window-128', 'centre-2'):
    with pytest.raises(fd.UserError, match=f'{name} is unknown'):
      images.rule_of(name)


def test_smaller_faces_have_a_model_of_their_size():
  experiment = images.ImageExperiment.of(celeba.get_config('scale=faces16'))
  assert (
    experiment.model.size == experiment.data.side == 16 and experiment.model.block_length == 16 * 3
  )
  assert experiment.data.data.side == 16 and experiment.data.mirrored


def test_a_window_is_a_distance_with_other_guesses():
  heads = BlockwiseHeads(4, 8, 8)
  bound = heads, heads.init(jax.random.key(0))
  centred, plain = (images.strategy_of(bound, 3, f'{name}-2') for name in ('window', 'distance'))
  assert (centred.window, plain.window) == (2, 0) and centred.k == plain.k == 3
  assert int(centred.rule.rule.tau) == 2 == int(plain.rule.rule.tau)


@pytest.mark.parametrize('setting, message', [
  ({'table.ks': (1,)}, r'config.table.ks\[0\]=1'),
  ({'table.regimes': ('both',)}, 'regimes has both: images have no teacher'),
  ({'table.taus': (-1,)}, r'config.table.taus\[0\]=-1'),
  ({'model.block_length': 0}, 'block_length=0'),
  ({'model.heads': 16}, 'a head compares rows and columns by 4 numbers'),
  ({'model.size': 16}, 'makes 16 x 16 pixels of 8 x 8: leave source_size out, and let size be'
                       ' data.side, 32'),
  ({'data.side': 16}, 'let size be data.side, 16'),
  ({'model.d_model': 12}, 'd_model=12 is not divisible by 8'),
  ({'table.forecast': (1,)}, r'config.table.forecast\[0\]=1'),
  ({'model.forecast': False}, 'with config.model.forecast=False is not possible: give forecast=()'),
  ({'data.kind': 'jpeg'}, "config.data.kind='jpeg'"),
  ({'data.rows': 0}, 'config.data.rows=0'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  config = celeba.get_config('scale=smoke').unlock()
  for name, value in setting.items():
    part, leaf = name.split('.')
    config[part][leaf] = value
  with pytest.raises(fd.UserError, match=message):
    images.ImageExperiment.of(config)


@pytest.fixture(scope='module')
def table(tmp_path_factory):
  folder = tmp_path_factory.mktemp('table2')
  assert run('table2', *words(folder / 'cache'), f'--workdir={folder}/run') == 0
  return folder


@pytest.mark.slow
def test_a_table_with_all_that_belongs_to_it(table):
  workdir = table / 'run'
  found = cells.latest(cells.read(workdir / 'results.jsonl', BlockwiseCell))
  rules = ('exact', 'distance-2', 'window-2', 'distance-9')
  keys = {
    (1, 'regular', 'exact'),
    *((2, regime, rule) for regime in ('regular', 'finetune') for rule in rules),
  }
  keys |= {(2, 'forecast', rule) for rule in rules if rule != 'window-2'}
  assert set(found) == keys and all(
    cell.error is None and cell.outputs == 2 for cell in found.values()
  )
  frozen = found[2, 'regular', 'exact']
  forecast = found[2, 'forecast', 'exact']
  assert (
    forecast.models == found[1, 'regular', 'exact'].models
    and forecast.same_as_greedy == 1
    and forecast.speedup
  )
  assert frozen.same_as_greedy == 1 and frozen.psnr == found[1, 'regular', 'exact'].psnr
  blocks = [
    found[2, 'finetune', rule].mean_block_size for rule in ('exact', 'distance-2', 'distance-9')
  ]
  assert 1 <= blocks[0] <= blocks[1] <= blocks[2] <= 2
  assert (
    found[2, 'finetune', 'window-2'].speedup
    and found[2, 'finetune', 'window-2'].bicubic_psnr == frozen.bicubic_psnr
  )
  # of the sweep, the columns are timed
  assert frozen.speedup and found[2, 'regular', 'distance-9'].speedup is None
  page = (workdir / 'table2.md').read_text()
  assert '1.07' in page and 'PSNR' in page  # the paper's k = 2
  with open(workdir / 'table2.csv') as file:
    assert len(list(csv.DictReader(file))) == len(keys)
  for name in ('table2', 'tau', 'figure4', 'samples', 'calls'):
    assert (workdir / f'{name}.png').stat().st_size > 2000
  with np.load(workdir / 'images' / 'dev-k2-finetune-distance-9.npz') as made:
    assert {name: made[name].shape for name in ('input', 'output', 'original')} == {
      'input': (2, 8, 8, 3), 'output': (2, 32, 32, 3), 'original': (2, 32, 32, 3),
    }  # fmt: skip
    assert (made['block_sizes'].sum(axis=1) == 3071).all()


@pytest.mark.slow
def test_a_finished_table_is_drawn_again_in_no_time_and_other_images_are_refused(table, launch):
  before = (table / 'run' / 'results.jsonl').read_bytes()
  assert launch('table2', *words(table / 'cache'), f'--workdir={table}/run').code == 0
  ended = launch('table2', *words(table / 'cache', **{'table.images': 1}), f'--workdir={table}/run')
  assert (
    ended.code == 2
    and 'was measured on 2 images of the dev set, and this config means 1' in ended.err
  )
  assert (table / 'run' / 'results.jsonl').read_bytes() == before


@pytest.mark.slow
def test_evaluate_measures_a_run_alone_and_finds_the_same(table, launch):
  run = table / 'run' / 'k2-finetune'
  config, *settings = words(table / 'cache')
  ended = launch('evaluate', f'{config},k=2,regime=finetune', *settings, f'--workdir={run}')
  assert ended.code == 0 and 'PSNR' in ended.out
  outcome = lambda cell: (cell.mean_block_size, cell.psnr, cell.ssim)
  alone = cells.latest(cells.read(run / 'results.jsonl', BlockwiseCell))
  whole = cells.latest(cells.read(table / 'run' / 'results.jsonl', BlockwiseCell))
  assert {key[-1] for key in alone} == {'exact', 'distance-2', 'window-2'}
  assert all(outcome(alone[key]) == outcome(whole[key]) for key in alone)
