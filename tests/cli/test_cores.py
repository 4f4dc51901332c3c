"""Which cores a command keeps to decode with."""

import os
import subprocess
import sys
import types

import pytest

import fastdec as fd
from fastdec.cli import cores
from tests.cli.conftest import ROOT

NARROW, WIDE = 'narrow', 'wide'  # folders
FRESH = """
import os, sys
from fastdec.cli.cores import restrict
before = len(os.listdir('/proc/self/task'))
restrict(sys.argv[1], 1)
after = len(os.listdir('/proc/self/task'))
import jax
jax.devices()
print(before, after, len(os.listdir('/proc/self/task')))
"""


@pytest.fixture
def kept(monkeypatch):
  """kept(folder, rows, ...) returns which of the cores 0 to 3 are kept if the process is on core
  2."""
  left = []
  monkeypatch.setattr(os, 'sched_getaffinity', lambda process: {0, 1, 2, 3})
  monkeypatch.setattr(os, 'sched_setaffinity', lambda process, chosen: left.append(set(chosen)))
  model = {
    name: types.SimpleNamespace(model=types.SimpleNamespace(d_model=d))
    for name, d in ((NARROW, 256), (WIDE, 512))
  }
  monkeypatch.setattr(cores, 'open_folder', lambda folder: model[folder])
  stat = ' '.join(['1 (a name)', *['0'] * 36, '2'])  # proc(5): the core is field 39
  monkeypatch.setattr(cores, 'Path', lambda name: types.SimpleNamespace(read_text=lambda: stat))
  monkeypatch.setattr(cores, '_has_accelerator', lambda: False)

  def kept(*args):
    cores.restrict(*args)
    return left.pop()

  return kept


def test_one_text_by_a_narrow_model_keeps_the_core_it_is_on(kept):
  assert kept(NARROW, 1) == {2}


@pytest.mark.parametrize(('model', 'rows'), [(WIDE, 1), (NARROW, 8)])
def test_wide_models_and_batches_keep_all(kept, model, rows):
  assert kept(model, rows) == {0, 1, 2, 3}


def test_an_accelerators_host_keeps_all(kept, monkeypatch):
  monkeypatch.setattr(cores, '_has_accelerator', lambda: True)
  assert kept(NARROW, 1) == {0, 1, 2, 3}


def test_a_number_of_cores_is_kept(kept):
  assert kept(WIDE, 8, 1) == {2} and kept(NARROW, 1, 3) == {0, 1, 2}


def test_more_cores_than_there_are_are_refused(kept):
  with pytest.raises(fd.UserError, match='--cores=5 is not possible: this process may use 4'):
    kept(WIDE, 1, 5)


def test_the_core_that_this_process_runs_on_is_kept(monkeypatch):
  allowed, set_affinity, left = os.sched_getaffinity(0), os.sched_setaffinity, []
  set_affinity(0, {max(allowed)})
  try:
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: allowed)
    monkeypatch.setattr(os, 'sched_setaffinity', lambda process, chosen: left.append(chosen))
    cores.restrict(NARROW, 1, 1)
  finally:
    set_affinity(0, allowed)
  assert left == [[max(allowed)]]


def test_settling_comes_before_the_backend_whose_threads_are_then_made(translator):
  ended = subprocess.run(
    [sys.executable, '-c', FRESH, translator], cwd=ROOT, capture_output=True, text=True, check=True
  )
  before, after, with_backend = map(int, ended.stdout.split())
  assert before == after < with_backend
