"""Products in the form that a backend handles well."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.decoding.sampling import argmax
from fastdec.kernels import quantized
from fastdec.models import layers
from fastdec.models.layers import FEW, narrow_in_training, project_each

project = jax.jit(layers.project)
round_kernel = jax.jit(quantized.round_kernel)


def draws(*shapes):
  rng = np.random.default_rng(0)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize('axes', [(6,), (2, 3), (3, 2, 4)])
@pytest.mark.parametrize('rows', [1, 5, FEW, FEW + 1])
@pytest.mark.wide('*-axes2')
def test_a_product_contracts_the_last_axes(rows, axes):
  x, kernel = draws((rows, 8), (*axes, 8))
  expected = np.einsum('rd,fd->rf', x, kernel.reshape(-1, 8)).reshape(rows, *axes)
  np.testing.assert_allclose(project(x, kernel), expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(project(x[:, None], kernel), expected[:, None], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('rows', [1, 2, 8])
def test_a_kernel_of_several_axes_is_read_in_its_layout_if_rows_are_few(rows):
  """A new layout in every call would cost three times as much as the product."""
  x, kernel = np.ones((rows, 32), np.float32), np.ones((2, 4, 16, 32), np.float32)
  program = project.lower(x, kernel).compile().as_text()
  made = re.findall(r'= f32\[([\d,]+)\]\S* (?!parameter|bitcast)[\w-]+\(', program)
  assert made and kernel.size not in [math.prod(map(int, shape.split(','))) for shape in made]


@pytest.mark.parametrize('axes', [(6,), (2, 3), (3, 2, 4)])
@pytest.mark.parametrize('rows', [1, 5, FEW, FEW + 1])
@pytest.mark.wide('*-axes2')
def test_a_product_in_int8_is_that_of_the_whole_numbers_times_the_two_scales(rows, axes):
  x, kernel = draws((rows, 8), (*axes, 8))
  left, right = round_kernel(x), round_kernel(kernel)
  whole = np.asarray(left.values, np.int64) @ np.asarray(right.values, np.int64).reshape(-1, 8).T
  expected = whole * np.float64(left.scale)[:, None] * np.float64(right.scale).reshape(1, -1)
  y = project(x, right)
  assert y.dtype == jnp.float32 and y.shape == (rows, *axes)
  np.testing.assert_allclose(y, expected.reshape(y.shape), rtol=1e-6)
  np.testing.assert_allclose(y, project(x, kernel), atol=0.15)


@pytest.mark.parametrize('axes', [(6,), (3, 2, 4)])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.wide('float32-axes1')
def test_in_int8w_a_product_is_that_of_the_rows_as_they_are(axes, dtype, monkeypatch):
  """The kernel becomes floats in several parts, of 6 outputs 4 and then the rest."""
  monkeypatch.setattr(layers, 'PART', 128)
  x, kernel = draws((5, 64), (*axes, 64))
  x, in_int8 = jnp.asarray(x, dtype), round_kernel(kernel)
  weights = np.float64(in_int8.values) * np.float64(in_int8.scale)[..., None]
  product = jax.jit(lambda *of: layers.project(*of))  # in parts of this size
  y = product(x, dataclasses.replace(in_int8, rounds_inputs=False))
  assert y.dtype == jnp.float32 and y.shape == (5, *axes)
  expected = np.einsum('rd,fd->rf', np.float64(x), weights.reshape(-1, 64)).reshape(y.shape)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
  exact = np.einsum('rd,fd->rf', np.float64(x), kernel.reshape(-1, 64)).reshape(y.shape)
  errors = [np.abs(np.asarray(one) - exact).mean() for one in (y, product(x, in_int8))]
  assert errors[0] < 0.9 * errors[1]
  if len(axes) == 3:
    kernels = dataclasses.replace(round_kernel(kernel[0]), rounds_inputs=False)
    x_bhd = np.stack([x, 2 * np.asarray(x)], axis=1)
    each = np.einsum('bhd,hfd->bhf', np.float64(x_bhd), weights[0])
    made = jax.jit(project_each)(x_bhd, kernels)
    np.testing.assert_allclose(made, each, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('axes', [(48,), (3, 4, 8)])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.wide('float32-axes1')
def test_in_int8_n_rows_are_bit_for_bit_n_products_of_one(dtype, axes):
  """Rows of any magnitude in the same product change nothing, since each row has its own scale."""
  x, kernel = draws((FEW + 1, 32), (*axes, 32))
  x = np.asarray(jnp.asarray(x * np.logspace(-3, 3, FEW + 1)[:, None], dtype))
  kernel = round_kernel(kernel)
  alone = np.concatenate([project(x[i : i + 1], kernel) for i in range(len(x))])
  for rows in (2, FEW, FEW + 1):
    np.testing.assert_array_equal(project(x[:rows], kernel), alone[:rows])
    np.testing.assert_array_equal(np.asarray(project(x[None, :rows], kernel))[0], alone[:rows])


@pytest.mark.parametrize('rows', [1, 2, 8])
def test_a_kernel_in_int8_is_read_in_its_layout_if_rows_are_few(rows):
  for axes in ((128,), (2, 4, 16)):
    kernel = round_kernel(np.ones((*axes, 32), np.float32))
    program = project.lower(np.ones((rows, 32), np.float32), kernel).compile().as_text()
    made = re.findall(r'= s8\[([\d,]+)\]\S* (?!parameter|bitcast)[\w-]+\(', program)
    assert made and kernel.values.size not in [
      math.prod(map(int, shape.split(','))) for shape in made
    ]


def test_argmax_sees_the_largest_of_a_product_in_int8_with_a_bias():
  """Whatever XLA computes twice: the maximum, and what is compared with it."""
  x, bias, kernel = draws((48, 8), (256,), (256, 8))
  bias, kernel = 0.1 * bias, round_kernel(kernel)
  largest = jax.jit(lambda x: argmax(project(x, kernel) + bias[None]))(x)
  np.testing.assert_array_equal(largest, np.argmax(np.asarray(project(x, kernel)) + bias, axis=1))


def test_the_product_of_rows_that_are_zero_or_no_numbers():
  kernel = round_kernel(np.array([[1.0, 2.0], [0.0, 0.0]], np.float32))
  rows = np.array([[0.0, 0.0], [np.nan, 1.0], [2.0, 1.0]], np.float32)
  y = np.asarray(project(rows, kernel))
  np.testing.assert_array_equal(y[0], [0, 0])
  assert np.isnan(y[1]).all()
  np.testing.assert_allclose(y[2], [4, 0], rtol=0.02)


def test_the_gradients_of_products_in_bfloat16_are_such_products_too():
  rng = np.random.default_rng(0)
  x, kernel, weights = (
    rng.normal(size=shape).astype(np.float32) for shape in ((FEW + 1, 8), (2, 3, 8), (2, 3))
  )

  def loss(x, kernel):
    return (layers.project(x, kernel) * weights).sum()

  both, narrow = jax.grad(loss, (0, 1)), jnp.asarray(x, jnp.bfloat16)
  factors = set()
  for equation in jax.jit(both).trace(narrow, kernel).jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      factors |= {str(factor.aval.dtype) for factor in equation.invars}
  assert factors == {'bfloat16'}
  of_x, of_kernel = jax.jit(both)(narrow, kernel)
  assert of_x.dtype == jnp.bfloat16 and of_kernel.dtype == jnp.float32
  for found, expected in zip((of_x, of_kernel), both(x, kernel), strict=True):
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=0.05, atol=0.1)


def test_logits_and_scores_are_rounded_to_the_models_type_only_where_a_gradient_is_computed():
  x = jnp.array([1 + 2**-12, 3.0])
  assert (narrow_in_training(x, jnp.bfloat16) == x).all()
  rounded, pull_back = jax.vjp(lambda x: narrow_in_training(x, jnp.bfloat16), x)
  assert rounded.dtype == x.dtype and (rounded == jnp.array([1.0, 3.0])).all()
  assert (pull_back(x)[0] == x).all()
  assert (jax.vjp(lambda x: narrow_in_training(x, jnp.float32), x)[0] == x).all()
