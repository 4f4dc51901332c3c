"""Attention's weights in half precision, against the same products in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.models.attention import weights_of


# 1 / sqrt(width): a power of two, and a number that must be rounded
@pytest.mark.parametrize('width', [64, 128])
def test_a_bfloat16_weight_is_rounded_once(width):
  """Half a unit in bfloat16's last place, and float32's rounding. Queries scaled beforehand are
  wrong by ten of them at width 128: they would be rounded before the product, and the scores here
  are large."""
  q_key, k_key = jax.random.split(jax.random.key(0))
  q = (4 * jax.random.normal(q_key, (1, 64, 1, width))).astype(jnp.bfloat16)
  k = (4 * jax.random.normal(k_key, (1, 1, 64, width))).astype(jnp.bfloat16)
  weights = weights_of(q, k, jnp.ones((1, 1, 64), bool))[0, 0, 0]
  assert weights.dtype == jnp.bfloat16

  scores = np.asarray(q[0, :, 0], np.float64) @ np.asarray(k[0, 0], np.float64).T / np.sqrt(width)
  expected = np.exp(scores - scores.max(axis=1, keepdims=True))
  expected /= expected.sum(axis=1, keepdims=True)
  error = float(np.abs(np.asarray(weights, np.float64) - expected).max())
  assert error < 2**-9 + 1e-4
