"""The worth of a draft: tokens a call as it decodes, and what more training would bring."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fastdec.decoding.pool import decode_all
from fastdec.struct import Bound

ROWS = 8  # prompts decoded at once
LEAST_POINTS = 5  # of a curve that is fitted
POWERS = np.geomspace(0.02, 4, 100)  # c of its fit


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
    chosen = np.array(categories) == category
    if category == 'all':
      chosen = np.ones(len(categories), bool)
    worth[category] = float(tokens[chosen].sum() / max(calls[chosen].sum(), 1))
  return worth


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
