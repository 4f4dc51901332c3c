"""The race, on a clock that the candidates move: which are dropped, which wins, and when it
ends."""

import pytest

from fastdec.evaluation import wallclock
from fastdec.tuning import race as racing
from fastdec.tuning.race import Race


class Clock:
  """Seconds that pass only where a candidate says so."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now

  def entrant(self, seconds, tokens=10):
    """A candidate; seconds are of each batch, or a function of its visit's number."""
    visits = iter(range(10**6))

    def decode(batch):
      self.now += seconds(batch, next(visits)) if callable(seconds) else seconds
      return tokens

    return decode


@pytest.fixture(autouse=True)
def clock(monkeypatch):
  clock = Clock()
  monkeypatch.setattr(wallclock, 'now', clock)
  return clock


@pytest.fixture
def run_race(clock):
  """A race of candidates that need these seconds for a batch, after some rounds."""

  def run_race(seconds, batches, rounds):
    race = Race('greedy', batches)
    race.join(seconds)
    entrants = {name: clock.entrant(one) for name, one in seconds.items()}
    for _ in range(rounds):
      race.run(entrants)
    return race

  return run_race


def test_the_slower_leave_as_soon_as_may_be_and_the_plain_one_never(run_race):
  race = run_race({'greedy': 3.0, 'fast': 1.0, 'slow': 2.0}, batches=8, rounds=racing.LEAST - 1)
  assert race.running == ['greedy', 'fast', 'slow']
  race = run_race({'greedy': 3.0, 'fast': 1.0, 'slow': 2.0}, batches=8, rounds=racing.LEAST + 2)
  assert race.running == ['greedy', 'fast']
  assert (
    len(race.seconds['slow']) == racing.LEAST and len(race.seconds['greedy']) == racing.LEAST + 2
  )
  # over the rounds that both were in
  assert race.compare('slow', 'fast').value == pytest.approx(0.5)


def test_who_is_as_fast_within_noise_stays(run_race):
  """Each is faster on every other batch."""
  even, odd = (lambda batch, visit, turn=turn: 1.0 + (batch % 2 == turn) for turn in (0, 1))
  race = run_race({'greedy': 3.0, 'a': even, 'b': odd}, batches=8, rounds=16)
  assert race.running == ['greedy', 'a', 'b'] and not race.is_over


def test_the_winner_is_the_fastest_of_those_that_are_ahead_beyond_noise(run_race):
  name, why = run_race({'greedy': 3.0, 'a': 1.6, 'b': 1.5}, batches=5, rounds=5).choose_winner()
  assert (name, why) == ('b', 'b is 2.00 times as fast as greedy (2.00 to 2.00)')


def test_a_lead_within_noise_is_none(run_race):
  """Twice as fast on three batches of eight, slower on the others: ahead in the mean, and by
  chance."""
  lucky = lambda batch, visit: 1.0 if batch < 3 else 2.2
  race = run_race({'greedy': 2.0, 'lucky': lucky}, batches=8, rounds=16)
  ratio = race.compare('lucky', 'greedy')
  assert ratio.low < 1 < ratio.value < ratio.high
  assert race.choose_winner() == ('greedy', 'greedy is kept: nothing else was faster beyond noise')


@pytest.mark.parametrize('batches, rounds, reason', [
  (4, 12, 'there are 4 batches of prompts, too few to tell candidates apart, which takes 5'),
  (9, 4, 'the budget was enough for 4 batches of prompts, too few to tell candidates apart, which'
         ' takes 5'),
])  # fmt: skip
def test_few_batches_tell_nothing(run_race, batches, rounds, reason):
  assert run_race({'greedy': 3.0, 'fast': 1.0}, batches, rounds).choose_winner() == (
    'greedy',
    f'greedy is kept: {reason}',
  )


def test_a_moment_in_which_the_machine_was_busy_does_not_count(run_race):
  busy = lambda batch, visit: 100.0 if visit == 1 else 1.0
  race = run_race({'greedy': 3.0, 'fast': busy}, batches=5, rounds=15)
  assert race.seconds_per_batch('fast') == 1.0
  assert race.compare('fast', 'greedy').value == pytest.approx(3.0)


def test_each_round_begins_with_a_different_candidate(clock):
  order = []
  race = Race('greedy', 5)
  race.join(['greedy', 'a', 'b'])
  decode = clock.entrant(1.0)
  entrants = {
    name: lambda batch, name=name: order.append((name, batch)) or decode(batch)
    for name in race.running
  }
  for _ in range(2):
    race.run(entrants)
  assert order == [('greedy', 0), ('a', 0), ('b', 0), ('a', 1), ('b', 1), ('greedy', 1)]


def test_it_is_over_when_more_rounds_would_change_nothing(run_race):
  one = run_race({'greedy': 3.0, 'fast': 1.0}, batches=6, rounds=5)
  assert not one.is_over  # one batch is left
  assert run_race({'greedy': 3.0, 'fast': 1.0}, batches=6, rounds=6).is_over
  # only greedy is left
  assert run_race({'greedy': 1.0, 'a': 2.0, 'b': 3.0}, batches=6, rounds=racing.LEAST).is_over
  equal = {'greedy': 3.0, 'a': 1.0, 'b': 1.0}
  assert not run_race(equal, batches=2, rounds=racing.VISITS * 2 - 1).is_over
  assert run_race(equal, batches=2, rounds=racing.VISITS * 2).is_over


def test_who_joins_later_is_compared_over_the_rounds_that_both_were_in(clock):
  """The machine becomes half as fast when the third one joins, which is the fastest."""
  race = Race('greedy', 6)
  race.join(['greedy', 'fast'])
  slowing = lambda seconds: lambda batch, visit: seconds * (1 if visit < 7 else 2)
  entrants = {
    name: clock.entrant(slowing(seconds)) for name, seconds in (('greedy', 3.0), ('fast', 1.0))
  }
  entrants['late'] = clock.entrant(1.0)
  for number in range(14):
    if number == 7:
      race.join(['late'])
    race.run(entrants)
  assert race.compare('late', 'greedy').value == pytest.approx(6.0)
  assert race.running == ['greedy', 'late'] and len(race.seconds['fast']) == 7 + racing.LEAST
  assert race.choose_winner()[0] == 'late'
