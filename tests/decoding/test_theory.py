"""The formulas of speculative decoding, against the paper's tables and against their
definitions."""

import numpy as np
import pytest

import fastdec as fd

# Leviathan et al. 2022, Table 1 (c = 0): alpha, gamma, operations, speed-up.
TABLE_1 = [
  (0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44), (0.8, 5, 1.63, 3.69),
  (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86),
]  # fmt: skip
# Table 4, in the paper's order: gamma, alpha, c, the speed-up they expect.
TABLE_4 = [
  (7, 0.75, 0.02, 3.2), (7, 0.80, 0.04, 3.3), (7, 0.82, 0.11, 2.5), (7, 0.62, 0.02, 2.3),
  (5, 0.68, 0.04, 2.4), (3, 0.71, 0.11, 2.0), (5, 0.65, 0.02, 2.4), (5, 0.73, 0.04, 2.6),
  (3, 0.74, 0.11, 2.0), (5, 0.53, 0.02, 1.9), (3, 0.55, 0.04, 1.8), (3, 0.56, 0.11, 1.6),
]  # fmt: skip


@pytest.mark.parametrize(('alpha', 'gamma', 'operations', 'speedup'), TABLE_1)
def test_the_values_of_table_1(alpha, gamma, operations, speedup):
  assert fd.theory.operations(alpha, gamma, 0) == pytest.approx(operations, abs=0.0051)
  assert fd.theory.speedup(alpha, gamma, 0) == pytest.approx(speedup, abs=0.0051)
  assert fd.theory.expected_tokens(alpha, gamma) == fd.theory.speedup(alpha, gamma, 0)


@pytest.mark.parametrize(('gamma', 'alpha', 'c', 'speedup'), TABLE_4)
def test_the_expected_speed_ups_of_table_4(gamma, alpha, c, speedup):
  """Within the rounding of alpha and c, which are printed with two digits."""
  least = fd.theory.speedup(alpha - 0.005, gamma, c + 0.005)
  most = fd.theory.speedup(alpha + 0.005, gamma, c - 0.005)
  assert least - 0.051 <= speedup <= most + 0.051


def test_limits():
  assert fd.theory.expected_tokens(1, 5) == 6 and fd.theory.expected_tokens(
    1 - 1e-12, 5
  ) == pytest.approx(6)
  assert fd.theory.speedup(1, 5, 0.1) == pytest.approx(6 / 1.5)
  assert fd.theory.operations(1, 5, 0.1) == pytest.approx(6.5 / 6)
  assert fd.theory.expected_tokens(0, 5) == 1 and fd.theory.expected_tokens(0.3, 0) == 1


@pytest.mark.parametrize('alpha', [0.0, 0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize('c', [0.01, 0.05, 0.2, 0.9])
def test_best_gamma_is_the_argmax(alpha, c):
  best = fd.theory.best_gamma(alpha, c)
  assert best == np.argmax([fd.theory.speedup(alpha, gamma, c) for gamma in range(200)])
  assert (best > 0) == (alpha > c)
  if alpha > c:  # corollary 3.9
    assert fd.theory.speedup(alpha, best, c) >= (1 + alpha) / (1 + c) - 1e-12


@pytest.mark.parametrize(('make', 'words'), [
  (lambda: fd.theory.expected_tokens(1.1, 3), 'alpha=1.1 is not a probability'),
  (lambda: fd.theory.expected_tokens(float('nan'), 3), 'alpha=nan'),
  (lambda: fd.theory.speedup(0.5, -1, 0), 'gamma=-1'),
  (lambda: fd.theory.speedup(0.5, 1.5, 0), 'gamma=1.5'),
  (lambda: fd.theory.speedup(0.5, float('inf'), 0), 'gamma=inf'),
  (lambda: fd.theory.speedup(0.5, float('nan'), 0), 'gamma=nan'),
  (lambda: fd.theory.operations(0.5, 1, -0.1), 'c=-0.1'),
  (lambda: fd.theory.best_gamma(0.5, 0), 'no best gamma'),
  (lambda: fd.theory.best_gamma(1, 0.5), 'no best gamma'),
])  # fmt: skip
def test_mistakes(make, words):
  with pytest.raises(fd.UserError, match=words):
    make()
