"""Medusa: settings, the graph, and all of it at toy size."""

import json

import pytest

import fastdec as fd
from configs import medusa
from experiments.lab.cells import latest, read
from experiments.papers.cai2024.cells import MedusaCell
from experiments.papers.cai2024.page import MedusaPage
from experiments.papers.cai2024.settings import MedusaExperiment
from fastdec import folders
from fastdec.data.text.tokens import TokenPairs
from tests.experiments.conftest import ROOT, run, with_settings

SETTINGS = {
  'data.max_train': 100,
  'measure.calibrated': 4,
  'train.steps': 2,
  'freeze.steps': 2,
  'finetune.steps': 2,
}


def changed(**settings):
  return with_settings(medusa.get_config('scale=smoke'), settings)


@pytest.mark.parametrize('setting, message', [
  ({'measure.published': 'vicuna'}, "'vicuna' is no published tree: known are mc_sim_7b_63"),
  ({'heads.depth': 3}, 'measure.published=mc_sim_7b_63 is 4 deep, and config.heads.depth=3: give as'
                       ' many heads'),
  ({'heads.p1_share': 1.0}, 'config.heads.p1_share=1.0 is not possible'),
  ({'heads.decay': 0.0}, 'config.heads.decay=0.0 is not possible'),
  ({'measure.nodes': 1}, 'config.measure.nodes=1 is not possible: give 2 or more'),
  ({'measure.batches': ()}, 'config.measure.batches=.* give one or more'),
  ({'measure.typical': 2.0}, 'epsilon=2.0 is not possible'),
  ({'finetune.heads_rate': 0.0}, 'heads_rate=0.0 is not possible'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    MedusaExperiment.of(changed(**setting))


@pytest.mark.parametrize(
  'text, first, regimes',
  [
    ('own', 'own', ('distil', 'both')),
    ('mixed', 'own', ('distil', 'both')),
    ('data', 'target', ('regular', 'finetune')),
  ],
)
def test_the_graph(tmp_path, text, first, regimes):
  page = MedusaPage(MedusaExperiment.of(changed(text=text)), tmp_path, None, {})
  nodes = {node.name: node.needs for node in page.nodes()}
  assert nodes['medusa-1'] == (first,) and nodes['medusa-2'] == ('medusa-1',)
  assert nodes['medusa-2-tree'] == ('medusa-2',) and nodes['medusa-2-published-b1'] == (
    'medusa-2-tree',
  )
  assert [page.run(stage).regime for stage in ('medusa-1', 'medusa-2')] == list(regimes)
  assert page.run('medusa-2').base == tmp_path / 'medusa-1'
  assert [page.run(stage).experiment.data.mixed for stage in ('medusa-1', 'medusa-2')] == [
    False,
    text == 'mixed',
  ]
  assert sum(name.endswith('-b1') for name in nodes) == 2 * 5


def words(cache, **more):
  settings = SETTINGS | {'data.cache': cache} | more
  return [
    f'--config={ROOT}/configs/medusa.py:scale=smoke',
    *(f'--config.{name}={value}' for name, value in settings.items()),
  ]


@pytest.mark.slow
def test_all_of_it_at_toy_size(tmp_path, launch):
  folder = tmp_path / 'run'
  assert run('medusa', *words(tmp_path / 'cache'), f'--workdir={folder}') == 0
  found = latest(read(folder / 'results.jsonl', MedusaCell)).values()
  assert len(found) == 2 * 5
  for cell in found:
    assert cell.error is None and cell.speedup > 0 and cell.tokens_per_call >= 1
    assert cell.nodes > 1 or cell.tree == 'fastest'  # by the clock it may be best to guess nothing
    assert cell.tree == 'typical' or cell.same_as_plain == 1
  tree = json.loads((folder / 'medusa-1-tree.json').read_text())
  assert len(tree['choices']) == len(tree['rates']) <= 11 and tree['milliseconds']['1'] > 0
  page = (folder / 'medusa.md').read_text()
  assert 'Vicuna 7B (paper)' in page and 'Medusa-2: how often each head is right' in page
  lines = (folder / 'own' / 'train.de').read_text().splitlines()
  assert (folder / 'own' / 'train.en').read_text().splitlines() == lines and len(lines) <= 100
  ids, pieces = (
    TokenPairs.load(folder / 'own' / 'train.npy'),
    folders.load_tokenizer(folder / 'target'),
  )
  assert [pieces.decode(ids.target[i].tolist()) for i in range(len(ids))] == lines
  before = (folder / 'results.jsonl').read_bytes()
  assert launch('medusa', *words(tmp_path / 'cache'), f'--workdir={folder}').code == 0
  assert (folder / 'results.jsonl').read_bytes() == before
