"""Forms of products of few rows, and the table that chooses one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.kernels import forms


@pytest.fixture
def use():
  """`forms.use`, undone after the test."""
  yield forms.use
  forms.use({})


def one_form(name, least=1):
  return {
    dtype: dict.fromkeys(forms.SIZES, [(name, least)] * len(forms.COUNTS)) for dtype in forms.TABLE
  }


@pytest.mark.parametrize('name', forms.FORMS)
@pytest.mark.parametrize('shape', [(6, 96), (2, 3, 70), (2, 3, 64)])
@pytest.mark.parametrize('rows', [1, 3, 6])
def test_each_form_is_the_product(use, name, shape, rows):
  """In int8 it is equal bit for bit, also for the largest numbers. With 70 inputs there are no
  lanes."""
  use(one_form(name, least=2))
  draw = np.random.default_rng(0).integers(-127, 128, (rows, shape[-1]), np.int8)
  kernel = np.full(shape, -127, np.int8)
  kernel[0] = 127
  expected = np.einsum('rd,...d->r...', draw.astype(np.int64), kernel.astype(np.int64))

  @jax.jit
  def both(x, kernel):
    floats = x.astype(jnp.float32), kernel.astype(jnp.float32)
    return (
      forms.cpu_product(x, kernel, None, jnp.int32),
      forms.cpu_product(*floats, None, jnp.float32),
    )

  whole, floats = both(draw, kernel)
  np.testing.assert_array_equal(whole, expected)
  np.testing.assert_allclose(floats, expected, rtol=1e-6)


def test_six_rows_are_multiplied_as_eight_and_the_table_may_ask_for_more(use):
  def rows_of(count):
    x, kernel = jnp.ones((count, 8)), jnp.ones((4, 8))
    program = jax.make_jaxpr(lambda x, kernel: forms.cpu_product(x, kernel, None, jnp.float32))(
      x, kernel
    )
    (product,) = [e for e in program.jaxpr.eqns if e.primitive.name == 'dot_general']
    return product.invars[0].aval.shape[0]

  use(one_form('rows'))
  assert [rows_of(n) for n in (1, 2, 3, 6, 8, 9)] == [1, 2, 4, 8, 8, 12]
  use(one_form('rows', least=8))
  assert rows_of(1) == 8


@pytest.mark.parametrize(
  'flags, form, has_sums',
  [
    (('avx512_vnni',), 'lanes', True),
    (('avx512_vnni', 'amx_int8'), 'kernel', False),
    ((), 'lanes', False),
  ],
)
def test_each_kind_of_processor_has_a_table(use, monkeypatch, flags, form, has_sums):
  use({})
  monkeypatch.setattr(forms, 'cpu_flags', lambda: frozenset(flags))
  assert forms.table_of_cpu()['int8']['layer'][0][0] == form
  assert forms.takes_unsigned(jnp.ones((4, 8), jnp.int8)) == has_sums


def test_a_narrow_kernel_is_not_added_up_in_lanes(use):
  use(forms.TABLE)
  for inputs, form in ((256, 'dot_general'), (512, 'reduce_sum')):
    x, kernel = jnp.ones((1, inputs), jnp.int8), jnp.ones((4, inputs), jnp.int8)
    program = jax.make_jaxpr(lambda x, kernel: forms.cpu_product(x, kernel, None, jnp.int32))(
      x, kernel
    )
    assert any(equation.primitive.name == form for equation in program.jaxpr.eqns)


@pytest.mark.parametrize('table, rows', [(forms.TABLE, 2), (forms.AMX_TABLE, 4)])
def test_a_single_row_never_meets_a_long_kernel(use, table, rows):
  """XLA's own loop for one row takes twice the time of two rows."""
  use(table)
  x, kernel = (
    jnp.ones((1, forms.LONGEST + 32), jnp.int8),
    jnp.ones((4, forms.LONGEST + 32), jnp.int8),
  )
  for sums in (None, kernel.sum(axis=-1, dtype=jnp.int32)):
    program = str(
      jax.make_jaxpr(lambda x, kernel, s: forms.cpu_product(x, kernel, s, jnp.int32))(
        x, kernel, sums
      )
    )
    assert f'8[{rows},{forms.LONGEST + 32}]' in program and 'dot' in program
    product = jax.jit(lambda *of: forms.cpu_product(*of, jnp.int32))(x, kernel, sums)
    np.testing.assert_array_equal(product, np.full((1, 4), forms.LONGEST + 32))
