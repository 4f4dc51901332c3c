"""Products of unsigned by signed bytes are those of the whole numbers, at any shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.kernels import forms
from fastdec.kernels.quantized import from_integers, round_kernel
from fastdec.kernels.unsigned import unsigned_product
from fastdec.models.layers import project

USES = {  # operations after a product that might make XLA exchange its sides
  'nothing': lambda y: y,
  'a transposition': lambda y: y.T,
  'a product': lambda y: y.T @ y,
  'a sum': lambda y: y.sum(0),
}


@pytest.fixture
def use():
  """`forms.use`, undone after the test."""
  yield forms.use
  forms.use({})


def everywhere(name):
  """A table that takes one form for int8."""
  return forms.TABLE | {'int8': dict.fromkeys(forms.SIZES, [(name, 2)] * len(forms.COUNTS))}


def whole_numbers(rows, outputs, inputs):
  """Rows and a kernel of random bytes, the largest ones among them, and their product."""
  rng = np.random.default_rng(rows + outputs + inputs)
  x, kernel = (rng.integers(-127, 128, (n, inputs), np.int8) for n in (rows, outputs))
  x[0], kernel[0] = 127, -127
  return x, kernel, np.int64(x) @ np.int64(kernel).T


def summed_product(x, kernel):
  return unsigned_product(x, kernel, kernel.sum(axis=-1, dtype=jnp.int32))


@pytest.mark.parametrize('after', USES)
@pytest.mark.parametrize('shape', [(2, 1, 1), (3, 5, 7), (2, 130, 64), (16, 64, 100), (70, 8, 576)])
@pytest.mark.wide('*-nothing', 'shape2-*')
def test_a_product_is_that_of_the_whole_numbers(shape, after):
  x, kernel, expected = whole_numbers(*shape)
  product = jax.jit(lambda x, kernel: USES[after](summed_product(x, kernel)))(x, kernel)
  np.testing.assert_array_equal(product, np.int32(USES[after](expected)))


def test_a_kernel_is_multiplied_as_it_lies():
  """No array of the kernel's size is created."""
  x, kernel, _ = whole_numbers(8, 256, 128)
  sums = kernel.sum(axis=-1, dtype=np.int32)
  text = jax.jit(unsigned_product).lower(x, kernel, sums).compile().as_text()
  assert 'u8[8,128]' in text and 's32[256,128]' not in text


@pytest.mark.parametrize('axes', [(0, None), (None, 0), (0, 0)])
def test_products_may_be_mapped(axes):
  x, kernel, _ = whole_numbers(6, 8, 16)
  x_axis, kernel_axis = axes
  x = x if x_axis is None else x.reshape(2, 3, 16)
  kernel = kernel if kernel_axis is None else kernel.reshape(2, 4, 16)
  mapped = jax.jit(jax.vmap(summed_product, axes))(x, kernel)
  np.testing.assert_array_equal(mapped, np.int64(x) @ np.int64(kernel).swapaxes(-1, -2))


@pytest.mark.parametrize('rows', [1, 2, 5, forms.FEW + 1])
def test_kernels_have_sums_where_the_table_names_the_form_and_products_stay_the_same(use, rows):
  rng = np.random.default_rng(rows)
  x, kernel = (jnp.asarray(rng.normal(size=(n, 64)), jnp.float32) for n in (rows, 48))
  parts = round_kernel(kernel)
  made = {}
  for name in ('kernel', forms.UNSIGNED):
    use(everywhere(name))
    made[name] = from_integers(parts.values, parts.scale)
    assert from_integers(parts.values, parts.scale, 'int8w').sums is None
  assert made['kernel'].sums is None and made[forms.UNSIGNED].sums.shape == (48,)
  signed, unsigned, part = (
    np.asarray(jax.jit(lambda *of: project(*of))(x, kernel))
    for kernel in (*made.values(), made[forms.UNSIGNED][8:40])
  )
  np.testing.assert_array_equal(signed, unsigned)
  np.testing.assert_array_equal(part, unsigned[:, 8:40])
