"""Gains of speculative decoding, by the formulas of Leviathan et al. 2022.

  alpha   the chance that a drafted token is accepted, assumed equal for all: E[sum_x min(p, q)]
          (section 2.3)
  gamma   tokens drafted for each call of the target
  c       cost of a call of the draft model, in calls of the target

The formulas assume that the target's call on gamma + 1 tokens costs as much as on one.
"""

import numpy as np

from fastdec.errors import UserError

Number = float | int | np.number


def expected_tokens(alpha: Number, gamma: Number) -> float:
  """Tokens emitted per call of the target (equation 1).

  It is (1 - alpha^(gamma + 1)) / (1 - alpha); at alpha = 1, gamma + 1.

  >>> expected_tokens(alpha=0.5, gamma=2)
  1.75

  Raises:
    UserError: unless 0 <= alpha <= 1 and gamma >= 0 is whole.
  """
  _check(alpha, gamma)
  return float(np.sum(float(alpha) ** np.arange(gamma + 1)))


def speedup(alpha: Number, gamma: Number, c: Number) -> float:
  """Speed-up over one token a call (theorem 3.8): `expected_tokens` / (gamma c + 1).

  Raises:
    UserError: as `expected_tokens`, or for c < 0.
  """
  _check(alpha, gamma, c)
  return expected_tokens(alpha, gamma) / (gamma * c + 1)


def operations(alpha: Number, gamma: Number, c: Number) -> float:
  """Arithmetic operations per token, as a ratio to those of one token a call (theorem 3.11).

  It is (gamma c + gamma + 1) / `expected_tokens`, where c is the ratio of operations, not of time.

  Raises:
    UserError: as `speedup`.
  """
  _check(alpha, gamma, c)
  return (gamma * c + gamma + 1) / expected_tokens(alpha, gamma)


def best_gamma(alpha: Number, c: Number) -> int:
  """Returns the gamma with the highest `speedup`, the lowest if several are equal; 0 if alpha <= c.

  Raises:
    UserError: as `speedup`; or longer drafts are always faster: c = 0, or alpha = 1 and c < 1.
  """
  _check(alpha, 0, c)
  if alpha > c and (c == 0 or alpha == 1):
    raise UserError(
      f'alpha={alpha} and c={c} have no best gamma, because longer drafts are always faster: give'
      ' alpha < 1 and c > 0'
    )
  gamma, tokens = 0, 1.0
  # The speed-up rises while one more draft adds more tokens than other calls would in its time.
  while alpha ** (gamma + 1) * (gamma * c + 1) > c * tokens:
    gamma += 1
    tokens += alpha**gamma
  return gamma


def _check(alpha: Number, gamma: Number, c: Number = 0.0) -> None:
  if not 0 <= alpha <= 1:
    raise UserError(f'alpha={alpha} is not a probability of acceptance: give 0 to 1')
  if not (np.isfinite(gamma) and gamma == int(gamma) and gamma >= 0):
    raise UserError(f'gamma={gamma} is not a number of drafted tokens: give 0, 1, 2, ...')
  if not 0 <= c < float('inf'):
    raise UserError(f'c={c} is not a ratio of costs: give 0 or more')
