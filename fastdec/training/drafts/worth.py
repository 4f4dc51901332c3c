"""The worth of a draft: tokens a call as it decodes, and what more training would bring."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from scipy.optimize import curve_fit

from fastdec.decoding.pool import decode_all
from fastdec.struct import Bound

ROWS = 8  # prompts decoded at once
LEAST_POINTS = 5  # of a curve that is fitted


def tokens_a_call(
  target: Bound, strategy: Any, prompts: Sequence[tuple[str, Sequence[int]]], max_new_tokens: int
) -> dict[str, float]:
  """Decodes prompts, and returns the tokens of a call, of each category and of 'all'.

  Args:
    target: the model and its parameters.
    strategy: with the draft; if it samples, by one key.
    prompts: category and ids of each; of a translator its sources.
    max_new_tokens: of each text.
  """
  categories, ids = zip(*prompts, strict=True)
  decoded = decode_all(
    *target, list(ids), strategy, rows=ROWS, max_new_tokens=max_new_tokens, key=jax.random.key(0)
  ).checked()
  tokens, calls = np.asarray(decoded.block_sizes).sum(1), np.asarray(decoded.calls)
  worth = {}
  for category in [*dict.fromkeys(categories), 'all']:
    chosen = np.array([category in (own, 'all') for own in categories])
    worth[category] = float(tokens[chosen].sum() / max(calls[chosen].sum(), 1))
  return worth


def forecast(steps: Sequence[int], values: Sequence[float], at: int) -> tuple[float, float] | None:
  """Fits values = a - b steps^-c, and returns the value at a later step, and its standard error.

  The error is the jackknife's: the fit is made again without each point. None: there are too few
  points, or no fit is found.
  """
  x, y = np.asarray(steps, float), np.asarray(values, float)
  if len(x) < LEAST_POINTS:
    return None

  def curve(s: Float[np.ndarray, ' n'], a: Any, b: Any, c: Any) -> Float[np.ndarray, ' n']:
    return a - b * (s / x[0]) ** -c

  def value(chosen: np.ndarray) -> float:
    begin = (y[chosen].max(), max(np.ptp(y[chosen]), 1e-3), 0.5)
    bounds = ([0, 0, 0.01], [np.inf, np.inf, 5])
    fitted = curve_fit(curve, x[chosen], y[chosen], p0=begin, bounds=bounds, max_nfev=2000)[0]
    return float(curve(np.array([at], float), *fitted)[0])

  everyone = np.arange(len(x))
  try:
    without = np.array([value(np.delete(everyone, i)) for i in everyone])
    error = np.sqrt((len(x) - 1) * without.var())
    return value(everyone), float(error)
  except RuntimeError:  # curve_fit finds none
    return None
