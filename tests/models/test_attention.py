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
  q = rng.standard_normal((1, 129, 4, 2), np.float32)
  k, v = (rng.standard_normal((1, 2, 1024, 2), np.float32) for _ in range(2))
  mask = np.broadcast_to(np.arange(1024) < used, (1, 129, 1024))
  k[:, :, used:] = v[:, :, used:] = 1e6
  kv = LayerKV.of(jnp.asarray(k), jnp.asarray(v))
  made = jax.jit(attend_to_used)(q, kv, mask, np.int32(used))
  expected = jax.jit(attend)(q, kv, mask)
  np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('platform', ['cpu', 'cuda'])
def test_only_a_program_for_a_cpu_chooses_how_many_slots_it_reads(platform):
  """The choice is made for the platform of the program, whatever this machine has."""
  q, kv = jnp.zeros((1, 129, 4, 2)), LayerKV.empty(1, 2, 1024, 2, jnp.float32)
  traced = jax.jit(attend_to_used).trace(q, kv, jnp.ones((1, 129, 1024), bool), jnp.int32(16))
  program = traced.lower(lowering_platforms=(platform,)).as_text()
  assert ('1x2x2x256xf32' in program) == (platform == 'cpu')  # the keys of a quarter


# heads, key heads, width and slots: in each XLA's CPU backend would sum wide products otherwise
@pytest.mark.parametrize('shape', [(9, 3, 64, 1024), (8, 8, 96, 512), (8, 2, 80, 320)])
def test_a_query_has_the_same_bits_in_a_call_of_any_width(shape):
  h, g, p, s = shape
  rng = np.random.default_rng(0)
  q = rng.standard_normal((1, 120, h, p), np.float32)
  k, v = (jnp.asarray(rng.standard_normal((1, g, s, p), np.float32)) for _ in range(2))
  kv, mask, read = LayerKV.of(k, v), jnp.ones((1, 1, s), bool), jax.jit(attend)
  for n in (2, 14, 33, 64, 120):
    last = read(q[:, n - 1 : n], kv, mask)
    np.testing.assert_array_equal(read(q[:, :n], kv, mask)[:, -1:], last)
