"""Tokens a call by category, and the forecast of a learning curve."""

import numpy as np
import pytest

import fastdec as fd
from fastdec.training.drafts.worth import forecast, tokens_a_call
from tests.training.drafts.small import MODELS, bound


def test_tokens_a_call_are_those_of_decoding():
  target, prompts = bound(MODELS['lm']), [('a', [4, 5, 4]), ('b', [6]), ('a', [5, 5, 5, 5])]
  strategy = fd.PromptLookup(k=4)
  worth = tokens_a_call(target, strategy, prompts, 8)
  alone = []
  for _, ids in prompts:
    decoded = fd.decode(*target, [ids], strategy, max_new_tokens=8)
    alone.append((int(decoded.block_sizes.sum()), int(decoded.calls.sum())))
  (x, n), (y, m), (z, k) = alone
  expected = {'a': (x + z) / (n + k), 'b': y / m, 'all': (x + y + z) / (n + m + k)}
  assert worth == pytest.approx(expected)


def test_a_curve_is_continued():
  steps = [100 * i for i in range(1, 21)]
  clean = [2.5 - 1.2 * i**-0.5 for i in range(1, 21)]
  value, error = forecast(steps, clean, 8000)
  assert value == pytest.approx(2.5 - 1.2 * 80**-0.5, abs=0.01) and error < 0.01
  noisy = np.array(clean) + np.random.default_rng(0).normal(0, 0.02, 20)
  value, error = forecast(steps, noisy.tolist(), 8000)
  assert error > 0.005 and abs(value - (2.5 - 1.2 * 80**-0.5)) < 4 * error
  assert forecast(steps[:4], clean[:4], 8000) is None
