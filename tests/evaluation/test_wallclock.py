"""Timings are those of a clock."""

import contextlib
import itertools
import subprocess
import sys
import textwrap
import threading

from fastdec.evaluation import wallclock


class Clock:
  """A clock that only the timed functions move."""

  def __init__(self):
    self.now, self.calls = 0.0, []

  def spend(self, name, seconds):
    def function(*arguments):
      self.calls.append((name, *arguments))
      self.now += next(seconds)

    return function


def test_functions_take_turns_and_compiling_is_apart(monkeypatch):
  clock = Clock()
  monkeypatch.setattr(wallclock, 'now', lambda: clock.now)
  functions = {
    'slow': clock.spend('slow', iter([5.0, 5.0, 2.0, 4.0, 6.0, 6.0, 4.0, 4.0])),
    'fast': clock.spend('fast', iter([1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0])),
  }
  timings = wallclock.measure(functions, repeats=3, inputs=[(1,), (2,)])
  ahead = [('slow', 1), ('slow', 2), ('fast', 1), ('fast', 2)]
  behind = [('fast', 1), ('fast', 2), ('slow', 1), ('slow', 2)]
  assert clock.calls == [*ahead, *ahead, *behind, *ahead]  # the first compiles
  assert timings['slow'] == wallclock.Timing(seconds=(3.0, 6.0, 4.0), compile_seconds=2.0)
  assert timings['fast'] == wallclock.Timing(seconds=(1.0, 1.5, 1.0), compile_seconds=0.0)
  assert timings['slow'].median == 4.0 and timings['slow'].spread == (3.0, 6.0)
  assert timings['slow'].milliseconds == 4000.0
  assert timings['fast'].speedup_over(timings['slow']) == 4.0  # the median of 3, 4 and 4
  assert timings['fast'].speedups_over(timings['slow']) == (3.0, 4.0)


def test_a_function_takes_some_inputs_in_a_row():
  clock, inputs = Clock(), [(i,) for i in range(wallclock.TOGETHER + 1)]
  wallclock.measure(
    {name: clock.spend(name, itertools.repeat(1.0)) for name in 'ab'}, repeats=1, inputs=inputs
  )
  *some, last = inputs
  order = [('a', *some), ('b', *some), ('a', last), ('b', last)]
  once = [(name, *arguments) for name, *several in order for arguments in several]
  assert clock.calls == once + once  # the first compiles


def test_each_round_begins_with_a_different_function():
  clock = Clock()
  wallclock.measure({name: clock.spend(name, itertools.repeat(1.0)) for name in 'abc'}, repeats=4)
  order = ''.join(name for (name,) in clock.calls)
  assert order == 'abc' + 'abc' + 'bca' + 'cab' + 'abc'  # the first compiles


def test_rests_are_not_timed(monkeypatch):
  clock, rested = Clock(), []
  monkeypatch.setattr(wallclock, 'now', lambda: clock.now)

  def sleep(seconds):
    rested.append(seconds)
    clock.now += seconds

  monkeypatch.setattr(wallclock.time, 'sleep', sleep)
  functions = {name: clock.spend(name, itertools.repeat(1.0)) for name in 'ab'}
  timings = wallclock.measure(functions, repeats=2, rests={'a': 9.0})
  assert timings['a'].seconds == timings['b'].seconds == (1.0, 1.0) and rested == [9.0, 9.0, 9.0]


def test_only_rounds_that_count_wait_for_other_processes(monkeypatch):
  """Another process may take times while this one compiles."""
  machine = []

  @contextlib.contextmanager
  def alone():
    machine.append('alone')
    yield
    machine.append('with others')

  monkeypatch.setattr(wallclock, 'alone', alone)
  wallclock.measure({'a': lambda: machine.append('a')}, repeats=2)
  assert machine == ['a', 'alone', 'a', 'a', 'with others']


def test_two_processes_do_not_take_times_at_once(monkeypatch, capsys):
  """The other process has begun when this one asks, and ends when this one says that it waits."""
  script = """
    from fastdec.evaluation.wallclock import measure
    def timed():
      print('begun', flush=True)
      input()
    measure({'a': timed}, repeats=1)
  """
  monkeypatch.setattr(wallclock, 'SILENT', 0.1)
  command, pipes = [sys.executable, '-c', textwrap.dedent(script)], {'stdin': subprocess.PIPE}
  has_ended, entered = threading.Event(), []

  def take_times():
    with wallclock.alone():
      entered.append(has_ended.is_set())

  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **pipes) as other:
    assert other.stdout.readline() == 'begun\n'  # by a round that compiles
    print(file=other.stdin, flush=True)
    assert other.stdout.readline() == 'begun\n'
    waiting = threading.Thread(target=take_times)
    waiting.start()
    said = ''
    while not said and waiting.is_alive():
      said += capsys.readouterr().err
    has_ended.set()
    print(file=other.stdin, flush=True)
    waiting.join()
  assert said.startswith('Waiting until another process has taken its times (')
  assert entered == [True]


def test_where_no_lock_can_be_made_times_are_taken_without(monkeypatch, tmp_path, capsys):
  (tmp_path / 'file').touch()
  monkeypatch.setattr(wallclock.tempfile, 'gettempdir', lambda: str(tmp_path / 'file'))
  assert wallclock.measure({'a': lambda: None}, repeats=1)['a'].seconds
  assert capsys.readouterr().err == ''
