"""Medusa's page: settings, trainings, rows, tables, and all of it at toy size."""

import dataclasses
import json

import pytest

import fastdec as fd
from configs import medusa
from experiments import cai2024
from experiments.cai2024 import FROZEN, SPEEDS, STAGES, TOGETHER, TREES, Medusa
from experiments.lab import report, rows
from experiments.lab.config import to_dataclass
from experiments.lab.workdir import Workdir
from fastdec.data.text.tokens import TokenPairs
from fastdec.evaluation.tree_calibration import Calibration
from fastdec.evaluation.tree_growth import Tree
from tests.experiments.conftest import ROOT, with_settings


def settings(text='own', scale='smoke', **changed):
  config = with_settings(medusa.get_config(f'scale={scale},text={text}'), changed)
  return to_dataclass(Medusa, config)


@pytest.mark.parametrize('setting, message', [
  ({'measure.published': 'vicuna'}, "'vicuna' is not a published tree: known are mc_sim_7b_63"),
  ({'heads.depth': 3}, 'measure.published=mc_sim_7b_63 is 4 deep, and config.heads.depth=3: give as'
                       ' many heads'),
  ({'measure.nodes': 1}, 'config.measure.nodes=1 is .* from 2 to 999'),
  ({'measure.trees': ('oak',)}, r"config.measure.trees\[0\]='oak' is .*: give one of chain"),
  ({'finetune.heads_rate': 0.0}, 'config.finetune: heads_rate=0.0 is not possible'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    settings(**setting)


def test_every_scale_and_text_is_an_experiment():
  for scale in ('smoke', 'multi30k'):
    for text in ('own', 'data', 'mixed'):
      assert (settings(text, scale).text, settings(text, scale).scale) == (text, scale)


def test_the_rows():
  plans = [tuple(plan.values()) for plan in cai2024.plans(settings(scale='multi30k').measure)]
  assert len(plans) == len(set(plans)) == 2 * (4 * 3 + 1)
  assert {(stage, tree, 1) for stage in STAGES for tree in TREES} < set(plans)
  assert ('medusa-1', 'published', 32) in plans and ('medusa-1', 'typical', 8) not in plans


@pytest.mark.parametrize('text', ['own', 'data', 'mixed'])
def test_the_trainings(tmp_path, monkeypatch, text):
  made = {}

  def stage(work, name, make, **inputs):
    made[name] = inputs
    return work.root / name

  monkeypatch.setattr(Workdir, 'stage', stage)
  c, target, own = settings(text), tmp_path / 'target', tmp_path / 'own'
  data = dataclasses.replace(c.data, distilled='' if text == 'data' else str(own))
  assert cai2024.heads(c, Workdir(tmp_path), TOGETHER, target, data) == tmp_path / TOGETHER
  first, second = made[FROZEN], made[TOGETHER]
  assert (first['base'], first['together'], first['run']) == (target, False, c.freeze)
  assert (second['base'], second['together'], second['run']) == (
    tmp_path / FROZEN,
    True,
    c.finetune,
  )
  assert first['order'] != second['order']
  assert first['data'].distilled == second['data'].distilled == ('' if text == 'data' else str(own))
  assert not first['data'].mixed and second['data'].mixed == (text == 'mixed')


def a_row(stage='medusa-1', tree='calibrated', batch=1, **figures):
  measured = {'nodes': 32, 'depth': 4, 'tokens_per_call': 3.0, 'tokens_unseen': 2.5, 'nll': 2.968}
  measured |= {'speedup': 0.6, 'speedup_calls': 0.5, 'spread': [0.5, 0.7], 'same_as_plain': 1.0}
  measured |= {'text': 'own', 'repeated_4grams': 0.0}
  return {'stage': stage, 'tree': tree, 'batch': batch} | measured | figures


def test_the_table_has_our_rows_in_order_and_then_the_papers():
  failed = {'stage': 'medusa-2', 'error': 'no space left'}  # a training, which has no tree
  ours = [failed, a_row(batch=8), a_row(tree='typical', same_as_plain=0.5), a_row(tree='chain')]
  table = cai2024.speeds(ours)
  lines = table.rows
  assert [line[:4] for line in lines[:3]] == [
    ('Medusa-1', 'chain', '32', '1'),
    ('Medusa-1', 'calibrated, typical', '32', '1'),
    ('Medusa-1', 'calibrated', '32', '8'),
  ]
  assert lines[0][4:] == ('3.00', '2.50', '6.00', '0.60× (0.50 .. 0.70)', '0.50×', '100.0', '2.968')
  assert lines[3][0] == 'Medusa-2' and lines[3][4] == 'failed: no space left'
  assert len(lines) == 4 + len(SPEEDS) and lines[4][1] == 'Vicuna 7B (paper)'
  drawn = report.markdown(table)
  assert 'Conditions: text own' in drawn
  report.markdown(cai2024.speeds([failed]))


def test_heads_are_listed_with_the_published_ones_and_the_fastest_tree_is_marked():
  right = {1: (0.8, 0.5), 5: (0.9, 0.75)}
  tree = Tree(((0,), (0, 0)), (0.8, 0.4))
  calibration = Calibration(tree, right, 1000, {1: 1.0, 2: 1.8, 3: 2.2}, {1: 1.0, 2: 1.2, 3: 2.0})
  heads = report.markdown(cai2024.accuracies(calibration, 'Medusa-1'))
  assert '| 2 | 50.0 (32) | 75.0 (56) |' in heads and 'Counted at 1,000 tokens.' in heads
  trees = report.markdown(cai2024.widths(calibration))
  assert '| 2 (chosen) | 1.80 | 1.20 | 1,500 |' in trees and '| 3 | 2.20 |' in trees


@pytest.mark.slow
def test_all_of_it_at_toy_size(tmp_path, launch):
  """A training that fails is a row that says why; the same command continues."""
  changed = {'data.max_train': 100, 'data.cache': tmp_path / 'cache', 'measure.calibrated': 4}
  changed |= {f'{run}.steps': 2 for run in ('train', 'freeze', 'finetune')}
  words = [f'--config={ROOT}/configs/medusa.py:scale=smoke']
  words += [f'--config.{name}={value}' for name, value in changed.items()]
  folder = tmp_path / 'run'
  results = folder / 'results.jsonl'
  (folder / 'medusa-2').mkdir(parents=True)  # where the link would be
  assert launch('medusa', *words, f'--workdir={folder}').code == 1
  latest = rows.latest(rows.read(results), *cai2024.PLAN)
  assert [row['stage'] for row in latest if 'error' in row] == ['medusa-2']
  assert {row['tree'] for row in latest if 'error' not in row} == set(TREES)
  (folder / 'medusa-2').rmdir()
  assert launch('medusa', *words, f'--workdir={folder}').code == 0
  finished = [row for row in rows.read(results) if 'error' not in row]
  assert len(finished) == 2 * 5
  for row in finished:
    assert row['speedup'] > 0 and row['tokens_per_call'] >= 1
    assert row['nodes'] > 1 or row['tree'] == 'fastest'  # it may be best to guess nothing
    assert row['tree'] == 'typical' or row['same_as_plain'] == 1
  tree = json.loads((folder / 'medusa-1-tree.json').read_text())
  assert len(tree['choices']) == len(tree['rates']) <= 11 and tree['milliseconds']['1'] > 0
  assert (folder / 'medusa-2-tree.png').stat().st_size > 10_000
  page = (folder / 'medusa.md').read_text()
  assert 'Vicuna 7B (paper)' in page and 'Medusa-2: how often each head is right' in page
  assert 'failed' not in page
  lines = (folder / 'own' / 'train.de').read_text().splitlines()
  assert (folder / 'own' / 'train.en').read_text().splitlines() == lines and len(lines) <= 100
  pieces = fd.load_tokenizer(folder / 'target')
  (file,) = (folder / 'own').glob('train-*.npy')
  ids = TokenPairs.load(file)
  assert [pieces.decode(ids.target[i].tolist()) for i in range(len(ids))] == lines
  before = results.read_bytes()
  assert launch('medusa', *words, f'--workdir={folder}').code == 0
  assert results.read_bytes() == before
  files = {path: path.stat().st_mtime_ns for path in folder.rglob('*')}
  assert launch('medusa', *words, f'--workdir={folder}', '--plan').code == 0
  assert {path: path.stat().st_mtime_ns for path in folder.rglob('*')} == files
