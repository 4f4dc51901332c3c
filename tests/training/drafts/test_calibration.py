"""Temperatures that make a draft's confidences true, one guess after another."""

import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.training.drafts.calibration import GRID, fit_temperatures, pick_temperatures
from tests.training.drafts.small import MODELS, batch_of, bound, network


def test_each_temperature_is_fitted_after_those_before():
  """Guesses of two words whose logits x are right as often as x / 2, then x / 0.5, says; the third
  is never there."""
  rng, true = np.random.default_rng(0), (2.0, 0.5)
  x = np.abs(rng.normal(size=(3, 40_000))) * 2
  odds = lambda x, warmth: 1 / (1 + np.exp(-x / warmth))
  is_right = np.stack(
    [rng.random(40_000) < odds(x[i], true[i]) for i in range(2)] + [np.zeros(40_000, bool)]
  )
  is_real = np.ones((3, 40_000), bool)
  is_real[2] = False
  warmth = pick_temperatures(np.stack([odds(x, warmth) for warmth in GRID]), is_right, is_real)
  np.testing.assert_allclose(warmth, [*true, 1.0], rtol=0.1)


def test_places_without_a_token_to_guess_do_not_count():
  confidence = np.stack([np.full((1, 4), 1 / (1 + np.exp(-1 / warmth))) for warmth in GRID])
  is_right, is_real = np.array([[True, True, False, False]]), np.array([[True, True, False, False]])
  # Always right: as sure as can be. Right half of the time: the least sure.
  assert pick_temperatures(confidence, is_right, is_real) == GRID[0]
  assert pick_temperatures(confidence, is_right, np.ones((1, 4), bool)) == GRID[-1]


@pytest.mark.parametrize(
  ('kind', 'settings'), [('eagle', {'words': 7}), ('block', {'candidates': 3})]
)
@pytest.mark.wide('block-settings1')
def test_a_draft_has_a_temperature_for_each_guess(kind, settings):
  target, draft = bound(MODELS['lm']), bound(network(kind, 'lm', **settings), 3)
  warmth = fit_temperatures(draft, target, [batch_of('lm'), batch_of('lm', 1)], passes=3)
  assert warmth.shape == (3,) and np.isin(warmth, GRID).all()
  with pytest.raises(UserError, match='calibrated on held-out text, and there is none'):
    fit_temperatures(draft, target, [], passes=3)
