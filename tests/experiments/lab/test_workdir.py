"""Workdirs: rows measured once, failures that say why, a budget, several processes, jobs."""

import multiprocessing
import os
import signal

import pytest

import fastdec as fd
from experiments.lab import engine, rows
from experiments.lab.workdir import PLAN, Workdir
from fastdec.files import lock, read_json
from fastdec.training import stage
from fastdec.training.progress import Progress
from fastdec.training.stage import budget


@pytest.fixture
def work(tmp_path):
  return Workdir(tmp_path, {'machine': 'here'})


def keys_of(*ks):
  return [{'k': k} for k in ks]


def test_a_row_is_measured_once_and_has_the_conditions(work, tmp_path):
  key = {'k': 4, 'size': (1, 2)}
  first = work.fill([key], lambda key: {'tokens': 2.5, 'spread': (1.0, float('nan'))})
  assert first == [
    {'k': 4, 'size': [1, 2], 'tokens': 2.5, 'spread': [1.0, None], 'machine': 'here'}
  ]
  assert work.fill([key], lambda key: pytest.fail('it is there')) == first
  assert Workdir(tmp_path).rows([key, {'k': 8}]) == first
  assert work.shown == first * 2


def test_keys_that_are_measured_together_are_those_that_are_missing(work):
  seen = []

  def figures(missing):
    seen.append([key['k'] for key in missing])
    for key in missing:
      yield {'tokens': key['k']}

  work.fill([keys_of(1, 2)], figures)
  lines = work.fill([keys_of(2, 3), keys_of(1)], figures, summary=lambda row: f'k is {row["k"]}')
  assert seen == [[1, 2], [3]] and [row['tokens'] for row in lines] == [2, 3, 1]


def test_a_stage_names_its_place_and_counts_later_trainings(work, capsys):
  def make(folder):
    with Progress(10, 'step') as progress:
      for _ in range(4):
        progress.add()
        progress.show('here')

  work.planned = {'base': 5, 'own': 0, 'k2-both': 40, 'k4-both': 60}
  work.stage('k4-both', lambda folder: None)  # made before
  capsys.readouterr()
  folder = work.stage('own', make)
  first, *_, last = capsys.readouterr().out.splitlines()
  assert first == f'Making stage 2 of 4, own, in {folder}'
  assert last.startswith('stage 2 of 4, own, step 4/10  here')
  assert ' left, all trainings done in about ' in last
  assert work._place_of('base') == ('stage 1 of 4, base', 40)
  assert read_json(work.root / PLAN) == {'stages': [*work.planned]}


def test_a_failure_is_a_row_that_says_why_while_the_rest_continues(work):
  def figures(key, is_broken=True):
    if key['k'] == 2 and is_broken:
      raise fd.UserError('no space\nleft')
    if key['k'] == 3 and is_broken:
      raise ZeroDivisionError('by nothing')
    return {'tokens': 1.0}

  keys = keys_of(1, 2, 3, 4)
  assert [row.get('error') for row in work.fill(keys, figures)] == [
    None, 'no space left', 'ZeroDivisionError: by nothing', None,
  ]  # fmt: skip
  assert work.failed == ['k=2', 'k=3']
  assert 'Traceback' in (work.root / 'failures' / 'k=3.log').read_text()
  again = Workdir(work.root).fill(keys, lambda key: figures(key, is_broken=False))
  assert [row.get('error') for row in again] == [None] * 4


def test_what_is_yielded_before_a_failure_stays(work):
  def figures(missing):
    yield {'tokens': 1}
    raise MemoryError('too large')

  lines = work.fill([keys_of(1, 2, 3)], figures)
  assert [row.get('error') for row in lines] == [None, *['MemoryError: too large'] * 2]


def test_the_budget_leaves_the_rest_out(work, ticks):
  clock = ticks()

  def figures(missing):
    for key in missing:
      clock.now += 0.05
      yield {'tokens': key['k']}

  with budget(0.04):
    assert [row['k'] for row in work.fill([keys_of(1, 2), keys_of(3)], figures)] == [1]
  assert not work.is_complete and not work.failed
  with budget(0.0):  # what is there is opened
    assert len(work.fill([keys_of(1)], figures)) == 1


