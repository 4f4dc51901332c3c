"""Sweeps: products, engines, killed jobs, one table; on a toy paper that trains nothing."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import pytest
import submitit

from experiments.lab import rows
from experiments.lab.engine import Engine
from tests.experiments.conftest import ROOT

PAGE = """
import dataclasses, functools, os, signal, time
from experiments.lab.config import config_of
from experiments.lab.cli import Paper

@dataclasses.dataclass(frozen=True)
class Toy:
  ks: tuple[int, ...] = (2,)
  rules: tuple[str, ...] = ('exact',)
  rate: float = 1.0
  limit: int | None = 2
  shared: bool = False
  suffix: str = ''

def train(folder, rate):
  with open(folder.parent / 'trained', 'a') as log:
    log.write(f'{rate}\\n')

def figures(c, root, key):
  if key['k'] == 4 and (root / 'kill').exists():
    (root / 'kill').unlink()
    os.kill(os.getpid(), signal.SIGKILL)
  if key['k'] == 13:
    raise ValueError('bad luck')
  if key['k'] == 99:
    (root / 'pid').write_text(str(os.getpid()))
    time.sleep(600)
  if key['k'] == 5:
    (root / f'seen-{c.rate}').write_text((root / 'sweep.md').read_text())
  return {'tokens': key['k'] * c.rate, 'process': os.getpid()}

def plans(c):
  return [{'k': k, 'rule': rule} for k in c.ks for rule in c.rules if (k, rule) != (2, 'top-8')]

def make(c, work):
  base = work.stage('base', train, rate=c.rate)
  settings = {'limit': c.limit, 'shared': c.shared, 'suffix': c.suffix}
  keys = [{**plan, **settings, 'models': base.name} for plan in plans(c)]
  work.fill(keys, functools.partial(figures, c, work.root))

PAPER = Paper(Toy, make, {'k': 'ks', 'rule': 'rules'}, (('Tokens', 'tokens', '.2f'),), plans=plans)

def get_config(arg=''):
  return config_of(Toy())
