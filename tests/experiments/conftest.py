"""Runs launchers in this process, and makes one small table that all tests here share."""

import dataclasses
import io
import os
import runpy
import sys
from pathlib import Path

import pytest
from absl import flags

from fastdec.files import lock

ROOT = Path(__file__).parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a command ended; a bug is raised instead."""

  code: int
  out: str
  err: str


@pytest.fixture
def launch(monkeypatch, capfd):
  """launch('translate', '--workdir=w', 'a sentence', stdin=b'') -> Ended"""

  def launch(name, *words, stdin=b''):
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(stdin)))
    capfd.readouterr()
    code = run(name, *words)
    return Ended(code, *capfd.readouterr())

  return launch


def run(name, *words):
  """Runs a launcher as `python -m experiments.<name> words` would, or a file; its flags are gone
  afterwards. The exit code."""
  is_file = name.endswith('.py')
  file = name if is_file else f'experiments/{name}.py'
  argv, sys.argv = sys.argv, [file, *map(str, words)]
  cores = os.sched_getaffinity(0)
  try:
    start = runpy.run_path if is_file else runpy.run_module
    start(name if is_file else f'experiments.{name}', run_name='__main__')
  except SystemExit as end:
    return end.code or 0
  finally:
    sys.argv = argv
    os.sched_setaffinity(0, cores)
    own = {flag.name for flag in flags.FLAGS.flags_by_module_dict().get(file, ())}
    for flag in own | {flag for flag in flags.FLAGS if flag.startswith('config.')}:
      delattr(flags.FLAGS, flag)
  raise AssertionError('a launcher ends its process')


def with_settings(config, settings):
  """The config with other leaves, as --config.a.b=... would set them, but of any type."""
  config = config.unlock()
  for name, value in settings.items():
    *parts, leaf = name.split('.')
    place = config
    for part in parts:
      place = place[part]
    place[leaf] = value
  return config


SETTINGS = {
  'seed': 3,  # so that its models write something
  'data.max_train': 200, 'data.vocab_size': 300, 'model.max_positions': 128, 'train.steps': 4,
  'train.every': 2, 'freeze.steps': 4, 'freeze.every': 2, 'retrain.steps': 4, 'retrain.every': 2,
  'finetune.steps': 4, 'finetune.every': 2, 'table.ks': (2,),
  'table.regimes': ('regular', 'finetune'), 'table.rules': ('exact', 'top-2'), 'table.sentences': 6,
  'table.timed': 1, 'table.repeats': 1, 'table.max_len': 16,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Table:
  """A finished table, and the words that made it."""

  folder: Path
  cache: Path

  def words(self, choices='', **changed):
    """`--config=` and all that follows, but for --workdir."""
    settings = SETTINGS | {'data.cache': self.cache} | changed
    page = f'{ROOT}/configs/wmt14.py:' + ','.join(filter(None, ('scale=smoke', choices)))
    return [f'--config={page}', *(f'--config.{name}={value}' for name, value in settings.items())]


@pytest.fixture(scope='session')
def together(tmp_path_factory, worker_id):
  """A folder of this run of the tests, shared by pytest's processes (xdist gives each a folder of
  its own in it)."""
  own = tmp_path_factory.getbasetemp()
  return own if worker_id == 'master' else own.parent


@pytest.fixture(scope='session')
def table(together):
  """Table 1 at toy size: the base, k = 2 frozen and fine-tuned, five cells. Tests that write copy
  it first."""
  table = Table(together / 'table' / 'run', together / 'table' / 'cache')
  finished = together / 'table.finished'
  with lock(together / 'table.lock'):  # one process makes it for all processes
    if not finished.exists():
      assert run('table1', *table.words(), f'--workdir={table.folder}') == 0
      finished.touch()
  return table
