"""The gate: whoever times is alone, whoever works makes room, and nobody waits for ever."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from fastdec import gate
from fastdec.gate import Gate, OutOfTime


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
  monkeypatch.setattr(gate, 'POLL', 0.005)


@pytest.fixture
def gates(tmp_path):
  """Three processes' views of one machine; the system tells them apart, as each has opened the
  locks itself."""
  return [Gate(tmp_path / 'gate') for _ in range(3)]


class Worker(threading.Thread):
  """A process at work: a list that grows with every step, until it is told to end."""

  def __init__(self, gate, budget=None):
    super().__init__(daemon=True)
    self.gate, self.budget, self.steps, self.is_ended = gate, budget, [], False
    self.start()

  def run(self):
    with self.gate.at_work(self.budget):
      while not self.is_ended:
        self.steps.append(time.monotonic())
        time.sleep(0.001)
        self.gate.pass_by()

  def has_moved(self):
    before, until = len(self.steps), time.monotonic() + 10
    while len(self.steps) < before + 3 and time.monotonic() < until:
      time.sleep(0.002)
    return len(self.steps) >= before + 3

  def end(self):
    self.is_ended = True
    self.join(10)
    assert not self.is_alive()


def timing(gate):
  """A process that takes times once."""

  def alone():
    with gate.alone():
      pass

  thread = threading.Thread(target=alone, daemon=True)
  thread.start()
  return thread


def test_two_at_work_make_room_for_one_that_times_and_go_on_after_it(gates):
  workers = [Worker(gates[0]), Worker(gates[1])]
  assert all(worker.has_moved() for worker in workers)  # side by side
  for _ in range(3):
    with gates[2].alone():
      before = [len(worker.steps) for worker in workers]
      time.sleep(0.05)
      assert [len(worker.steps) for worker in workers] == before
    assert all(worker.has_moved() for worker in workers)
  for worker in workers:
    worker.end()


def test_who_works_can_be_alone_and_works_on(gates):
  other = Worker(gates[1])
  assert other.has_moved()
  with gates[0].at_work():
    with gates[0].alone(), gates[0].alone():
      before = len(other.steps)
      time.sleep(0.05)
      assert len(other.steps) == before
    assert other.has_moved()
    waiting = timing(gates[2])
    waiting.join(0.05)
    assert waiting.is_alive()  # this process is at work again
  waiting.join(10)
  assert not waiting.is_alive()


def test_one_at_a_time_is_alone(gates):
  inside, most = [], []

  def time_it(gate):
    for _ in range(5):
      with gate.alone():
        inside.append(gate)
        most.append(len(inside))
        time.sleep(0.002)
        inside.remove(gate)

  threads = [threading.Thread(target=time_it, args=(one,)) for one in gates]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(10)
  assert most == [1] * 15


def test_a_budget_ends_what_waits_and_the_reason_is_said_once(gates, monkeypatch, capsys):
  monkeypatch.setattr(gate, 'SILENT', 0.01)
  with gates[0].at_work():
    since = time.monotonic()
    with pytest.raises(OutOfTime), gates[1].at_work(0.1), gates[1].alone():
      pass
    assert 0.1 <= time.monotonic() - since < 5
  assert capsys.readouterr().err.splitlines() == [gate.WORKING]
  with gates[0].alone():
    since = time.monotonic()
    with gates[1].at_work(0.1):
      assert 0.1 <= time.monotonic() - since < 5  # it works on: whoever has a budget looks at it
      gates[1].pass_by()
  assert capsys.readouterr().err.splitlines() == [gate.TIMING]
  with gates[1].alone():
    pass  # nothing is left of either


def test_a_short_wait_is_silent(gates, capsys):
  worker = Worker(gates[0])
  assert worker.has_moved()
  with gates[1].alone():
    pass
  worker.end()
  assert capsys.readouterr().err == ''


def test_what_the_device_has_to_do_is_done_before_room_is_made(gates, monkeypatch):
  waited_for = []
  monkeypatch.setattr(gate.jax, 'block_until_ready', waited_for.append)
  with gates[0].at_work():
    gates[0].pass_by('nobody asks')
    assert not waited_for
    asks = timing(gates[1])
    while asks.is_alive():
      gates[0].pass_by('asked')
  assert waited_for == ['asked']


def test_the_system_lets_go_of_a_process_that_is_killed(tmp_path):
  program = textwrap.dedent(f"""
    import pathlib, time
    from fastdec.gate import Gate
    with Gate(pathlib.Path({str(tmp_path)!r})).alone():
      print('alone', flush=True)
      time.sleep(60)
  """)
  process = subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == 'alone\n'
  mine = Gate(tmp_path)
  with pytest.raises(OutOfTime), mine.at_work(0.0), mine.alone():
    pass
  process.kill()
  process.wait()
  with mine.at_work(10.0), mine.alone():
    pass


def test_without_a_place_for_locks_there_is_a_note_and_work_goes_on(tmp_path, capsys):
  (tmp_path / 'file').touch()
  nowhere = Gate(tmp_path / 'file' / 'gate')
  assert 'no lock can be made in' in capsys.readouterr().err
  with nowhere.at_work(1.0), nowhere.alone():
    nowhere.pass_by()


def test_the_locks_are_in_a_folder_of_the_user(tmp_path, monkeypatch):
  monkeypatch.setattr(gate.tempfile, 'tempdir', str(tmp_path / 'tmp'))
  for runtime, place in (
    (str(tmp_path), tmp_path),
    ('', tmp_path / 'tmp'),
    (str(tmp_path / 'no'), tmp_path / 'tmp'),
  ):
    monkeypatch.setenv('XDG_RUNTIME_DIR', runtime)
    assert gate.users_folder() == place / f'fastdec-{os.getuid()}'


@pytest.mark.skipif(not os.path.exists('/proc/locks'), reason='the system lists no locks')
def test_who_is_stopped_and_keeps_the_room_is_named(tmp_path, capsys):
  code = f"""
    import pathlib, time
    from fastdec.gate import Gate
    with Gate(pathlib.Path({str(tmp_path / 'gate')!r})).at_work():
      print('inside', flush=True)
      time.sleep(60)
  """
  with subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
  ) as worker:
    try:
      assert worker.stdout is not None
      assert worker.stdout.readline() == 'inside\n'
      worker.send_signal(signal.SIGSTOP)
      own = Gate(tmp_path / 'gate')
      with own.at_work(budget=1.5), pytest.raises(OutOfTime), own.alone():
        pass
      assert (
        f'Stopped, and keeping their place: {worker.pid}; kill -CONT {worker.pid}'
        in capsys.readouterr().err
      )
    finally:
      worker.kill()