"""


@pytest.fixture
def sweep(tmp_path, launch):
  """sweep('k=2,4', '--engine=local'): a sweep of the toy, on a folder that stays."""
  (tmp_path / 'page.py').write_text(PAGE)
  (tmp_path / 'run').mkdir()

  def sweep(*words):
    flags = [word if word.startswith('--') else f'--sweep={word}' for word in words]
    return launch('sweep', f'--config={tmp_path}/page.py', f'--workdir={tmp_path}/run', *flags)

  return sweep


def measured(tmp_path):
  lines = rows.read(tmp_path / 'run' / 'results.jsonl')
  return [(row['k'], row['rule'], row.get('tokens')) for row in lines]


def test_a_sweep_is_a_product_and_one_table(sweep, tmp_path):
  ended = sweep('k=2,4', 'rule=exact,top-2', 'rate=1,2')
  assert ended.code == 0, ended
  assert sorted(measured(tmp_path)) == sorted(
    (k, rule, k * rate) for k in (2, 4) for rule in ('exact', 'top-2') for rate in (1.0, 2.0)
  )
  assert (tmp_path / 'run' / 'trained').read_text() == '1.0\n2.0\n'
  table = (tmp_path / 'run' / 'sweep.md').read_text().splitlines()
  assert table[2].startswith('| k | rule | rate | Tokens |') and len(table) >= 4 + 8
  assert '| 4 | top-2 | 2.0 | 8.00 |' in table
  assert (tmp_path / 'run' / 'sweep.png').stat().st_size > 10_000
  before = (tmp_path / 'run' / 'results.jsonl').read_bytes()
  assert sweep('k=2,4', 'rule=exact,top-2', 'rate=1,2').code == 0
  assert (tmp_path / 'run' / 'results.jsonl').read_bytes() == before


def test_the_table_has_the_rows_so_far_while_others_are_measured(sweep, tmp_path):
  """The row of 5 reads the table before it has one itself."""
  ended = sweep('k=2,4,5', 'rate=1,2')
  assert ended.code == 0, ended
  seen = [(tmp_path / 'run' / name).read_text() for name in ('seen-1.0', 'seen-2.0')]
  assert [text.count('\n| ') - 2 for text in seen] == [2, 5]
  assert all(text.endswith('\nNot finished: other rows are measured.\n') for text in seen)
  table = (tmp_path / 'run' / 'sweep.md').read_text()
  assert table.count('\n| ') - 2 == 6 and 'Not finished' not in table


def test_a_list_of_the_config_multiplies_rows_and_is_named(sweep, tmp_path):
  words = ["--config.rules=('exact', 'top-2')", 'k=2,4']
  ended = sweep(*words)
  said = 'the config decides: rule=exact,top-2 (--sweep=rule=exact measures only that)'
  assert ended.code == 0 and said in ended.out, ended
  assert len(measured(tmp_path)) == 4
  assert 'the config decides' not in sweep(*words, 'rule=exact').out


def test_a_swept_list_replaces_the_one_of_the_command_line(sweep, tmp_path):
  assert sweep('--config.rules=exact', '--config.ks=8', 'rule=exact,top-2', 'k=2,4').code == 0
  lines = rows.read(tmp_path / 'run' / 'results.jsonl')
  assert [(row['k'], row['rule']) for row in lines] == [
    (k, rule) for k in (2, 4) for rule in ('exact', 'top-2')
  ]
  config = "page.py --config.rules=('exact', 'top-2') --config.ks=(2, 4)"
  assert {row['config'] for row in lines} == {config}


@pytest.mark.parametrize('word, values', [
  ('limit=3,None,1', [3, None, 1]), ('shared=true,0', [True, False]), ('suffix=,.gz', ['', '.gz']),
  ('suffix=', ['']),
])  # fmt: skip
def test_every_value_of_a_setting_is_a_row(sweep, tmp_path, word, values):
  ended = sweep(word)
  assert ended.code == 0, ended
  name = word.partition('=')[0]
  lines = rows.read(tmp_path / 'run' / 'results.jsonl')
  assert [row[name] for row in lines] == values
  assert f' --config.{name}={values[-1]}' in lines[-1]['config']
  table = (tmp_path / 'run' / 'sweep.md').read_text()
  assert all(f'| exact | {value} | 2.00 |' in table for value in values)


def test_a_product_that_the_page_has_not_is_named_before_anything_is_measured(sweep, tmp_path):
  ended = sweep('k=2,4', 'rule=exact,top-8', 'rate=1,2')
  said = 'No row has k=2, rule=top-8: sweep values that it has, or leave these out\n'
  assert ended.code == 0 and ended.out.count('No row') == 1, ended
  assert ended.out.index(said) < ended.out.index('Tokens')


@pytest.mark.slow
def test_jobs_that_are_killed_start_again_and_those_that_fail_say_why(sweep, tmp_path):
  (tmp_path / 'run' / 'kill').touch()
  ended = sweep('k=4,13', '--engine=processes', '--jobs=2')
  assert ended.code == 1 and '1 of the rows failed' in ended.out, ended
  assert not (tmp_path / 'run' / 'kill').exists()
  assert sorted(measured(tmp_path)) == [(4, 'exact', 4.0), (13, 'exact', None)]
  assert (tmp_path / 'run' / 'trained').read_text() == '1.0\n'
  processes = [row.get('process') for row in rows.read(tmp_path / 'run' / 'results.jsonl')]
  assert len(set(processes)) == 2 and os.getpid() not in processes
  table = (tmp_path / 'run' / 'sweep.md').read_text()
  assert 'failed: ValueError: bad luck' in table and '| 4 | exact | 4.00 |' in table


@pytest.mark.parametrize(('number', 'code', 'said'), [
  pytest.param(signal.SIGKILL, -9, '', marks=pytest.mark.slow),
  pytest.param(signal.SIGTERM, 143, '', marks=pytest.mark.slow),
  (signal.SIGINT, 130, 'Interrupted: the same command continues\n'),
])  # fmt: skip
def test_jobs_end_with_their_launcher(sweep, tmp_path, number, code, said):
  """By a signal for all its processes, as a terminal sends Ctrl-C to them."""
  words = [f'--config={tmp_path}/page.py', f'--workdir={tmp_path}/run', '--sweep=k=99']
  command = [sys.executable, '-m', 'experiments.sweep', *words, '--engine=processes', '--jobs=1']
  pipes = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.PIPE, 'text': True}
  with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as process:
    pid = tmp_path / 'run' / 'pid'
    while not (pid.exists() and pid.read_text()):
      time.sleep(0.05)
    send = os.killpg if number == signal.SIGINT else os.kill
    send(process.pid, number)
    assert (process.communicate(timeout=600)[1], process.returncode) == (said, code)
  for _ in range(12_000):
    if not is_running(int(pid.read_text())):
      break
    time.sleep(0.05)
  else:
    raise AssertionError('the job goes on')
  assert not list((tmp_path / 'run' / 'jobs').glob('*.lock'))


def is_running(pid):
  try:
    return pathlib.Path(f'/proc/{pid}/stat').read_text().split(')')[-1].split()[0] != 'Z'
  except OSError:
    return False


def test_a_sweep_that_is_killed_continues_and_makes_nothing_twice(sweep, tmp_path):
  words = [f'--config={tmp_path}/page.py', f'--workdir={tmp_path}/run', '--sweep=k=2,4']
  words += ['--engine=processes', '--jobs=1']
  command = [sys.executable, '-m', 'experiments.sweep', *words]
  results = tmp_path / 'run' / 'results.jsonl'
  with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
    while not results.exists() and process.poll() is None:
      time.sleep(0.1)
    process.kill()  # its job ends too
  assert sweep('k=2,4').code == 0
  assert sorted(measured(tmp_path)) == [(k, 'exact', float(k)) for k in (2, 4)]
  assert (tmp_path / 'run' / 'trained').read_text() == '1.0\n'


@pytest.mark.parametrize('is_killed', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_cluster_by_submitit(sweep, tmp_path, monkeypatch, is_killed):
  """Its local executor is used instead of SLURM's, and the job may be killed in the middle."""
  local = submitit.LocalExecutor
  monkeypatch.setattr(submitit, 'AutoExecutor', lambda folder, cluster: local(folder))
  if is_killed:
    (tmp_path / 'run' / 'kill').touch()
  ended = sweep('k=4', '--engine=slurm', '--slurm.gpus=0')
  assert ended.code == 0, ended
  assert measured(tmp_path) == [(4, 'exact', 4.0)]
  assert (tmp_path / 'run' / 'trained').read_text() == '1.0\n'


