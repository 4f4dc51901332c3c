"""`python -m experiments`: the list of all experiments, and one by its name."""

import importlib
import re
import subprocess
import sys

import pytest

from experiments import EXPERIMENTS
from tests.experiments.conftest import ROOT, run


def start(*words):
  """Runs `python -m experiments words` in this process; its exit code."""
  return run('__main__', *words)


def test_it_lists_every_experiment_with_a_sentence(capfd):
  assert start() == 0
  lines = capfd.readouterr().out.splitlines()
  listed = dict(re.match(r'  (\w+) +(\S.*)', line).groups() for line in lines if line[:2] == '  ')
  assert {'table1', 'lookahead', 'sweep', 'train', 'upscale', 'drafts'} <= set(listed)
  assert listed['table1'].startswith('Table 1 of Stern et al. 2018: ')
  assert set(listed) == set(EXPERIMENTS)


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_an_experiment_of_the_table_is_there(name):
  """A paper's experiment is a page of configs/ and two names of a module; others are files."""
  _, module, page, settings = EXPERIMENTS[name]
  file = ROOT / 'experiments' / f'{name}.py'
  if not module:
    assert file.exists()
    return
  paper = importlib.import_module(f'experiments.{module}')
  assert callable(getattr(paper, settings)) and callable(getattr(paper, name))
  assert (ROOT / 'configs' / f'{page}.py').exists()
  assert not file.exists() or f"\n  run('{name}')\n" in file.read_text()


def test_a_name_that_is_not_known_is_a_sentence(capfd):
  assert start('tabel1') == 2
  assert capfd.readouterr().err == 'there is no experiment tabel1: did you mean table1?\n'
  assert start('xyz') == 2 and 'known are table1, ' in capfd.readouterr().err
  assert start('beside') == 2
  assert 'beside is no longer supported: read the table of each' in capfd.readouterr().err


def test_an_experiment_runs_by_its_name_and_by_its_old_one():
  """As far as its first mistake."""
  outcomes = []
  for words in (['experiments', 'lookahead'], ['experiments.lookahead']):
    command = [sys.executable, '-m', *words, '--workdir=w']
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    outcomes.append((ended.returncode, ended.stdout, ended.stderr))
  assert (
    outcomes[0] == outcomes[1] == (2, '', outcomes[0][2]) and 'config is missing' in outcomes[0][2]
  )
