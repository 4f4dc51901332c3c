"""The schedules at steps worked out from T2T's formulas, and Adam by hand."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fastdec.errors import UserError
from fastdec.training.optimizer import OptimizerConfig


def test_the_defaults_are_transformer_base_v3():
  rate = OptimizerConfig(d_model=512).learning_rate
  # 2 * 512^-0.5 = 0.0883883; / sqrt(8000) = 9.88212e-4; / sqrt(32000) = half of it
  expected = {0: 0, 1: 9.88212e-4 / 8000, 4000: 4.94106e-4, 8000: 9.88212e-4, 32000: 4.94106e-4}
  for step, value in expected.items():
    np.testing.assert_allclose(rate(jnp.int32(step)), value, rtol=1e-5)


def test_noam_is_the_legacy_schedule():
  rate = OptimizerConfig(d_model=512, schedule='noam', constant=0.2).learning_rate
  # 5000 * 0.002 * 0.2 * 512^-0.5 = 0.0883883, and the step counts from 1
  expected = {0: 9.88212e-4 / 8000, 3999: 4.94106e-4, 7999: 9.88212e-4, 31999: 4.94106e-4}
  for step, value in expected.items():
    np.testing.assert_allclose(rate(jnp.int32(step)), value, rtol=1e-5)


@pytest.mark.parametrize(('schedule', 'expected'), [
  ('linear', {0: 0, 5: 1e-3, 10: 2e-3, 20: 1.5e-3, 40: 5e-4, 50: 0, 60: 0}),
  ('cosine', {0: 0, 5: 1e-3, 10: 2e-3, 20: 1.7071068e-3, 30: 1e-3, 40: 2.928932e-4, 50: 0, 60: 0}),
])  # fmt: skip
def test_a_rate_that_falls_to_zero(schedule, expected):
  rate = OptimizerConfig(
    d_model=512, schedule=schedule, constant=2e-3, warmup=10, steps=50
  ).learning_rate
  for step, value in expected.items():
    np.testing.assert_allclose(rate(jnp.int32(step)), value, rtol=1e-5, atol=1e-9)


def test_long_gradients_are_shortened_and_short_ones_are_not():
  """Adam forgets a gradient's length, so a step after a short and a long gradient tells."""

  def after(clip, gradients):
    transform = OptimizerConfig(d_model=1, constant=1.0, warmup=1, clip=clip).build()
    params = {'a': jnp.float32(0), 'b': jnp.float32(0)}
    state = transform.init(params)
    for a, b in gradients:
      updates, state = transform.update({'a': jnp.float32(a), 'b': jnp.float32(b)}, state, params)
    return updates['a']

  short, long, cut = (0.3, 0.4), (30.0, 40.0), (0.6, 0.8)  # of norm 0.5, 50 and 1
  np.testing.assert_allclose(after(1.0, [short, long]), after(0.0, [short, cut]), rtol=1e-6)
  assert after(1.0, [short, long]) != after(0.0, [short, long])


def test_two_updates_by_hand():
  config = OptimizerConfig(d_model=1, constant=1.0, warmup=1)  # rates 0, 1
  transform = config.build()
  params, gradients = jnp.float32(5), (2.0, -1.0)
  state = transform.init(params)
  for gradient in gradients:
    updates, state = transform.update(jnp.float32(gradient), state, params)
    params = optax.apply_updates(params, updates)
  m = (0.9 * 0.1 * 2 + 0.1 * -1) / (1 - 0.9**2)
  v = (0.997 * 0.003 * 4 + 0.003 * 1) / (1 - 0.997**2)
  np.testing.assert_allclose(params, 5 - m / np.sqrt(v), rtol=1e-4)


def test_kernels_learn_by_muon_and_all_else_by_adam():
  """A step by Muon is as long in one direction as in another; its gradient is 100 times as long.

  optax.contrib.muon gives all else Nesterov's momentum too.
  """
  left, right = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 4)))[0], np.eye(4)
  gradient = left @ np.diag([100.0, 10.0, 3.0, 1.0]) @ right
  gradients = {'layer': {'kernel': jnp.asarray(gradient.reshape(2, 3, 4)), 'bias': jnp.ones(6)}}
  gradients['output'] = jnp.asarray(gradient)

  def second_update(transform):
    state = transform.update(gradients, transform.init(gradients), gradients)[1]
    return transform.update(gradients, state, gradients)[0]

  config = OptimizerConfig(d_model=1, constant=1.0, warmup=1, muon=2.0)  # rates 0, 1
  muon = second_update(config.build())
  adam = second_update(optax.nadam(1.0, b1=config.b1, b2=config.b2, eps=config.epsilon))
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
  params = {'model': jnp.ones(2), 'heads': jnp.ones(3)}
  gradients = {'model': jnp.array([1.0, -2.0]), 'heads': jnp.array([0.5, 1.0, -1.0])}

  def updates(rate):
    transform = OptimizerConfig(d_model=1, constant=1.0, warmup=1, heads_rate=rate).build()
    state = transform.update(gradients, transform.init(params), params)[1]  # update 0 has rate 0
    return transform.update(gradients, state, params)[0]

  plain, faster = updates(1.0), updates(4.0)
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