def test_jobs_know_nothing_of_the_allocation_that_submits_them(tmp_path, monkeypatch):
  users = {'SLURM_CONF': '/etc/slurm.conf', 'SBATCH_ACCOUNT': 'ours'}
  outer = dict.fromkeys(['SLURM_CPU_BIND', 'SLURM_NTASKS', 'SLURM_MEM_PER_CPU', 'SRUN_DEBUG'], '1')
  for name, value in (users | outer).items():
    monkeypatch.setenv(name, value)
  before, seen = dict(os.environ), {}
  result = types.SimpleNamespace(done=lambda: True, result=lambda: (7, ''))
  executor = types.SimpleNamespace(
    update_parameters=lambda name: None, submit=lambda job: seen.update(os.environ) or result
  )
  assert Engine(executor, tmp_path, None).call('seven', len) == 7
  assert {
    name: seen[name] for name in seen if name.startswith(('SLURM', 'SRUN', 'SBATCH'))
  } == users
  assert dict(os.environ) == before


@pytest.mark.parametrize('word, message', [
  ('kk=2', "the setting 'kk' is unknown, did you mean k?"),
  ('rate=fast', "--sweep=rate='fast' is not possible: give a number"),
  ('k=', 'give NAME=A,B'),
  ('k=2,2', 'each value once'), ('k=2,02', 'each value once'), ('rate=0.001,1e-3', 'value once'),
  ('limit=None,1,None', 'each value once'), ('shared=true,1', 'each value once'),
  ('rule=exact,"exact"', 'each value once'), ('suffix=,.gz,', 'each value once'),
  ('limit=none', "--sweep=limit='none' is not possible: give a whole number or None"),
  ('shared=off', 'give true or false'), ('rate=', "rate='' is not possible: give a number"),
  ('k=2,x', "--sweep=k[1]='x' is not possible"), ('k', 'give NAME=A,B'),
  ('--config.ks=()', 'config.ks=() is not possible: give one or more'),
  ('--config.rules=', 'config.rules=() is not possible: give one or more'),
  ('k=' + ','.join(map(str, range(2, 10_003))), '10,001 products (10,001 of k), and 10,000 are'),
], ids=lambda text: text[:9])  # fmt: skip
def test_what_cannot_be_swept_is_one_sentence(sweep, tmp_path, word, message):
  ended = sweep(word)
  assert ended.code == 2 and message in ended.err and ended.err.count('\n') == 1, ended
  assert list((tmp_path / 'run').iterdir()) == []


def test_a_page_without_a_paper(tmp_path, launch):
  (tmp_path / 'page.py').write_text(PAGE.replace('PAPER =', 'OTHER ='))
  words = [f'--config={tmp_path}/page.py', f'--workdir={tmp_path}/run', '--sweep=k=2']
  ended = launch('sweep', *words)
  assert ended.code == 2 and 'names no PAPER' in ended.err
