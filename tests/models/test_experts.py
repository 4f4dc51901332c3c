"""Mixtures of experts: the loop over those chosen gives what products with all of them give."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.experts import FEW, Experts, ExpertsConfig
from fastdec.models.lm import LM, LMConfig

D = 16
KINDS = {
  'normed': ExpertsConfig(count=5, chosen=2, d_ff=64),
  'not normed': ExpertsConfig(count=4, chosen=3, d_ff=8, normed=False),
  'clamped': ExpertsConfig(count=3, chosen=1, d_ff=8, bias=True, limit=0.5),
}


def made(kind):
  """Returns a layer's experts in float64, with fresh parameters."""
  module, rng = Experts(KINDS[kind], jax.nn.silu, 'float64'), np.random.default_rng(0)
  init = lambda key: module.init(key, jnp.ones((1, 1, D)), True)['params']
  shapes = jax.eval_shape(init, jax.random.key(0))
  draw = lambda leaf: jnp.asarray(rng.normal(size=leaf.shape))
  return module, jax.tree.map(draw, shapes), rng


@functools.partial(jax.jit, static_argnums=(0, 3))
def outputs(module, params, x, reads_all):
  return module.apply({'params': params}, x, reads_all)


@dataclasses.dataclass(frozen=True)
class Owner:
  """What `fd.quantize` and `fd.pack` ask of a module."""

  products = (r'kernel$',)


@pytest.mark.wide('normed-float64', 'clamped-int8', 'not normed-packed')
@pytest.mark.usefixtures('in_float64')
@pytest.mark.parametrize('kept', ['float64', 'int8', 'packed', 'packed int8'])
@pytest.mark.parametrize('kind', KINDS)
def test_only_the_chosen_experts_are_needed(kind, kept):
  """On one token, on few, and on more than a block of the loop takes."""
  module, params, rng = made(kind)
  if 'int8' in kept:
    params = fd.quantize(Owner(), params)
  if 'packed' in kept:
    params = fd.pack(Owner(), params)
  for shape in ((1, 1), (2, 3), (3, FEW)):
    x = jnp.asarray(rng.normal(size=(*shape, D)))
    looped, whole = (outputs(module, params, x, reads_all) for reads_all in (False, True))
    np.testing.assert_allclose(looped, whole, rtol=0, atol=1e-11 * np.abs(whole).max())


@pytest.mark.usefixtures('in_float64')
def test_experts_that_are_not_chosen_are_not_read():
  module, params, rng = made('normed')
  x = jnp.asarray(rng.normal(size=(1, 2, D)))
  expected = outputs(module, params, x, False)
  scores = np.einsum('nd,ed->ne', np.asarray(x)[0], params['router'])
  chosen = np.unique(np.argsort(scores)[:, -2:])
  unread = np.setdiff1d(np.arange(5), chosen)
  assert len(unread)

  def spoil(leaf):
    leaf = np.array(leaf)
    if leaf.ndim > 2:
      leaf[unread] = np.nan
    return jnp.asarray(leaf)

  spoilt = jax.tree.map(spoil, params)
  np.testing.assert_array_equal(outputs(module, spoilt, x, False), expected)
  assert np.isnan(np.asarray(outputs(module, spoilt, x, True))).all()


def test_a_mixture_is_trained():
  """Each expert has a gradient, and so has the router."""
  experts = ExpertsConfig(count=3, chosen=2, d_ff=8, dense=(1,))
  model = LM(LMConfig(vocab_size=11, d_model=8, d_ff=8, layers=2, heads=2, experts=experts))
  params, text = jax.jit(model.init)(jax.random.key(0)), np.arange(12, dtype=np.int32) % 11
  text = text.reshape(2, 6)
  batch = {
    'target': text, 'target_segment': np.ones_like(text),
    'target_position': np.arange(6, dtype=np.int32) + 0 * text,
  }  # fmt: skip
  batch = jax.tree.map(jnp.asarray, batch)

  @jax.jit
  @jax.grad
  def slope(params):
    return jax.nn.logsumexp(model.unembed(params, model.hidden(params, batch))).sum()

  gradients = slope(params)
  assert 'gate_up' in params['layer_1'] and 'gate_up' not in params['layer_0']
  for leaf in jax.tree.leaves(gradients['layer_0']['experts']):
    assert np.any(np.asarray(leaf).reshape(3, -1), axis=1).all()


@pytest.mark.parametrize(('sizes', 'message'), [
  ({'chosen': 9}, r'experts\.chosen=9 of experts\.count=8'),
  ({'limit': -1.0}, r'experts\.limit=-1\.0'),
])  # fmt: skip
def test_impossible_sizes_are_named(sizes, message):
  with pytest.raises(fd.UserError, match=message):
    ExpertsConfig(**sizes)
