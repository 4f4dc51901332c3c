"""Attention's weights in half precision, against the same products in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.cache.kv import LayerKV
from fastdec.models.attention import attend, attend_to_used, weights_of


# 1 / sqrt(width): a power of two, and a number that must be rounded
@pytest.mark.parametrize('width', [64, 128])
def test_a_bfloat16_weight_is_rounded_once(width):
  """Half a unit in bfloat16's last place, and float32's rounding. Queries scaled beforehand are
  wrong by ten of them at width 128: they would be rounded before the product, and the scores here
  are large."""
  q, k = 4 * np.random.default_rng(0).normal(size=(2, 1, 64, 1, width)).astype(jnp.bfloat16)
  k = k.transpose(0, 2, 3, 1)
  weights = np.asarray(jax.jit(weights_of)(q, k, np.ones((1, 1, 64), bool)))[0, 0, 0]
  assert weights.dtype == jnp.bfloat16

  scores = np.asarray(q[0, :, 0], np.float64) @ np.asarray(k[0, 0], np.float64) / np.sqrt(width)
  expected = np.exp(scores - scores.max(axis=1, keepdims=True))
  expected /= expected.sum(axis=1, keepdims=True)
  error = float(np.abs(weights.astype(np.float64) - expected).max())
  assert error < 2**-9 + 1e-4


@pytest.mark.parametrize('used', [16, 256, 257, 512, 513, 1024])
@pytest.mark.wide('256', '257', '513')
def test_slots_that_are_never_read_may_be_left_out(used):
  """A quarter of 1,024 slots, a half or all of them; those beyond hold what would show."""
  rng = np.random.default_rng(used)
  q = rng.standard_normal((1, 16, 4, 2), np.float32)
  k, v = (rng.standard_normal((1, 2, 1024, 2), np.float32) for _ in range(2))
  mask = np.broadcast_to(np.arange(1024) < used, (1, 16, 1024))
  k[:, :, used:] = v[:, :, used:] = 1e6
  kv = LayerKV.of(jnp.asarray(k), jnp.asarray(v))
  made = jax.jit(attend_to_used)(q, kv, mask, np.int32(used))
  expected = jax.jit(attend)(q, kv, mask)
  np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
