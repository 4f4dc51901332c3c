"""The loops that carry caches give each step what the last one returned, in whatever form they
carry it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.cache.loops import fori_loop, while_loop


def grown(state):
  """A step that records the shapes it sees."""
  assert [x.shape for x in jax.tree.leaves(state)] == SHAPES
  cache, length, key = state
  return (
    {'k': cache['k'] + 1.0, 'rows': cache['rows'] * 2.0},
    length + 1,
    jax.random.fold_in(key, length),
  )


def begin():
  caches = {'k': jnp.zeros((1, 2, 3, 4)), 'rows': jnp.ones((2, 2, 3, 4))}
  return caches, jnp.int32(0), jax.random.key(0)


SHAPES = [x.shape for x in jax.tree.leaves(begin())]


@pytest.mark.parametrize('nodes', [1, 3])
@pytest.mark.parametrize('loop', ['while', 'fori'])
def test_a_state_comes_back_as_it_is(loop, nodes):
  expected = begin()
  for _ in range(5):
    expected = grown(expected)
  if loop == 'while':
    looped = jax.jit(lambda s: while_loop(lambda s: s[1] < 5, grown, s, nodes))(begin())
  else:
    looped = jax.jit(lambda s: fori_loop(0, 5, lambda _, s: grown(s), s, nodes))(begin())
  for one, other in zip(jax.tree.leaves(looped), jax.tree.leaves(expected), strict=True):
    assert one.dtype == other.dtype
    if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
      one, other = jax.random.key_data(one), jax.random.key_data(other)
    np.testing.assert_array_equal(one, other)
