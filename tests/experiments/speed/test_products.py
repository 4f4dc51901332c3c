"""The table of products: every form is the same product, and every cell that can be timed is."""

import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from configs import products as page
from configs.common import to_dataclass
from experiments.speed import products
from fastdec.models.layers import product


def config(**changes):
  made = page.get_config('scale=smoke')
  made.update(changes)
  return to_dataclass(products.SpeedConfig, made)


@pytest.mark.parametrize('axes', [(5, 8), (3, 2, 8)])
def test_every_form_is_the_product(axes):
  rng = np.random.default_rng(0)
  x, kernel = rng.integers(-127, 128, (2, 8), np.int8), rng.integers(-127, 128, axes, np.int8)
  expected = np.einsum('rd,...d->r...', x.astype(np.int32), kernel.astype(np.int32))
  forms = [
    *products.FORMS.values(),
    product,
    *(lambda *a, f=f: products.twice(f, *a) for f in products.FORMS.values()),
  ]
  for form in forms:
    np.testing.assert_array_equal(form(jnp.asarray(x), jnp.asarray(kernel), jnp.int32), expected)


def test_the_table_has_a_line_for_each_type_kernel_and_number_of_rows():
  lines = products.measure_speed(config(dtypes=('float32', 'int8')), lambda text: None)
  assert [(line['dtype'], line['kernel'], line['rows']) for line in lines] == [
    (dtype, kernel, rows)
    for dtype in ('float32', 'int8')
    for kernel in ('32 x 16', '3 x 2 x 4 x 16')
    for rows in (1, 2)
  ]
  assert all(line['to_fastest'] >= 1 and line['chosen'] > 0 for line in lines)
  assert all(('twice, rows first' in line) == (line['rows'] == 1) for line in lines)
  assert '| dtype | kernel' in products.markdown(lines)


@pytest.mark.parametrize('change', [{'dtypes': ('int4',)}, {'kernels': ((8,),)}, {'rows': (0,)}])
def test_what_cannot_be_timed_is_refused(change):
  with pytest.raises(fd.UserError, match='is not possible: give'):
    config(**change)
