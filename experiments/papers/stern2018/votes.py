"""Table 3 of Stern et al. 2018 from votes: which of two upscaled images a rater prefers."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool

from experiments.lab.report import Column, Drawn, Table
from experiments.papers.stern2018 import published
from fastdec.errors import UserError

RESAMPLES = 10_000
TABLE3_COLUMNS = {'exact': 'FT exact', 'distance-2': 'FT approximate'}
TABLE3_NOTES = (
  'Per cent of votes for fine tuning with this k, exact or approximate (distance 2), against'
  ' Regular, exact, k = 1; in'
  " brackets the 90 % bootstrap interval; in parentheses or below, the paper's (CelebA, Mechanical"
  ' Turk).',
  f'Interval: {RESAMPLES:,} resamples of votes, each taken as independent, whoever cast it.',
)


class Preference(NamedTuple):
  """Votes for method 1 in per cent, with the ends of the 90 % interval."""

  percent: float
  low: float
  high: float


def preference(votes: Bool[Array | np.ndarray, ' n'], seed: int = 0) -> Preference:
  """The percentage that prefers method 1, with its 90 % bootstrap interval (percentiles 5 and 95).

  The paper says only "90% bootstrap confidence intervals". Here the unit that is resampled is the
  vote: votes of one rater, or on one image, count as independent, so the interval is too narrow
  where they are alike.

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


def table3(found: Mapping[tuple[int, str], tuple[Preference, int, int]]) -> Drawn:
  """The paper's Table 3 with its figures beside ours, and how many votes and raters ours rest on.

  Args:
    found: (k, rule) -> (preference, votes, raters), rule being 'exact' or 'distance-2'.
  """
  columns = [Column('k', str, names_row=True)]
  for rule, heading in TABLE3_COLUMNS.items():
    columns += _method(found, rule, heading)
  return Table('Blockwise parallel decoding, Table 3', columns, TABLE3_NOTES).of(
    sorted({k for k, _ in found})
  )


def _method(
  found: Mapping[tuple[int, str], tuple[Preference, int, int]], rule: str, heading: str
) -> list[Column]:
  """The preference for one way to accept, the paper's beside it, and what ours rests on."""

  def ours(k: int) -> tuple[Preference, int, int] | None:
    return found.get((k, rule))

  def theirs(k: int) -> str:
    figures = published.TABLE3.get((k, rule))
    return '' if figures is None else f'({_interval(*figures)})'

  return [
    Column(heading, lambda one: _interval(*one[0]), beside=theirs, cell=ours),
    Column('Votes / raters', lambda one: f'{one[1]} / {one[2]}', cell=ours),
  ]


def _interval(percent: float, low: float, high: float) -> str:
  return f'{percent:.1f} [{low:.1f}, {high:.1f}]'
