"""Speculative decoding, theory against practice: the graph and its cells without any model, then
all at toy size."""

import dataclasses
import shutil

import pytest

import fastdec as fd
from configs import speculative
from experiments.lab import graph
from experiments.lab.against_plain import Comparison
from experiments.lab.cells import latest, read
from experiments.papers.leviathan2022.cells import SpecCell
from experiments.papers.leviathan2022.measure import SpeculativeMeasuring
from experiments.papers.leviathan2022.page import SpeculativePage
from experiments.papers.leviathan2022.settings import experiment_of
from tests.experiments.conftest import ROOT, run, with_settings

SETTINGS = {
  'data.max_train': 200,
  'measure.gammas': (2,),
  'measure.batches': (1, 2),
  'measure.temperatures': (0.0,),
  'measure.sentences': 4,
}


def changed(task='translation', **settings):
  return with_settings(speculative.get_config(f'scale=smoke,task={task}'), settings)


class Rehearsal(SpeculativePage):
  """Every model is there, of one hash, and cells cost nothing: gamma 5 is the fastest. Some
  fail."""

  models, failing = 'abc', ()

  def __init__(self, workdir, **settings):
    asked = {'measure.gammas': (3, 5, 7), 'measure.batches': (1, 8), 'measure.ngram_gamma': 3}
    super().__init__(experiment_of(changed(**(asked | settings))), workdir, None, {})
    self.measured = []

  def check(self):
    pass

  def models_of(self, plan):
    return self.models

  def training(self, run, title, needs=()):
    return graph.Node(run.workdir.name, title, (), lambda: True, lambda budget: None)

  @property
  def measuring(self):
    return self

  def cell(self, draft, temperature, plan, gamma, batch):
    cell = SpecCell(
      draft, temperature, plan, batch, gamma, tokens_per_call=2.0, predicted_width=1.5, speedup=2 - abs(gamma - 5) / 10,
      models=self.models,
    )  # fmt: skip
    if cell.name in self.failing:
      raise MemoryError('too large')
    self.measured.append(cell.name)
    return cell


def test_the_graph(tmp_path):
  nodes = {node.name: node.needs for node in Rehearsal(tmp_path).nodes()}
  assert len(nodes) == 3 + 2 * (2 * (3 + 1 + 1) + (3 + 1) + 2)
  assert nodes['large-t0-g3-b1'] == nodes['large-t0-gadaptive-b1'] == ('target', 'large')
  assert nodes['bigram-t1-g3-b1'] == nodes['lookup-t1-g7-b1'] == ('target',)
  assert nodes['small-t1-gbest-b8'] == (
    'target',
    'small',
    *(f'small-t1-g{gamma}-b1' for gamma in (3, 5, 7)),
  )


def test_larger_batches_take_the_gamma_that_was_the_fastest(tmp_path):
  page = Rehearsal(tmp_path)
  assert page.fill() == graph.Outcome({}, True)
  found = latest(page.cells())
  assert {key for key in found} == {plan.key for plan in page.plans()}
  assert {cell.gamma for cell in found.values() if cell.plan == 'best'} == {5}
  assert {cell.gamma for cell in found.values() if cell.plan == 'adaptive'} == {7}


def test_finished_cells_are_not_measured_again_unless_the_models_are_others(tmp_path):
  Rehearsal(tmp_path).fill()
  lines = (tmp_path / 'results.jsonl').read_text().splitlines(keepends=True)
  lost = next(line for line in lines if '"large"' in line)
  # killed
  (tmp_path / 'results.jsonl').write_text(
    ''.join(line for line in lines if line != lost) + lost[:40]
  )
  again = Rehearsal(tmp_path)
  again.fill()
  assert again.measured == ['large-t0-g3-b1']
  retrained = Rehearsal(tmp_path)
  retrained.models = 'def'
  assert retrained.cells() == []
  retrained.fill()
  assert len(retrained.measured) == len(lines)


def test_what_fails_is_a_cell_with_its_reason_and_the_rest_goes_on(tmp_path):
  page = Rehearsal(tmp_path, **{'measure.temperatures': (0.0,)})
  page.failing = ('small-t0-g5-b1',)
  assert page.fill().failed == {
    'small-t0-g5-b1': 'MemoryError: too large', 'small-t0-gbest-b8': 'small-t0-g5-b1: MemoryError:'
                                                                     ' too large',
  }  # fmt: skip
  failed = {cell.name for cell in latest(page.cells()).values() if cell.error}
  assert (
    failed == {'small-t0-g5-b1', 'small-t0-gbest-b8'}
    and len(page.measured) == len(page.plans()) - 2
  )
  mended = Rehearsal(tmp_path, **{'measure.temperatures': (0.0,)})
  assert mended.fill() == graph.Outcome({}, True)
  assert mended.measured == ['small-t0-g5-b1', 'small-t0-gbest-b8']
  assert not any(cell.error for cell in latest(mended.cells()).values())


