"""Stages are made once, named by their inputs, continued after a kill, and made by one process at a
time."""

import contextlib
import dataclasses
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

import fastdec as fd
from fastdec.training import stage
from fastdec.training.stage import OutOfTime, budget, digest


@dataclasses.dataclass(frozen=True)
class Sizes:
  width: int = 4


@dataclasses.dataclass(frozen=True)
class OtherSizes:
  width: int = 4


class Text:
  key = 'abc'


def writing(calls):
  def make(folder, **inputs):
    calls.append(inputs)
    (folder / 'result').write_text(repr(inputs))

  return make


def test_a_stage_is_made_once_for_each_of_its_inputs(tmp_path):
  calls = []
  first, again = (stage.stage(tmp_path, 'base', writing(calls), steps=1) for _ in range(2))
  assert first == again and len(calls) == 1 and (tmp_path / 'base').resolve() == first
  other = stage.stage(tmp_path, 'base', writing(calls), steps=2)
  assert other != first and len(calls) == 2 and (tmp_path / 'base').resolve() == other
  stage.stage(tmp_path, 'base', writing(calls), steps=1)
  assert len(calls) == 2 and (tmp_path / 'base').resolve() == first  # the newest request


def test_a_folder_that_the_user_names_is_made_by_one_stage(tmp_path):
  def stopped(folder, **inputs):
    (folder / 'checkpoints').touch()
    raise OutOfTime

  def refused(folder, **inputs):
    raise fd.UserError('no such layer')

  with pytest.raises(fd.UserError, match='no such layer'):
    stage.in_place(tmp_path / 'run', refused, steps=9)
  with pytest.raises(fd.UserError, match='nowhere'):
    stage.in_place(tmp_path / 'run', refused, base=tmp_path / 'nowhere')
  assert not (tmp_path / 'run').exists()
  with pytest.raises(OutOfTime):  # what had made nothing is forgotten
    stage.in_place(tmp_path / 'run', stopped, steps=1)
  message = r'run was made with other settings \(steps\): choose another workdir'
  with pytest.raises(fd.UserError, match=message):
    stage.in_place(tmp_path / 'run', writing([]), steps=2)
  assert stage.in_place(tmp_path / 'run', writing([]), steps=1)
  assert not stage.in_place(tmp_path / 'run', refused, steps=1)
  (tmp_path / 'run' / 'settings.json').unlink()
  with pytest.raises(fd.UserError, match='run was made by an earlier version, by hand'):
    stage.in_place(tmp_path / 'run', refused, steps=1)


def test_digests_chain_through_stages(tmp_path):
  heads = []
  for steps in (1, 2):
    base = stage.stage(tmp_path, 'base', writing([]), steps=steps)
    heads.append(stage.stage(tmp_path, 'heads', writing([]), base=base, k=4))
    assert stage.stage(tmp_path, 'heads', writing([]), base=tmp_path / 'base', k=4) == heads[-1]
  assert heads[0] != heads[1]


def test_what_counts_of_an_input():
  assert digest({'a': Sizes()}) != digest({'a': OtherSizes()})
  assert digest({'a': Sizes()}) != digest({'a': Sizes(5)})
  assert digest({'a': Text()}) == digest({'a': Text()}) != digest({'a': 'abc'})
  assert digest({'a': (1, 2)}) == digest({'a': [1, 2]}) and digest({'a': 1}) != digest({'a': '1'})
  with pytest.raises(TypeError, match='object cannot be an input'):
    digest({'a': object()})


def test_a_stage_that_fails_is_not_done_and_is_gone_on_with(tmp_path):
  seen = []

  def make(folder, fails):
    seen.append((folder / 'part').exists())
    (folder / 'part').touch()
    if len(seen) == 1:
      raise OutOfTime

  with pytest.raises(OutOfTime):
    stage.stage(tmp_path, 'base', make, fails=True)
  assert not (tmp_path / 'base').exists()
  folder = stage.stage(tmp_path, 'base', make, fails=True)
  assert seen == [False, True] and (folder / 'DONE').exists()


KILLED = """
import os, pathlib, signal, sys
from fastdec.training.stage import stage

def make(folder, steps):
  (folder / 'part').touch()
  if sys.argv[2] == 'killed':
    os.kill(os.getpid(), signal.SIGKILL)
  assert (folder / 'part').exists()

stage(pathlib.Path(sys.argv[1]), 'base', make, steps=1)
"""


def test_a_killed_process_lets_go_of_its_stage(tmp_path):
  def run(word):
    root = pathlib.Path(__file__).parents[3]
    return subprocess.run([sys.executable, '-c', KILLED, str(tmp_path), word], cwd=root).returncode

  assert run('killed') == -signal.SIGKILL and not (tmp_path / 'base').exists()
  assert run('whole') == 0 and (tmp_path / 'base' / 'DONE').exists()


def test_another_process_at_a_stage_is_waited_for_within_the_budget(tmp_path, monkeypatch):
  monkeypatch.setattr(stage, 'POLL_SECONDS', 0.01)
  began, may_end, calls = threading.Event(), threading.Event(), []

  def slow(folder, steps):
    calls.append('slow')
    began.set()
    may_end.wait()

  other = threading.Thread(target=stage.stage, args=(tmp_path, 'base', slow), kwargs={'steps': 1})
  other.start()
  began.wait()
  with pytest.raises(OutOfTime), budget(0.05):
    stage.stage(tmp_path, 'base', slow, steps=1)
  may_end.set()
  assert stage.stage(tmp_path, 'base', slow, steps=1).exists() and calls == ['slow']
  other.join()


def test_no_stage_begins_without_time(tmp_path):
  calls = []
  with pytest.raises(OutOfTime), budget(0.0):
    stage.stage(tmp_path, 'base', writing(calls), steps=1)
  assert calls == []
  folder = stage.stage(tmp_path, 'base', writing(calls), steps=1)
  with budget(0.0):
    assert stage.stage(tmp_path, 'base', writing(calls), steps=1) == folder  # it is there


def test_the_first_process_decides_for_all_whether_time_is_left(monkeypatch):
  """Otherwise one process would stop while the others wait for it."""
  for is_over in (True, False):
    monkeypatch.setattr(stage, 'agreed', lambda own, is_over=is_over: is_over)
    for seconds in (0.0, 60.0):
      with budget(seconds), pytest.raises(OutOfTime) if is_over else contextlib.nullcontext():
        assert 0.0 <= stage.seconds_left() <= seconds
      with budget(seconds), pytest.raises(OutOfTime) if is_over else contextlib.nullcontext():
        stage.check_budget()


def test_the_mesh_decides_nothing():
  assert digest({'a': 1, 'mesh': object()}) == digest({'a': 1})


def test_what_cannot_be_a_workdir_is_one_sentence(tmp_path):
  (tmp_path / 'base').mkdir()
  with pytest.raises(fd.UserError, match='base was made by an earlier version'):
    stage.stage(tmp_path, 'base', writing([]), steps=1)
  (tmp_path / 'file').touch()
  for root in (tmp_path / 'file', tmp_path / 'file' / 'below'):
    with pytest.raises(fd.UserError, match='file is a file, where a folder is needed'):
      stage.stage(root, 'base', writing([]), steps=1)
