"""`--plan` lists what a command would do, with its costs on paper, and does nothing."""

import re
import types

import pytest

from experiments.lab import costs, train
from experiments.lab.costs import COSTS
from experiments.lab.machine import GPUS, machine_of
from experiments.lab.plan import Cost, Plan
from experiments.lab.workdir import Workdir
from fastdec.training.drafts.trainer import train_heads

WMT14 = '--config=configs/wmt14.py:scale='


def write_note(folder, *, text, before=None):
  (folder / 'note').write_text(text)


def test_what_is_there_is_marked(tmp_path):
  """Stages by their inputs, and rows by their keys; a stage on one that is not made is new."""
  work, plan = Workdir(tmp_path), Plan(tmp_path, GPUS['h100'], COSTS)
  first = work.stage('first', write_note, text='a')
  work.stage('second', write_note, text='b', before=first)
  work.add({'k': 2, 'bleu': 1.0})

  folder = plan.stage('first', write_note, text='a')
  assert folder == first
  plan.stage('second', write_note, text='b', before=folder)
  other = plan.stage('third', write_note, text='c')
  plan.stage('fourth', write_note, text='d', before=other)
  plan.fill([{'k': 2}, [{'k': 4}, {'k': 2}]], write_note)
  states = [(name, state) for name, state, _ in plan.entries]
  assert states == [
    ('first', 'made'), ('second', 'made'), ('third', 'new'), ('fourth', 'new'),
    ('k=2', '1 of 1 rows are there'), ('k=4', '1 of 2 rows are there'),
  ]  # fmt: skip


def test_a_line_is_shown_as_soon_as_it_is_known(tmp_path, capsys):
  shown = []

  def cost(plan, *, text):
    shown.append(capsys.readouterr().out)
    return Cost(f'writes {text}', seconds=3600)

  plan = Plan(tmp_path, GPUS['h100'], {})
  plan.stage('first', write_note, cost, text='a')
  plan.stage('second', write_note, cost, text='b')
  assert shown == ['', '  1 first: new; writes a\n    0 calls, 0 tokens, 1 h\n']


def test_on_this_machine_a_program_is_compiled_once(tmp_path, monkeypatch):
  """Rows of all models that decode by it share it."""
  monkeypatch.setattr(costs, 'time_call', lambda *program: (2.0, 100.0))
  plan = Plan(tmp_path, machine_of('cpu'), COSTS)
  sizes = [(7, 1), (7, 1), (7, 4), (8, 4)]  # rows and width
  seconds = [costs.seconds_of_calls(plan, 'model', 3, *size, 9.0) for size in sizes]
  assert seconds == [106.0, 6.0, 106.0, 106.0]


def test_the_command_lists_all_and_makes_nothing(launch, tmp_path):
  root = tmp_path / 'w'
  ended = launch('table1', f'{WMT14}smoke', '--plan', f'--workdir={root}')
  code, out, err = ended.code, ended.out, ended.err
  assert (code, err) == (0, '') and not root.exists()
  stages = ['base', 'k2-regular', 'teacher', 'distilled', 'base-distil', 'k2-distil']
  stages += ['k2-finetune', 'k2-both', 'k=1 regime=regular', 'k=2 regime=regular']
  for i, name in enumerate(stages, start=1):
    assert f'{i:3} {name}: ' in out
  assert 'On 8 x H100, on paper' in out and 'In all: ' in out and 'not estimated' not in out


@pytest.mark.parametrize(('page', 'stages'), [
  ('speculative', ['target', 'large', 'small']),
  ('medusa', ['target', 'own', 'medusa-1', 'medusa-1-tree', 'medusa-2', 'medusa-2-tree']),
  ('lookahead', ['model']),
])  # fmt: skip
def test_a_page_whose_rows_depend_on_models_says_so(launch, monkeypatch, page, stages):
  for training in (train.base, train_heads):
    monkeypatch.setitem(COSTS, training, lambda plan, **inputs: Cost('trains'))
  ended = launch(page, f'--config=configs/{page}.py:scale=smoke', '--plan')
  assert ended.code == 0 and 'More rows are known once these stages are made' in ended.out
  for i, name in enumerate(stages, start=1):
    assert re.search(rf'^ +{i} {name}: new; (trains|writes \d+ texts)$', ended.out, re.MULTILINE)


@pytest.mark.parametrize(('command', 'args', 'words'), [
  ('table1', [f'{WMT14}smoke'], '--workdir is missing: folder of the results'),
  ('table1', [f'{WMT14}multi30k', '--plan'], "there is no folder 'data/multi30k' with the text"),
  ('table1', [f'{WMT14}smoke', '--plan=gpu'], '--plan=gpu is not a machine: give h100x8'),
  ('sweep', [f'{WMT14}smoke', '--plan'], 'a sweep has no plan'),
  ('incremental', ['--config=configs/incremental.py:scale=smoke', '--plan'],
   'a page that trains nothing has no plan'),
])  # fmt: skip
def test_an_impossible_plan_is_a_sentence(launch, command, args, words):
  ended = launch(command, *args)
  assert ended.code == 2 and ended.err.startswith(words) and len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(('place', 'room', 'words'), [
  ('machine.RAM', 10**5, ('a step needs', 'and a device has 100 kB: give a smaller model')),
  ('costs.shutil.disk_usage', lambda path: types.SimpleNamespace(free=1000),
   ('this takes', 'MB of disk, and', 'has 1 kB: choose another workdir')),
])  # fmt: skip
def test_a_run_needs_room_before_any_work(launch, monkeypatch, tmp_path, place, room, words):
  """By what weights, gradients, moments, checkpoints and texts need at least."""
  monkeypatch.setattr(f'experiments.lab.{place}', room)
  flags = f'--config.data.cache={tmp_path}/cache', f'--workdir={tmp_path}/new'
  ended = launch('table1', f'{WMT14}smoke', *flags)
  assert ended.code == 2 and len(ended.err.splitlines()) == 1 and not list(tmp_path.iterdir())
  assert all(word in ended.err for word in words)


@pytest.mark.slow
def test_a_scale_for_a_day_fits_into_one(launch, tmp_path):
  """By the plan, on 8 H100s; so does its rehearsal, which has the same stages."""
  names = {}
  for scale in ('wmt14-day', 'wmt14-day,rehearsal'):
    out = launch('table1', f'{WMT14}{scale}', '--plan', f'--workdir={tmp_path}').out
    hours = re.search(r'In all: (\S+) h,', out)
    assert hours is not None and float(hours[1]) < 24
    names[scale] = [line.split()[1] for line in out.splitlines() if '; trains' in line]
  assert names['wmt14-day'] == names['wmt14-day,rehearsal']


@pytest.mark.slow
@pytest.mark.parametrize(('table', 'config'), [
  ('table1', f'{WMT14}wmt14-day,rehearsal'),
  ('table2', '--config=configs/celeba.py:scale=celeba-day,rehearsal'),
])  # fmt: skip
def test_a_scale_for_a_day_is_rehearsed(launch, tmp_path, table, config):
  """Each stage and row of it; then the plan has nothing left to do."""
  flags = [config, f'--workdir={tmp_path}', f'--config.data.cache={tmp_path}/cache']
  if table == 'table2':
    flags.pop()
  assert launch(table, *flags).code == 0
  out = launch(table, *flags, '--plan').out
  assert ': new' not in out and ' 0 of ' not in out and 'In all: 0 h,' in out
