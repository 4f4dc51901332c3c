"""The race, on a clock that the candidates move: how speeds compare, and when it is decided."""

import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.request import Settings, prepare
from fastdec.evaluation import wallclock
from fastdec.tuning import race as racing
from fastdec.tuning.race import Candidate, compare, is_decided, run_round
from tests.decoding.fakes import HashLM


class Clock:
  """Seconds that pass only where a candidate says so."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
  clock = Clock()
  monkeypatch.setattr(wallclock, 'now', clock)
  return clock


@pytest.fixture
def run_race(clock):
  """Candidates after some rounds; each needs its seconds for a batch, or a function's of the
  batch's number and its visits so far."""

  def run_race(seconds, batches, rounds):
    def candidate(name, needed):
      prompts = [[2, 3 + i] for i in range(batches)]
      request = prepare(HashLM(), {}, prompts, fd.Greedy(), Settings(max_len=10))
      one = Candidate(name, request, np.arange(batches)[:, None])
      visits = iter(range(10**6))

      def decode(number):
        clock.now += needed(number, next(visits)) if callable(needed) else needed
        row = np.full((1, 10), 3, np.int32)
        one.texts[number] = Decoded(
          row, np.array([10]), row, np.array([9]), np.array([0]), np.array([True])
        )

      one.decode = decode
      return one

    candidates = [candidate(*pair) for pair in seconds.items()]
    for number in range(rounds):
      run_round(candidates, number)
    return candidates

  return run_race


def test_a_ratio_is_of_tokens_a_second_round_by_round(run_race):
  greedy, fast = run_race({'greedy': 3.0, 'fast': 1.5}, batches=5, rounds=5)
  assert compare(fast, greedy) == racing.Ratio(2.0, 2.0, 2.0)
  assert greedy.speeds == [pytest.approx(10 / 3)] * 5


def test_a_lead_within_noise_is_none(run_race):
  """Twice as fast on four batches of seven, slower on the others: ahead by chance."""
  lucky = lambda batch, visit: 1.0 if batch < 4 else 2.2
  candidates = run_race({'greedy': 2.0, 'lucky': lucky}, batches=7, rounds=7)
  ratio = compare(candidates[1], candidates[0])
  assert ratio.low < 1 < ratio.value
  assert not is_decided(candidates)


def test_a_moment_in_which_the_machine_was_busy_does_not_count(run_race):
  busy = lambda batch, visit: 100.0 if visit == 1 else 1.0
  greedy, one = run_race({'greedy': 3.0, 'busy': busy}, batches=5, rounds=15)
  assert compare(one, greedy).value == pytest.approx(3.0)


def test_each_round_begins_with_a_different_candidate_on_the_next_batch(run_race):
  order = []
  note = lambda name: lambda batch, visit: order.append((name, batch)) or 1.0
  run_race({name: note(name) for name in ('greedy', 'a', 'b')}, batches=5, rounds=2)
  assert order == [('greedy', 0), ('a', 0), ('b', 0), ('a', 1), ('b', 1), ('greedy', 1)]


@pytest.mark.parametrize('seconds, decided', [
  ({'greedy': 3.0, 'fast': 1.0}, True),
  ({'greedy': 1.0, 'slow': 2.0}, True),  # the plain one is ahead
  ({'greedy': 3.0, 'a': 1.0, 'b': 1.0}, False),
])  # fmt: skip
def test_it_is_decided_when_one_is_ahead_of_all_others(run_race, seconds, decided):
  assert is_decided(run_race(seconds, batches=6, rounds=racing.LEAST)) == decided
