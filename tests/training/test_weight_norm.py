"""Weight normalisation: the optimizer moves kernels as if the model itself were made of directions
and lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.weight_norm import normalise_weights

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2, 2))


def loss(params):
  y = jnp.einsum('bi,efi->bef', X, params['layer']['kernel']) + params['bias']
  return ((y - Y) ** 2).sum()


def kernel_of(parts):
  v = parts['v']
  return (parts['g'] / jnp.sqrt((v**2).sum(-1)))[..., None] * v


def after_five_steps(optimizer, loss, params):
  @jax.jit
  def step(params, state):
    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state

  state = jax.jit(optimizer.init)(params)
  for _ in range(5):
    params, state = step(params, state)
  return params


def test_it_is_the_optimizer_of_directions_and_lengths():
  """Compared with the definition: Adam with clipping on v and g, from which the model makes its
  kernel."""
  inner = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
  kernel = jnp.asarray(np.random.default_rng(2).normal(size=(2, 2, 3)), jnp.float32)
  params = {'layer': {'kernel': kernel}, 'bias': jnp.zeros((2, 2))}
  outer = normalise_weights(inner, lambda name: name == 'layer/kernel')
  parts = {'v': kernel, 'g': np.sqrt((np.asarray(kernel) ** 2).sum(-1)), 'bias': params['bias']}
  in_model = lambda parts: {'layer': {'kernel': kernel_of(parts)}, 'bias': parts['bias']}
  params, parts, without = (
    after_five_steps(*of)
    for of in ((outer, loss, params), (inner, lambda p: loss(in_model(p)), parts),
               (inner, loss, params))
  )  # fmt: skip
  np.testing.assert_allclose(params['layer']['kernel'], kernel_of(parts), rtol=1e-5, atol=1e-6)
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
  state = jax.jit(optimizer.init)(params)
  (normalised,) = (part for part in state if hasattr(part, 'direction'))
  assert {name: list(g) for name, g in normalised.length.items()} == {
    'model/conv/kernel/length': [5.0]
  }
  updates, _ = jax.jit(optimizer.update)(params, state, params)
  assert jax.tree.structure(updates) == jax.tree.structure(params)
  # only Medusa's begin at zero
  zeros = {'head_0': {'block_0': {'kernel': jnp.zeros((1, 2))}}}
  frozen = jax.jit(config.build().init)(zeros)
  assert not any(part.length for part in frozen if hasattr(part, 'length'))


def test_a_row_of_zeros_stays_and_is_finite():
  params = {'kernel': jnp.array([[3.0, 4.0], [0.0, 0.0]])}
  optimizer = normalise_weights(optax.sgd(0.1), lambda name: True)
  update = jax.jit(lambda gradient: optimizer.update(gradient, optimizer.init(params), params)[0])
  updates = jax.device_get(update({'kernel': jnp.ones((2, 2))}))
  assert np.isfinite(updates['kernel']).all() and abs(updates['kernel'][0]).min() > 0
  np.testing.assert_array_equal(updates['kernel'][1], 0)
