"""What more training would bring to a draft."""

from collections.abc import Sequence

import numpy as np

LEAST_POINTS = 5  # of a curve that is fitted
POWERS = np.geomspace(0.02, 4, 100)  # c of its fit


def forecast(steps: Sequence[int], values: Sequence[float], at: int) -> tuple[float, float] | None:
  """Fits values = a - b steps^-c, and returns the value at a later step, and its standard error.

  The error is the jackknife's: the fit is made again without each point. None: there are too few
  points.
  """
  x, y = np.asarray(steps, float), np.asarray(values, float)
  if len(x) < LEAST_POINTS:
    return None

  def value(chosen: np.ndarray) -> float:
    """Returns the later value by the power with the least squares of these points."""
    best, least = 0.0, np.inf
    for power in POWERS:
      terms = np.stack([np.ones(len(chosen)), -((x[chosen] / x[0]) ** -power)], axis=1)
      fitted, *_ = np.linalg.lstsq(terms, y[chosen])
      squares = float(((terms @ fitted - y[chosen]) ** 2).sum())
      if squares < least:
        best, least = float(fitted @ [1, -((at / x[0]) ** -power)]), squares
    return best

  everyone = np.arange(len(x))
  without = np.array([value(np.delete(everyone, i)) for i in everyone])
  return value(everyone), float(np.sqrt((len(x) - 1) * without.var()))
