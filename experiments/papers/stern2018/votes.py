"""Table 3 of Stern et al. 2018 from votes: which of two upscaled images a rater prefers."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool

from experiments.lab.report import MISSING, Entry, Table
from experiments.papers.stern2018 import published
from fastdec.errors import UserError

RESAMPLES = 10_000
TABLE3_COLUMNS = {'exact': 'FT exact', 'distance-2': 'FT approximate'}
TABLE3_NOTES = (
  'Per cent of votes for fine tuning with this k, exact or approximate (distance 2), against Regular, exact, k = 1; in'
  " brackets the 90 % bootstrap interval; in parentheses or below, the paper's (CelebA, Mechanical Turk).",
  f'Interval: {RESAMPLES:,} resamples of votes, each taken as independent, whoever cast it.',
)


class Preference(NamedTuple):
  """Votes for method 1 in per cent, with the ends of the 90 % interval."""

  percent: float
  low: float
  high: float


def preference(votes: Bool[Array | np.ndarray, ' n'], seed: int = 0) -> Preference:
  """The percentage that prefers method 1, with its 90 % bootstrap interval (percentiles 5 and 95).

  The paper says only "90% bootstrap confidence intervals". Here the unit that is resampled is the vote: votes of one
  rater, or on one image, count as independent, so the interval is too narrow where they are alike.

  Args:
    votes: true where the vote is for method 1.
    seed: of the resampling.

  Raises:
    UserError: no votes.
  """
  votes_n = np.asarray(votes)
  if not votes_n.size:
    raise UserError('there are no votes to take a percentage of: collect at least one')
  # As many votes drawn with replacement contain a binomial number of those for method 1.
  resampled = np.random.default_rng(seed).binomial(votes_n.size, votes_n.mean(), RESAMPLES)
  low, high = np.percentile(resampled, (5, 95)) / votes_n.size
  return Preference(*(100 * float(share) for share in (votes_n.mean(), low, high)))


def table3(found: Mapping[tuple[int, str], tuple[Preference, int, int]]) -> Table:
  """The paper's Table 3 with its figures beside ours, and how many votes and raters ours rest on.

  Args:
    found: (k, rule) -> (preference, votes, raters), rule being 'exact' or 'distance-2'.
  """
  rows = []
  for k in sorted({k for k, _ in found}):
    entries = [Entry(str(k))]
    for rule in TABLE3_COLUMNS:
      ours, votes, raters = found.get((k, rule), (None, 0, 0))
      theirs = published.TABLE3.get((k, rule))
      entries.append(
        Entry(MISSING if ours is None else _interval(*ours), '' if theirs is None else f'({_interval(*theirs)})')
      )
      entries.append(Entry(MISSING if ours is None else f'{votes} / {raters}'))
    rows.append(tuple(entries))
  header = ('k', *(name for column in TABLE3_COLUMNS.values() for name in (column, 'Votes / raters')))
  return Table('Blockwise parallel decoding, Table 3', header, tuple(rows), TABLE3_NOTES)


def _interval(percent: float, low: float, high: float) -> str:
  return f'{percent:.1f} [{low:.1f}, {high:.1f}]'
