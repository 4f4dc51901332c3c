"""Speculative decoding's page: settings, rows without any model, tables, and all of it at toy
size."""

import dataclasses
import types

import numpy as np
import pytest

import fastdec as fd
from configs import speculative
from experiments import leviathan2022
from experiments.lab import report, rows
from experiments.lab.bench import Bench
from experiments.lab.compare import Comparison
from experiments.lab.config import to_dataclass
from experiments.lab.workdir import Workdir
from experiments.leviathan2022 import PLAN, SPEEDS, Speculative
from fastdec import folders
from tests.experiments.conftest import ROOT, run, with_settings

TOY = {
  'data.max_train': 200, 'measure.gammas': (2,), 'measure.batches': (1, 2),
  'measure.temperatures': (0.0,), 'measure.sentences': 4,
}  # fmt: skip


def settings(task='translation', **changed):
  config = with_settings(speculative.get_config(f'scale=smoke,task={task}'), changed)
  return to_dataclass(Speculative, config)


@pytest.mark.parametrize('setting, message', [
  ({'measure.gammas': (3, 0)}, r'config.measure.gammas\[1\]=0 is .* from 1 to 999'),
  ({'measure.temperatures': (-1.0,)}, r'config.measure.temperatures\[0\]=-1.0 is not possible'),
  ({'data.row_length': 2000}, 'config.data.row_length=2000 is not possible: target.model.max_pos'),
  ({'measure.max_len': 2000}, 'config.measure.max_len=2000 is not possible'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    settings(**setting)


def test_every_scale_and_task_is_an_experiment():
  for scale in ('smoke', 'multi30k'):
    for task in ('lm', 'translation'):
      config = speculative.get_config(f'scale={scale},task={task}')
      assert to_dataclass(Speculative, config).task == task


def test_mistakes_show_before_any_work(tmp_path, launch):
  page = f'--config={ROOT}/configs/speculative.py'
  ended = launch('speculative', f'{page}:scale=large', f'--workdir={tmp_path}/run')
  assert ended.code == 2 and "scale='large' is not possible: give one of smoke" in ended.err
  words = '--config.data.folder=nowhere', f'--config.data.cache={tmp_path}/cache'
  ended = launch('speculative', f'{page}:scale=multi30k', *words, f'--workdir={tmp_path}/run')
  assert ended.code == 2 and "there is no folder 'nowhere' with the text" in ended.err
  assert not (tmp_path / 'run' / 'target').exists()


# --- rows, without any model


class Rehearsal:
  """The page with models of one hash and rows that cost nothing. Some fail."""

  def __init__(self, root, monkeypatch):
    self.root, self.measured, self.failing, self.hash = root, [], (), 'abc'
    monkeypatch.setattr(Workdir, 'stage', self._stage)
    monkeypatch.setattr(leviathan2022, 'write', lambda *_: None)
    for name in ('content', 'draft_content'):
      monkeypatch.setattr(folders, name, lambda folder: f'{self.hash} {folder.name}')
    monkeypatch.setattr(Bench, 'text', types.SimpleNamespace(content='abc'))
    monkeypatch.setattr(leviathan2022, 'figures', self._figures)

  def __call__(self, **changed):
    self.measured = []
    lists = {'measure.gammas': (3, 5, 7), 'measure.batches': (1, 8)}
    work = Workdir(self.root)
    leviathan2022.speculative(settings(**(lists | changed)), work)
    return work

  @property
  def rows(self):
    latest = rows.latest(rows.read(self.root / 'results.jsonl'), *PLAN)
    return {tuple(row.get(name) for name in PLAN): row for row in latest}

  def _stage(self, name, make, **inputs):
    if name in self.failing:
      raise MemoryError('too large')
    return self.root / name

  def _figures(self, bench, models, key):
    plan = tuple(key[name] for name in PLAN)
    if plan in self.failing:
      raise MemoryError('too large')
    self.measured.append(plan)
    return {'alpha_beta': 0.5, 'tokens_per_call': 2.0, 'predicted_width': 1.5, 'speedup': 1.5}


@pytest.fixture
def rehearsal(tmp_path, monkeypatch):
  return Rehearsal(tmp_path, monkeypatch)


def test_all_gammas_are_measured_at_the_first_batch_and_the_first_gamma_at_all(rehearsal):
  work = rehearsal()
  assert work.is_complete and not work.failed
  measured = rehearsal.rows
  assert len(measured) == 2 * (2 * (3 + 1 + 1) + (3 + 1) + 2)
  at_8 = {(row['plan'], row['gamma']) for row in measured.values() if row['batch'] == 8}
  assert at_8 == {('3', 3)}
  assert {row['gamma'] for row in measured.values() if row['plan'] == 'adaptive'} == {7}
  assert {plan for draft, _, plan, _ in measured if draft == 'bigram'} == {'3'}


def test_finished_rows_are_not_measured_again_unless_the_models_are_others(rehearsal):
  rehearsal()
  path = rehearsal.root / 'results.jsonl'
  lost, *lines = path.read_text().splitlines(keepends=True)
  path.write_text(''.join(lines) + lost[:40])  # killed
  rehearsal()
  assert rehearsal.measured == [('large', 0.0, '3', 1)]
  rehearsal.hash = 'def'
  rehearsal()
  assert len(rehearsal.measured) == len(lines) + 1


def test_only_the_rows_of_a_draft_that_is_trained_again_are_measured_again(rehearsal, monkeypatch):
  rehearsal()
  again = lambda folder: f'{folder.name} again' if folder.name == 'small' else f'abc {folder.name}'
  monkeypatch.setattr(folders, 'draft_content', again)
  rehearsal()
  assert {draft for draft, *_ in rehearsal.measured} == {'small'}


def test_a_draft_that_cannot_be_trained_stops_only_its_own_rows(rehearsal, monkeypatch):
  drawn = []
  monkeypatch.setattr(leviathan2022, 'write', lambda *args: drawn.extend(args[2]))
  rehearsal.failing = ('small',)
  work = rehearsal(**{'measure.temperatures': (0.0,)})
  assert work.failed == ['draft=small'] and work.is_complete
  assert {draft for draft, *_ in rehearsal.measured} == {'large', 'bigram', 'unigram', 'lookup'}
  line = next(row for row in drawn[0].rows if row[0] == 'small draft')
  assert list(line[1:4]) == 3 * [report.MISSING]
  assert line[4] == 'failed: MemoryError: too large'


# --- the tables and the picture


def a_row(draft='large', temperature=0.0, plan='3', batch=1, **figures):
  key = dict(zip(PLAN, (draft, temperature, plan, batch), strict=True))
  measured = {
    'gamma': 5 if plan == 'adaptive' else int(plan), 'alpha_beta': 0.75, 'alpha_accepted': 0.7,
    'c': 0.1, 'v': 1.25, 'tokens_per_call': 2.5, 'drafts_per_call': 3.0, 'predicted': 2.1,
    'predicted_width': 1.61, 'speedup': 1.5, 'speedup_calls': 1.6, 'spread': [1.4, 1.55],
    'same_as_plain': 1.0 if temperature == 0 else None, 'texts': 8, 'task': 'lm',
    'repeated_4grams': 0.125,
  }  # fmt: skip
  return key | measured | figures


def test_the_table_of_speeds_has_our_rows_in_order_and_then_the_papers():
  failed = {'draft': 'small', 'temperature': 1.0, 'plan': '3', 'batch': 1, 'error': 'no | memory'}
  large = [a_row(batch=8), a_row(plan='adaptive'), a_row(plan='5'), a_row()]
  table = leviathan2022.speeds([*large, a_row('small'), failed])
  assert all(len(row) == len(table.header) for row in table.rows)
  starts = [row[:4] for row in table.rows]
  assert starts[:6] == [
    ('large draft', '0', '3', '1'), ('large draft', '0', '5', '1'),
    ('large draft', '0', '≤ 5', '1'), ('large draft', '0', '3', '8'),
    ('small draft', '0', '3', '1'), ('small draft', '1', '3', '1'),
  ]  # fmt: skip
  assert len(starts) == 6 + len(SPEEDS)
  assert starts[6] == ('T5-small (T5-XXL, EnDe, paper)', '0', '7', '1')
  ours = list(table.rows[0][4:])
  assert ours[:5] == ['0.750', '0.700', '0.100', '1.25', '2.50']
  assert ours[5:] == ['2.10×', '1.61×', '1.50× (1.40 .. 1.55)', '1.60×', '100.0']
  page = report.markdown(table)
  assert r'failed: no \| memory' in page
  assert '12.5 % of the 4-grams had occurred before' in page


def test_the_table_of_alphas_has_the_drafts_of_the_smallest_gamma():
  smallest = []
  for draft in leviathan2022.DRAFTS:
    alpha = None if draft == 'lookup' else 0.5
    smallest += [a_row(draft, temperature, alpha_beta=alpha) for temperature in (0.0, 1.0)]
  others = a_row(plan='5', alpha_beta=0.9), a_row(batch=8, alpha_beta=0.9)
  table = leviathan2022.alphas([*others, *smallest])
  assert all(len(row) == len(table.header) for row in table.rows)
  names = [row[0] for row in table.rows[:5]]
  assert names == ['prompt lookup', 'unigram', 'bigram', 'small draft', 'large draft']
  assert list(table.rows[4][1:]) == ['0', '3', '0.500', '1.88', '2.50']
  assert table.rows[0][3] == table.rows[0][4] == report.MISSING
  bigram = next(row for row in table.rows if row[0] == 'bigram (T5-XXL, EnDe, paper)')
  assert (bigram[1], bigram[3]) == ('0, 1', '0.20, 0.19')


@pytest.mark.parametrize('shown', [[], [a_row(), a_row(temperature=1.0, predicted=None)]])
def test_a_picture(tmp_path, shown):
  leviathan2022.picture(shown, tmp_path / 'picture.png')
  assert (tmp_path / 'picture.png').stat().st_size > 2000


# --- at toy size


def words(task, folder):
  changed = TOY | {'data.cache': folder / 'cache'}
  page = f'{ROOT}/configs/speculative.py:scale=smoke,task={task}'
  flags = [f'--config.{name}={value}' for name, value in changed.items()]
  return [f'--config={page}', *flags, f'--workdir={folder}/run']


@pytest.fixture(scope='module', params=['translation', 'lm'])
def finished(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp('speculative')
  assert run('speculative', *words(request.param, folder)) == 0
  return request.param, folder


@pytest.fixture
def bench(finished):
  task, folder = finished
  c = settings(task, **TOY, **{'data.cache': str(folder / 'cache')})
  return Bench(folder / 'run' / 'target', c.data, c.measure)


def figures(bench, *plan):
  """The figures of a plan whose draft is counted, not trained."""
  key = dict(zip(PLAN, plan, strict=True))
  return leviathan2022.figures(bench, {}, key | {'gamma': int(key['plan']), 'seed': 0})


@pytest.mark.slow
def test_all_of_it_at_toy_size(finished, launch):
  task, folder = finished
  path = folder / 'run' / 'results.jsonl'
  measured = rows.latest(rows.read(path), *PLAN)
  plans = {(row['draft'], row['plan'], row['batch']) for row in measured}
  models = [(draft, *plan) for draft in ('large', 'small')
            for plan in (('2', 1), ('adaptive', 1), ('2', 2))]  # fmt: skip
  others = ('lookup', '2', 1), ('lookup', '2', 2), ('bigram', '2', 1), ('unigram', '2', 1)
  assert plans == {*models, *others}
  for row in measured:
    assert 'error' not in row and (row['same_as_plain'], row['parted']) == (1, 0)
    assert row['speedup'] > 0 and row['gamma'] + 1 >= row['tokens_per_call'] >= 1
    assert (row['alpha_beta'] is None) == (row['draft'] == 'lookup')
  page = (folder / 'run' / 'speculative.md').read_text()
  assert 'large draft' in page and 'T5-small (T5-XXL, EnDe, paper)' in page and '![' in page
  assert (folder / 'run' / 'speculative.png').stat().st_size > 2000
  before = path.read_bytes()
  assert launch('speculative', *words(task, folder)).code == 0
  assert path.read_bytes() == before


@pytest.mark.slow
def test_above_temperature_0_and_where_calls_cost_less_than_the_clock_can_tell(bench, monkeypatch):
  monkeypatch.setattr(leviathan2022, 'cost', lambda *_: 0.0)
  row = figures(bench, 'bigram', 1.0, '2', 2)
  assert 'same_as_plain' not in row and 0 < row['alpha_beta'] < 1 and row['texts'] == 2
  assert row['predicted'] > 1 and row['predicted_width'] is None


@pytest.mark.slow
def test_a_row_fails_if_its_texts_differ_without_a_near_tie(bench, monkeypatch):
  decode = Comparison.decode

  def mistaken(self, strategy, prompts, key):
    out = decode(self, strategy, prompts, key)
    if isinstance(strategy, fd.Greedy):
      return out
    tokens = np.array(out.tokens)
    tokens[0, 1] = 7 + (tokens[0, 1] == 7)
    return dataclasses.replace(out, tokens=tokens)

  monkeypatch.setattr(Comparison, 'decode', mistaken)
  with pytest.raises(fd.UserError, match="1 of 2 outputs differ from plain greedy decoding's"):
    figures(bench, 'unigram', 0.0, '1', 2)
