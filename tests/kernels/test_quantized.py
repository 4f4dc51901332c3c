"""Kernels in int8: which parameters become int8, their content, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.transformed import Transformed
from fastdec.kernels.quantized import Quantized, is_quantized, round_kernel
from fastdec.models.lm import LM, LMConfig
from fastdec.models.ngram import NGram
from tests.decoding.methods_table import hash_network
from tests.decoding.models_table import MODELS, TRANSFORMER

HEADS = {
  'separate': BlockwiseHeads(k=3, d_model=8, d_ff=6, rooted=True, markov=2, words=6),
  'paper': BlockwiseHeads(k=3, d_model=8, d_ff=6, layout='paper'),
  'medusa': MedusaHeads(depth=2, d_model=8, vocab_size=6, output_bias=True, markov=2, words=6),
}
MODULES = {name: model for name, model in MODELS.items() if name != 'ensemble'} | HEADS
MODULES |= {
  'transformed': Transformed(
    TRANSFORMER, BlockwiseHeads(k=2, d_model=8, d_ff=6, first='transformed')
  )
}
# Matrices that are not kernels: positions, the lookup of a bias of low rank, the router of experts,
# and a forecast's.
WIDE = (
  'source_positions', 'target_positions', 'encoder_bias', 'decoder_bias', 'before', 'slots',
  'router', 'weights',
)  # fmt: skip


def parts(tree):
  return jax.tree.leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, Quantized))


def fresh(name):
  module = MODULES[name]
  if name == 'transformed':
    return {'model': filled(module.model), 'heads': filled(module.heads)}
  return filled(module)


def filled(module):
  """Parameters in the module's shapes; no initialiser is compiled."""
  return jax.tree.map(
    lambda leaf: jnp.ones(leaf.shape, jnp.float32), jax.eval_shape(module.init, jax.random.key(0))
  )


def check_matrices(params, made):
  """Every matrix but those of WIDE is in int8, and nothing else is."""
  for (path, leaf), (_, after) in zip(parts(params), parts(made), strict=True):
    name = getattr(path[-1], 'key', None)
    is_bias = name in ('bias', 'b1', 'b2', 'output_bias')
    if leaf.ndim >= 2 and not is_bias and name not in WIDE:
      assert isinstance(after, Quantized) and after.values.shape == leaf.shape, path
    else:
      assert after is leaf, path


@pytest.fixture(autouse=True)
def in_float64():
  """It is quantized as in the table of models."""
  with jax.enable_x64(True):
    yield


@pytest.mark.parametrize('name', MODULES)
def test_all_matrices_that_multiply_or_embed_are_in_int8_and_nothing_else(name):
  params = fresh(name)
  check_matrices(params, fd.quantize(MODULES[name], params))


@pytest.mark.parametrize('kind', ['eagle', 'block'])
def test_those_of_draft_networks_too(kind):
  module, params = hash_network(kind)
  check_matrices(params, fd.quantize(module, params))


def test_those_of_the_members_of_an_ensemble_too():
  params = (fresh('transformer'), fresh('fconv'))
  check_matrices(params, fd.quantize(MODELS['ensemble'], params))


def test_a_kernel_is_its_values_times_a_scale_for_each_output():
  made = round_kernel(jnp.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [1e-3, 0.0, 0.0]]))
  np.testing.assert_array_equal(made.values, [[64, -127, 32], [0, 0, 0], [127, 0, 0]])
  np.testing.assert_allclose(made.scale, [2 / 127, 0, 1e-3 / 127], rtol=1e-6)
  np.testing.assert_allclose(
    made.rows(jnp.array([2, 0])), [[1e-3, 0, 0], [64 * 2 / 127, -2, 32 * 2 / 127]], rtol=1e-6
  )


def test_a_large_model_is_about_a_quarter_as_large():
  model = dataclasses.replace(
    TRANSFORMER, config=dataclasses.replace(TRANSFORMER.config, d_model=128, d_ff=512)
  )
  params = filled(model)
  before, after = (
    sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    for tree in (params, fd.quantize(model, params))
  )
  assert 0.25 < after / before < 0.28


def test_what_is_in_the_tree_twice_stays_one_array():
  heads = HEADS['medusa']
  params = filled(heads)
  params['head_1']['projection'] = params['head_0']['projection']
  made = fd.quantize(heads, params)
  assert made['head_0']['projection']['kernel'] is made['head_1']['projection']['kernel']


def test_quantizing_leaves_its_argument_as_it_is():
  params = fresh('transformer')
  made = fd.quantize(TRANSFORMER, params)
  assert is_quantized(made) and not is_quantized(params)


def test_int8w_errs_less_than_int8():
  """In the log-probabilities of a text."""
  sizes = {'vocab_size': 97, 'd_model': 64, 'd_ff': 128, 'layers': 2, 'heads': 4, 'eos_ids': ()}
  model, rng = LM(LMConfig(**sizes)), np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: jnp.asarray(rng.standard_normal(x.shape) / 4, x.dtype),
    jax.eval_shape(model.init, jax.random.key(0)),
  )
  text = rng.integers(0, 97, (8, 64))
  plain, *others = (
    fd.score(model, one, text[:, :1], text[:, 1:])
    for one in (params, *(fd.quantize(model, params, dtype) for dtype in ('int8', 'int8w')))
  )
  errors = [float(np.abs(one.tokens - plain.tokens).mean()) for one in others]
  assert 0 < errors[1] < 0.8 * errors[0], errors


def test_another_type_is_a_mistake():
  with pytest.raises(fd.UserError, match="dtype='int4' is not possible: give one of int8, int8w"):
    fd.quantize(TRANSFORMER, fresh('transformer'), 'int4')


def test_twice_is_a_mistake():
  made = fd.quantize(TRANSFORMER, fresh('transformer'))
  with pytest.raises(fd.UserError, match='in int8 already: quantize them only once'):
    fd.quantize(TRANSFORMER, made)


def test_a_model_without_products_is_a_mistake():
  with pytest.raises(fd.UserError, match=r'NGram has no `products`, .*: decode without that'):
    fd.quantize(NGram.__new__(NGram), {'counts': jnp.ones((2, 2))})
