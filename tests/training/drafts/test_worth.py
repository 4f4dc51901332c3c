"""The forecast of a learning curve."""

import numpy as np
import pytest

from fastdec.training.drafts.worth import forecast


def test_a_curve_is_continued():
  steps = [100 * i for i in range(1, 21)]
  clean = [2.5 - 1.2 * i**-0.5 for i in range(1, 21)]
  value, error = forecast(steps, clean, 8000)
  assert value == pytest.approx(2.5 - 1.2 * 80**-0.5, abs=0.01) and error < 0.01
  noisy = np.array(clean) + np.random.default_rng(0).normal(0, 0.02, 20)
  value, error = forecast(steps, noisy.tolist(), 8000)
  assert error > 0.005 and abs(value - (2.5 - 1.2 * 80**-0.5)) < 4 * error
  assert forecast(steps[:4], clean[:4], 8000) is None
