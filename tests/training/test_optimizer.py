"""The schedules at steps worked out from T2T's formulas, and Adam by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fastdec.errors import UserError
from fastdec.training.optimizer import OptimizerConfig


def check_rates(config, expected, **tolerance):
  rates = jax.jit(jax.vmap(config.learning_rate))(np.array(list(expected), np.int32))
  np.testing.assert_allclose(rates, list(expected.values()), rtol=1e-5, **tolerance)


def second_update(transform, *gradients):
  """The update that the last of some gradients makes; the first has rate 0."""

  @jax.jit
  def update(gradients):
    state = transform.init(gradients[0])
    for gradient in gradients:
      updates, state = transform.update(gradient, state, gradients[0])
    return updates

  return jax.device_get(update(gradients if len(gradients) > 1 else gradients * 2))


def test_the_defaults_are_transformer_base_v3():
  # 2 * 512^-0.5 = 0.0883883; / sqrt(8000) = 9.88212e-4; / sqrt(32000) = half of it
  expected = {0: 0, 1: 9.88212e-4 / 8000, 4000: 4.94106e-4, 8000: 9.88212e-4, 32000: 4.94106e-4}
  check_rates(OptimizerConfig(d_model=512), expected)


def test_noam_is_the_legacy_schedule():
  # 5000 * 0.002 * 0.2 * 512^-0.5 = 0.0883883, and the step counts from 1
  expected = {0: 9.88212e-4 / 8000, 3999: 4.94106e-4, 7999: 9.88212e-4, 31999: 4.94106e-4}
  check_rates(OptimizerConfig(d_model=512, schedule='noam', constant=0.2), expected)


@pytest.mark.parametrize(('schedule', 'expected'), [
  ('linear', {0: 0, 5: 1e-3, 10: 2e-3, 20: 1.5e-3, 40: 5e-4, 50: 0, 60: 0}),
  ('cosine', {0: 0, 5: 1e-3, 10: 2e-3, 20: 1.7071068e-3, 30: 1e-3, 40: 2.928932e-4, 50: 0, 60: 0}),
])  # fmt: skip
def test_a_rate_that_falls_to_zero(schedule, expected):
  config = OptimizerConfig(d_model=512, schedule=schedule, constant=2e-3, warmup=10, steps=50)
  check_rates(config, expected, atol=1e-9)


def test_long_gradients_are_shortened_and_short_ones_are_not():
  """Adam forgets a gradient's length, so a step after a short and a long gradient tells."""

  def after(clip, gradients):
    transform = OptimizerConfig(d_model=1, constant=1.0, warmup=1, clip=clip).build()
    trees = ({'a': np.float32(a), 'b': np.float32(b)} for a, b in gradients)
    return second_update(transform, *trees)['a']

  short, long, cut = (0.3, 0.4), (30.0, 40.0), (0.6, 0.8)  # of norm 0.5, 50 and 1
  np.testing.assert_allclose(after(1.0, [short, long]), after(0.0, [short, cut]), rtol=1e-6)
  assert after(1.0, [short, long]) != after(0.0, [short, long])


def test_two_updates_by_hand():
  config = OptimizerConfig(d_model=1, constant=1.0, warmup=1)  # rates 0, 1
  step = second_update(config.build(), np.float32(2), np.float32(-1))
  m = (0.9 * 0.1 * 2 + 0.1 * -1) / (1 - 0.9**2)
  v = (0.997 * 0.003 * 4 + 0.003 * 1) / (1 - 0.997**2)
  np.testing.assert_allclose(step, -m / np.sqrt(v), rtol=1e-4)


def test_kernels_learn_by_muon_and_all_else_by_adam():
  """A step by Muon is as long in one direction as in another; its gradient is 100 times as long.

  optax.contrib.muon gives all else Nesterov's momentum too.
  """
  left, right = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 4)))[0], np.eye(4)
  gradient = left @ np.diag([100.0, 10.0, 3.0, 1.0]) @ right
  gradients = {'layer': {'kernel': jnp.asarray(gradient.reshape(2, 3, 4)), 'bias': jnp.ones(6)}}
  gradients['output'] = jnp.asarray(gradient)

  config = OptimizerConfig(d_model=1, constant=1.0, warmup=1, muon=2.0)
  muon = second_update(config.build(), gradients)
  adam = second_update(optax.nadam(1.0, b1=config.b1, b2=config.b2, eps=config.epsilon), gradients)
  np.testing.assert_allclose(muon['output'], adam['output'], rtol=1e-4)
  np.testing.assert_allclose(muon['layer']['bias'], adam['layer']['bias'], rtol=1e-4)
  step = -np.asarray(muon['layer']['kernel']).reshape(6, 4)
  # 2 times the rate, 0.2 sqrt(6) by the longer side; five iterations bring lengths to 0.7 .. 1.3
  lengths = np.diag(left.T @ step) / (2 * 0.2 * 6**0.5)
  assert lengths.min() > 0.6
  assert lengths.max() < 1.3
  np.testing.assert_allclose(left @ np.diag(np.diag(left.T @ step)), step, atol=1e-2)


@pytest.mark.parametrize('settings', [{'muon': -1.0}, {'muon': 1.0, 'weight_norm': True}])
def test_muon_that_is_not_possible(settings):
  with pytest.raises(UserError, match=r'muon=.* is not possible: give 0 for Adam'):
    OptimizerConfig(d_model=1, **settings)


def test_heads_may_learn_faster_than_the_model_they_train_with():
  gradients = {'model': jnp.array([1.0, -2.0]), 'heads': jnp.array([0.5, 1.0, -1.0])}
  config = lambda rate: OptimizerConfig(d_model=1, constant=1.0, warmup=1, heads_rate=rate)
  plain, faster = (second_update(config(rate).build(), gradients) for rate in (1.0, 4.0))
  np.testing.assert_array_equal(faster['model'], plain['model'])
  np.testing.assert_allclose(faster['heads'], 4 * plain['heads'], rtol=1e-6)
  assert plain['heads'].all()


@pytest.mark.parametrize(('field', 'words'), [
  ({'schedule': 'step'}, 'rsqrt, noam, linear, cosine'),
  ({'schedule': 'linear', 'steps': 8000}, 'between warmup=8000 and steps=8000'),
  ({'warmup': 0}, 'at least 1'), ({'heads_rate': 0.0}, 'above 0'),
  ({'clip': -1.0}, '0 for no clipping'),
])  # fmt: skip
def test_mistakes_are_named(field, words):
  with pytest.raises(UserError, match=words):
    OptimizerConfig(d_model=512, **field)
