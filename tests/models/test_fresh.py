"""Fresh parameters are those of a network that ran, but nothing runs of it."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fastdec.models.fresh import init_by_trace
from fastdec.models.layers import Dense

KEY = jax.random.key(3)
TABLE = np.arange(6, dtype=np.float32).reshape(2, 3)


class Network(nn.Module):
  """Parameters of all kinds: drawn and scaled, drawn and given another shape, zeros, and a
  constant."""

  @nn.compact
  def __call__(self, x):
    x = x + self.param('embedding', nn.initializers.normal(0.3), (5, 4))[:1]
    x = Dense((2, 3), use_bias=True, dtype='float32')(x)
    return jnp.sin(x) + self.param('table', lambda key: jnp.asarray(TABLE))[None]


@dataclasses.dataclass(frozen=True)
class Model:
  """Its `init` tells on `ran` whenever its network runs."""

  ran: list = dataclasses.field(default_factory=list)

  @init_by_trace
  def init(self, key):
    return Network().init(
      key, jax.pure_callback(self._from_host, jax.ShapeDtypeStruct((1, 4), np.float32))
    )['params']

  def _from_host(self):
    self.ran.append('ran')
    return np.ones((1, 4), np.float32)


def leaves(params):
  return [(jax.tree_util.keystr(path), x) for path, x in jax.tree.leaves_with_path(params)]


def test_the_parameters_are_those_of_the_network_that_ran_bit_for_bit_and_it_does_not_run():
  silent, running = Model(), Model()
  made, ran = silent.init(KEY), Model.init.__wrapped__(running, KEY)
  assert (silent.ran, running.ran) == ([], ['ran'])
  assert [name for name, _ in leaves(made)] == [name for name, _ in leaves(ran)]
  for (name, a), (_, b) in zip(leaves(made), leaves(ran), strict=True):
    assert (
      isinstance(a, jax.Array)
      and a.dtype == b.dtype
      and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    ), name


def test_only_shapes_or_compiled_parameters_can_be_had():
  made = Model().init(KEY)
  shapes = jax.eval_shape(Model().init, KEY)
  compiled = jax.jit(Model().init)(KEY)
  assert (
    jax.tree.map(jnp.shape, made)
    == jax.tree.map(jnp.shape, shapes)
    == jax.tree.map(jnp.shape, compiled)
  )
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), made, compiled)
