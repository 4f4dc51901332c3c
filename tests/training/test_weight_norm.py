"""Weight normalisation: the optimizer moves kernels as if the model itself were made of directions
and lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.weight_norm import normalise_weights

X = jax.random.normal(jax.random.key(0), (6, 3))
Y = jax.random.normal(jax.random.key(1), (6, 2, 2))


def loss(params):
  y = jnp.einsum('bi,efi->bef', X, params['layer']['kernel']) + params['bias']
  return ((y - Y) ** 2).sum()


def kernel_of(parts):
  v = parts['v']
  return (parts['g'] / jnp.sqrt((v**2).sum(-1)))[..., None] * v


def test_it_is_the_optimizer_of_directions_and_lengths():
  """Compared with the definition: Adam with clipping on v and g, from which the model makes its
  kernel."""
  inner = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
  kernel = jax.random.normal(jax.random.key(2), (2, 2, 3))
  params = {'layer': {'kernel': kernel}, 'bias': jnp.zeros((2, 2))}
  outer = normalise_weights(inner, lambda name: name == 'layer/kernel')
  state = outer.init(params)

  parts = {'v': kernel, 'g': jnp.sqrt((kernel**2).sum(-1)), 'bias': params['bias']}
  in_model = lambda parts: {'layer': {'kernel': kernel_of(parts)}, 'bias': parts['bias']}
  expected_state = inner.init(parts)
  plain = inner.init(params)
  without = params
  for _ in range(5):
    updates, state = outer.update(jax.grad(loss)(params), state, params)
    params = optax.apply_updates(params, updates)
    updates, expected_state = inner.update(
      jax.grad(lambda p: loss(in_model(p)))(parts), expected_state, parts
    )
    parts = optax.apply_updates(parts, updates)
    updates, plain = inner.update(jax.grad(loss)(without), plain, without)
    without = optax.apply_updates(without, updates)
  np.testing.assert_allclose(params['layer']['kernel'], kernel_of(parts), rtol=1e-5)
  np.testing.assert_allclose(params['bias'], parts['bias'], rtol=1e-5)
  # plain Adam ends elsewhere
  assert abs(params['layer']['kernel'] - without['layer']['kernel']).max() > 0.01


def test_a_config_asks_for_it_and_spares_heads():
  config = OptimizerConfig(d_model=4, constant=1.0, warmup=1, weight_norm=True, heads_rate=2.0)
  kernel = jnp.array([[3.0, 4.0]])
  params = {
    'model': {'conv': {'kernel': kernel}, 'embedding': kernel},
    'heads': {'block': {'kernel': kernel}},
  }
  optimizer = config.build()
  state = optimizer.init(params)
  (normalised,) = (part for part in state if hasattr(part, 'direction'))
  assert {name: list(g) for name, g in normalised.length.items()} == {
    'model/conv/kernel/length': [5.0]
  }
  updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
  assert jax.tree.structure(updates) == jax.tree.structure(params)
  # only Medusa's begin at zero
  frozen = config.build().init({'head_0': {'block_0': {'kernel': 0 * kernel}}})
  assert not any(part.length for part in frozen if hasattr(part, 'length'))


def test_a_row_of_zeros_stays_and_is_finite():
  params = {'kernel': jnp.array([[3.0, 4.0], [0.0, 0.0]])}
  optimizer = normalise_weights(optax.sgd(0.1), lambda name: True)
  updates, _ = optimizer.update({'kernel': jnp.ones((2, 2))}, optimizer.init(params), params)
  assert np.isfinite(updates['kernel']).all() and abs(updates['kernel'][0]).min() > 0
  np.testing.assert_array_equal(updates['kernel'][1], 0)
