"""Products in the form that a backend handles well."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.models.layers import FEW, project


@pytest.mark.parametrize('axes', [(6,), (2, 3), (3, 2, 4)])
@pytest.mark.parametrize('rows', [1, 5, FEW, FEW + 1])
def test_a_product_contracts_the_last_axes(rows, axes):
  x, kernel = (jax.random.normal(jax.random.key(i), (*lead, 8)) for i, lead in enumerate(((rows,), axes)))
  expected = np.einsum('rd,fd->rf', x, kernel.reshape(-1, 8)).reshape(rows, *axes)
  np.testing.assert_allclose(project(x, kernel), expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(project(x[:, None], kernel), expected[:, None], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('rows', [1, 2, 8])
def test_a_kernel_of_several_axes_is_read_as_it_lies_where_rows_are_few(rows):
  """Laid out anew in every call it would cost three times the product."""
  x, kernel = jnp.ones((rows, 32)), jnp.ones((2, 4, 16, 32))
  program = jax.jit(project).lower(x, kernel).compile().as_text()
  made = re.findall(r'= f32\[([\d,]+)\]\S* (?!parameter|bitcast)[\w-]+\(', program)
  assert made and kernel.size not in [math.prod(map(int, shape.split(','))) for shape in made]