@pytest.mark.parametrize('setting, message', [
  ({'measure.gammas': (3, 0)}, r'config.measure.gammas\[1\]=0 is not possible: give 1 or more'),
  ({'measure.gammas': ()}, 'config.measure.gammas=.* give one or more'),
  ({'measure.batches': (1, 1)}, 'config.measure.batches=.* each once'),
  ({'measure.temperatures': (-1.0,)}, 'config.measure.temperatures=.* give 0'),
  ({'measure.split': 'train'}, "config.measure.split='train'"),
  ({'small.train.steps': 0}, 'config.train.steps=0'),
  ({'data.row_length': 2000}, 'config.data.row_length=2000 is not possible'),
  ({'measure.max_len': 2000}, 'config.measure.max_len=2000 is not possible'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    experiment_of(changed(**setting))


def words(task, cache, **more):
  settings = SETTINGS | {'data.cache': cache} | more
  page = f'{ROOT}/configs/speculative.py:scale=smoke,task={task}'
  return [f'--config={page}', *(f'--config.{name}={value}' for name, value in settings.items())]


def test_mistakes_are_told_before_any_work(tmp_path, launch):
  ended = launch(
    'speculative',
    f'--config={ROOT}/configs/speculative.py:scale=large',
    f'--workdir={tmp_path}/run',
  )
  assert ended.code == 2 and 'scale=large is not possible: give one of smoke, multi30k' in ended.err
  page = f'{ROOT}/configs/speculative.py:scale=multi30k'
  places = [
    '--config.data.folder=nowhere',
    f'--config.data.cache={tmp_path}/cache',
    f'--workdir={tmp_path}/run',
  ]
  ended = launch('speculative', f'--config={page}', *places)
  assert ended.code == 2 and "there is no folder 'nowhere' with the text" in ended.err
  assert not (tmp_path / 'run' / 'target').exists()


@pytest.fixture(scope='module', params=['translation', 'lm'])
def finished(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('speculative')
  assert run('speculative', *words(request.param, folder / 'cache'), f'--workdir={folder}/run') == 0
  return request.param, folder


@pytest.mark.slow
def test_all_of_it_at_toy_size(finished):
  _, folder = finished
  found = latest(read(folder / 'run' / 'results.jsonl', SpecCell)).values()
  names = {cell.name for cell in found}
  assert names == {
    *(f'{draft}-t0-g{plan}' for draft in ('large', 'small') for plan in ('2-b1', 'adaptive-b1', 'best-b2')),
    'lookup-t0-g2-b1', 'lookup-t0-gbest-b2', 'bigram-t0-g1-b1', 'unigram-t0-g1-b1',
  }  # fmt: skip
  for cell in found:
    assert cell.error is None and (cell.same_as_plain, cell.parted, cell.largest_gap) == (
      1,
      0,
      None,
    )
    assert cell.speedup > 0 and cell.gamma + 1 >= cell.tokens_per_call >= 1
    assert (cell.alpha_beta is None) == (cell.draft == 'lookup')
  page = (folder / 'run' / 'speculative.md').read_text()
  assert 'large draft' in page and 'T5-small (T5-XXL, EnDe, paper)' in page and '![' in page
  assert (folder / 'run' / 'speculative.png').stat().st_size > 2000


@pytest.mark.slow
def test_a_finished_page_is_drawn_again_in_no_time_and_other_settings_are_refused(
  finished, launch, tmp_path
):
  task, folder = finished
  shutil.copytree(folder / 'run', tmp_path / 'run')
  before = (tmp_path / 'run' / 'results.jsonl').read_bytes()
  assert (
    launch('speculative', *words(task, folder / 'cache'), f'--workdir={tmp_path}/run').code == 0
  )
  assert (tmp_path / 'run' / 'results.jsonl').read_bytes() == before
  other = words(task, folder / 'cache', **{'measure.max_len': 8})
  ended = launch('speculative', *other, f'--workdir={tmp_path}/run')
  assert (
    ended.code == 2 and 'was measured with max_len=12, and this config means max_len=8' in ended.err
  )


@pytest.mark.slow
def test_above_temperature_0(finished, monkeypatch):
  task, folder = finished
  settings = SETTINGS | {'data.cache': str(folder / 'cache')}
  measuring = SpeculativeMeasuring(experiment_of(changed(task, **settings)), folder / 'run', {})
  cell = measuring.cell('bigram', 1.0, '2', 2, 2)
  assert (
    cell.same_as_plain is None
    and 0 < cell.alpha_beta < 1
    and cell.predicted > 0
    and cell.texts == 2
  )


@pytest.mark.slow
def test_a_cell_fails_whose_texts_part_where_there_is_no_near_tie(finished, monkeypatch):
  task, folder = finished
  settings = SETTINGS | {'data.cache': str(folder / 'cache')}
  measuring = SpeculativeMeasuring(experiment_of(changed(task, **settings)), folder / 'run', {})
  decode = Comparison._decode

  def mistaken(self, strategy, prompts, key):
    out = decode(self, strategy, prompts, key)
    is_plain = isinstance(strategy, fd.Greedy)
    return (
      out
      if is_plain
      else dataclasses.replace(out, tokens=out.tokens.at[0, 1].set(7 + (out.tokens[0, 1] == 7)))
    )

  monkeypatch.setattr(Comparison, '_decode', mistaken)
  with pytest.raises(fd.UserError, match="1 of 2 outputs part from plain greedy decoding's"):
    measuring.cell('unigram', 0.0, '1', 1, 2)
