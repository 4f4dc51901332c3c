"""The race, on a clock that the candidates move: how speeds compare, and when it is decided."""

import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.protocol import Decoded
from fastdec.evaluation import wallclock
from fastdec.struct import Bound
from fastdec.tuning import race as racing
from fastdec.tuning.prompts import make_batches
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
      prompts = make_batches(HashLM(), [[2, 3 + i] for i in range(batches)], 1, None)
      one = Candidate(name, Bound(HashLM(), {}), fd.Greedy(), prompts, 10)
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


def test_a_ratio_is_of_tokens_a_second_and_its_interval_of_batches(run_race):
  greedy, fast = run_race({'greedy': 3.0, 'fast': 1.5}, batches=5, rounds=5)
  assert compare(fast, greedy) == racing.Ratio(2.0, 2.0, 2.0)
  assert greedy.tokens_per_second == pytest.approx(10 / 3)


def test_a_lead_within_noise_is_none(run_race):
  """Twice as fast on three batches of eight, slower on the others: ahead in the mean, by chance."""
  lucky = lambda batch, visit: 1.0 if batch < 3 else 2.2
  candidates = run_race({'greedy': 2.0, 'lucky': lucky}, batches=8, rounds=16)
  ratio = compare(candidates[1], candidates[0])
  assert ratio.low < 1 < ratio.value < ratio.high
  assert not is_decided(candidates)


def test_few_batches_have_an_interval_that_is_wider_by_a_machines_noise(run_race):
  greedy, close, far = run_race({'greedy': 1.05, 'close': 1.0, 'far': 0.5}, batches=9, rounds=2)
  assert compare(close, greedy).low < 1 < compare(far, greedy).low
  assert compare(far, greedy).low == pytest.approx(2.1 / racing.NOISE)


def test_a_moment_in_which_the_machine_was_busy_does_not_count(run_race):
  busy = lambda batch, visit: 100.0 if visit == 1 else 1.0
  greedy, one = run_race({'greedy': 3.0, 'busy': busy}, batches=5, rounds=15)
  assert compare(one, greedy).value == pytest.approx(3.0)


def test_each_round_begins_with_a_different_candidate_on_the_next_batch(run_race):
  order = []
  note = lambda name: lambda batch, visit: order.append((name, batch)) or 1.0
  run_race({name: note(name) for name in ('greedy', 'a', 'b')}, batches=5, rounds=2)
  assert order == [('greedy', 0), ('a', 0), ('b', 0), ('a', 1), ('b', 1), ('greedy', 1)]


@pytest.mark.parametrize('seconds, batches, rounds', [
  ({'greedy': 3.0, 'fast': 1.0}, 6, racing.LEAST),
  ({'greedy': 1.0, 'slow': 2.0}, 6, racing.LEAST),  # the plain one is ahead
  ({'greedy': 3.0, 'fast': 1.0}, 2, 2),  # of fewer batches than the least, each once
  ({'greedy': 3.0, 'a': 1.0, 'b': 1.0}, 6, 6 * racing.VISITS),  # equal ones: at the end
])  # fmt: skip
def test_it_is_decided_when_more_rounds_would_change_little(run_race, seconds, batches, rounds):
  assert not is_decided(run_race(seconds, batches, rounds - 1))
  assert is_decided(run_race(seconds, batches, rounds))