def test_stages_of_several_keys_and_failures_that_are_not_tried_again(work):
  tries = []

  def text(folder):
    tries.append(folder)
    raise ValueError('no space')

  def model(key):
    if key['regime'] == 'distil':
      work.stage('distilled', text)
    return work.stage(f'k{key["k"]}', lambda folder, k: None, k=key['k'])

  keys = [{'k': k, 'regime': regime} for k in (1, 2) for regime in ('regular', 'distil')]
  first, broken, other, broken_too = work.each(keys, model)
  assert first.is_dir() and other.is_dir() and broken is broken_too is None
  assert len(tries) == 1 and work.failed == ['k=1-regime=distil', 'k=2-regime=distil']
  errors = [row['error'] for row in work.failures(keys)]
  assert errors == ['ValueError: no space', 'distilled: ValueError: no space']
  with budget(0.0):  # those that are made can be opened, in whatever order
    assert work.each([{'k': 9, 'regime': 'regular'}, keys[0]], model) == [None, first]
  assert not work.is_complete


def test_keys_of_other_processes_come_last(work, monkeypatch):
  monkeypatch.setattr(stage, 'POLL_SECONDS', 0.0)
  order, name = [], stage.digest({'keys': keys_of(1)})
  other = lock(work.root / 'locks' / name)
  other.__enter__()

  def figures(key):
    order.append(key['k'])
    if key['k'] == 2:
      other.__exit__(None, None, None)
    return {}

  work.fill(keys_of(1, 2), figures)
  assert order == [2, 1]
  with lock(work.root / 'locks' / stage.digest({'keys': keys_of(3)})), budget(0.0):
    assert work.fill(keys_of(3), figures) == [] and not work.is_complete


def fill_together(root, barrier):
  """Fills ten rows; the first one of each process ends when the other process has begun one too."""
  begun = []

  def figures(key):
    if not begun:
      begun.append(key)
      barrier.wait()
    return {'process': os.getpid()}

  assert len(Workdir(root).fill(keys_of(*range(10)), figures)) == 10


def test_processes_on_one_workdir_share_the_rows(tmp_path):
  spawn = multiprocessing.get_context('spawn')
  args = tmp_path, spawn.Barrier(2)
  processes = [spawn.Process(target=fill_together, args=args) for _ in range(2)]
  for process in processes:
    process.start()
  for process in processes:
    process.join()
  assert [process.exitcode for process in processes] == [0, 0]
  lines = rows.read(tmp_path / 'results.jsonl')
  assert sorted(row['k'] for row in lines) == list(range(10))
  assert len({row['process'] for row in lines}) == 2


# --- jobs


def killed_once(key, marker):
  if marker.exists():
    marker.unlink()
    os.kill(os.getpid(), signal.SIGKILL)
  if key['k'] == 13:
    raise ValueError('bad luck')
  return {'process': os.getpid()}


def write(folder, text):
  (folder / 'text').write_text(f'{text} by {os.getpid()}')


def test_with_an_engine_stages_and_rows_are_jobs(tmp_path):
  jobs = engine.by_processes(tmp_path / 'jobs', at_once=2)
  work, marker = Workdir(tmp_path, {'machine': 'here'}, jobs), tmp_path / 'kill'
  marker.touch()
  folder = work.stage('text', write, text='a')
  assert f'by {os.getpid()}' not in (folder / 'text').read_text()

  def figures(key):  # a function of a function, which submitit takes too
    return killed_once(key, marker)

  lines = work.fill(keys_of(1, 13), figures)
  assert [row.get('error') for row in lines] == [None, 'ValueError: bad luck']
  assert lines[0]['process'] != os.getpid() and lines[0]['machine'] == 'here'
  assert not marker.exists() and work.failed == ['k=13']
  with budget(0.0):
    assert work.fill(keys_of(1, 2), figures) == lines[:1] and not work.is_complete


def killed(folder):
  os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_job_that_is_killed_again_and_again_says_so(tmp_path):
  jobs = engine.by_processes(tmp_path / 'jobs', at_once=1)
  work = Workdir(tmp_path, {}, jobs)
  with pytest.raises(fd.UserError, match=r'the job of base was killed: see .*jobs'):
    work.stage('base', killed)
  assert len(list((tmp_path / 'jobs').glob('*_submitted.pkl'))) == engine.TRIES
