"""Votes become a percentage with an interval, and the interval is what resampling votes gives."""

import numpy as np
import pytest

from experiments.lab.report import markdown
from experiments.papers.stern2018 import published
from experiments.papers.stern2018.votes import Preference, preference, table3
from fastdec.errors import UserError


def test_the_interval_is_that_of_resampled_votes():
  votes = np.arange(200) < 110
  rng = np.random.default_rng(1)
  means = 100 * np.array([rng.choice(votes, len(votes)).mean() for _ in range(4000)])
  found = preference(votes)
  assert found.percent == pytest.approx(55)
  assert (found.low, found.high) == pytest.approx(np.percentile(means, (5, 95)), abs=0.6)


def test_more_votes_narrow_the_interval_as_their_root():
  few, many = (preference(np.arange(n) % 2 == 0) for n in (400, 40_000))
  assert (few.high - few.low) / (many.high - many.low) == pytest.approx(10, rel=0.1)
  assert many.high - many.percent == pytest.approx(100 * 1.645 * 0.5 / 200, rel=0.05)


def test_a_seed_decides_the_interval():
  votes = np.arange(10_001) % 3 == 0
  assert preference(votes, seed=3) == preference(votes, seed=3) != preference(votes, seed=4)


def test_one_opinion_has_no_spread():
  assert preference(np.ones(7, bool)) == Preference(100, 100, 100)
  assert preference(np.zeros(1, bool)) == Preference(0, 0, 0)


def test_no_votes_are_refused():
  with pytest.raises(UserError, match='no votes'):
    preference(np.zeros(0, bool))


def test_table_3_has_the_papers_beside_ours_and_what_ours_rest_on():
  found = {
    (10, 'distance-2'): (Preference(51.23, 40.0, 62.0), 123, 4),
    (2, 'exact'): (Preference(60.0, 50.0, 70.0), 7, 1),
    (3, 'exact'): (Preference(50.0, 0.0, 100.0), 2, 1),
  }
  lines = markdown(table3(found)).splitlines()
  assert lines[2] == '| k | FT exact | Votes / raters | FT approximate | Votes / raters |'
  assert lines[4:7] == [
    '| 2 | 60.0 [50.0, 70.0] (52.8 [50.8, 54.9]) | 7 / 1 | – (50.0 [48.4, 51.5]) | – |',
    '| 3 | 50.0 [0.0, 100.0] | 2 / 1 | – | – |',
    '| 10 | – (54.5 [53.1, 56.0]) | – | 51.2 [40.0, 62.0] (50.3 [48.9, 51.8]) | 123 / 4 |',
  ]


def test_the_papers_table():
  assert len(published.TABLE3) == 10 and published.TABLE3[6, 'distance-2'] == (56.8, 55.4, 58.2)
  assert all(low < percent < high for percent, low, high in published.TABLE3.values())
