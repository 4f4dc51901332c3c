"""Packed kernels: what they multiply to, what is decoded with them, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import fastdec as fd
from fastdec.folders.stored import write
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.layers import look_up, project
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.packed import FEW, WIDTH, Packed, packed
from fastdec.sharding import MeshConfig, make_mesh, place
from fastdec.training.gradients import gradients_of
from fastdec.training.state import base_task

MODEL = Transformer(
  TransformerConfig(
    vocab_size=70, d_model=16, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1, eos_ids=(), dtype='float64'
  )
)
HEADS = BlockwiseHeads(k=4, d_model=16, d_ff=64)
SOURCES = np.array([[3, 4, 5, 6], [7, 8, 9, 3]])


@pytest.fixture(autouse=True)
def in_float64():
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope='module')
def made():
  with jax.enable_x64(True):
    params, heads = MODEL.init(jax.random.key(0)), HEADS.init(jax.random.key(1))
    return jax.tree.map(lambda x: x.astype(np.float64), (params, heads))


@pytest.mark.parametrize('outputs', [(WIDTH,), (3 * WIDTH,), (70,), (3, 2, 40)])
@pytest.mark.parametrize('rows', [1, 2, FEW, FEW + 1])
def test_a_product_is_that_of_the_kernel(outputs, rows):
  draw = np.random.default_rng(0).standard_normal
  x, kernel = draw((rows, 24)), jnp.asarray(draw((*outputs, 24)))
  expected = np.einsum('rd,...d->r...', x, kernel)
  np.testing.assert_allclose(project(jnp.asarray(x), packed(kernel)), expected, rtol=0, atol=1e-12)


def test_kernels_in_half_precision_are_read_as_they_lie():
  """Panels take longer there, as measured with AMX: they are neither made nor, where parameters are wider, read."""
  kernel = jnp.ones((70, 24))
  wrong = Packed(kernel, jnp.zeros_like(packed(kernel).panels))
  found = project(jnp.ones((3, 24), jnp.bfloat16), wrong)
  assert found.dtype == jnp.float32
  assert (found == 24).all()
  halves = jax.tree.map(lambda x: x.astype(jnp.bfloat16), MODEL.init(jax.random.key(0)))
  assert not fd.packed.is_packed(fd.pack(MODEL, halves))


def test_panels_are_what_few_rows_read():
  """Wrong ones show, and only there."""
  kernel = jnp.ones((70, 24))
  wrong = Packed(kernel, jnp.zeros_like(packed(kernel).panels))
  for rows, value in ((1, 24), (2, 0), (FEW, 0), (FEW + 1, 24)):
    assert (project(jnp.ones((rows, 24)), wrong) == value).all()


def test_embeddings_are_rows_of_the_kernel():
  table = jnp.arange(140.0).reshape(70, 2)
  np.testing.assert_array_equal(look_up(packed(table), jnp.array([[3], [69]])), table[jnp.array([[3], [69]])])


def test_kernels_of_at_least_a_panel_are_packed_and_nothing_is_copied(made):
  params, _ = made
  before, after = flatten_dict(params), flatten_dict(fd.pack(MODEL, params))
  assert before.keys() == after.keys()
  for name, leaf in after.items():
    is_kernel = name[-1] in ('kernel', 'embedding')
    if is_kernel and int(np.prod(leaf.shape[:-1])) >= WIDTH:
      assert isinstance(leaf, Packed) and leaf.kernel is before[name], name
    else:
      assert leaf is before[name], name
  assert sum(isinstance(leaf, Packed) for leaf in after.values()) == 3  # the embedding, and w1 of both sides


@pytest.mark.parametrize('of_heads', [False, True])
def test_a_packed_model_writes_the_same(made, of_heads):
  params, heads = made
  greedy = fd.decode(MODEL, params, SOURCES, fd.Greedy(), max_len=12)
  if of_heads:
    heads = fd.pack(HEADS, heads)
  out = fd.decode(MODEL, fd.pack(MODEL, params), SOURCES, fd.Blockwise((HEADS, heads)), max_len=12)
  np.testing.assert_array_equal(out.tokens, greedy.tokens)
  plain = fd.decode(MODEL, params, SOURCES, fd.Blockwise((HEADS, made[1])), max_len=12)
  np.testing.assert_array_equal(out.block_sizes, plain.block_sizes)


@pytest.mark.parametrize('layout', ['separate', 'paper'])
def test_packed_heads_guess_the_same(layout):
  heads = BlockwiseHeads(k=6, d_model=16, d_ff=64, layout=layout)
  params, hidden = heads.init(jax.random.key(1)), jax.random.normal(jax.random.key(2), (3, 16))
  expected = heads.all(params, hidden)
  np.testing.assert_allclose(heads.all(fd.pack(heads, params), hidden), expected, rtol=0, atol=1e-5)


def test_kernels_in_int8_lie_well_as_they_are(made):
  in_int8 = fd.quantize(MODEL, made[0])
  assert all(one is other for one, other in zip(*map(jax.tree.leaves, (in_int8, fd.pack(MODEL, in_int8))), strict=True))


def test_what_is_refused(made, tmp_path):
  params = fd.pack(MODEL, made[0])
  with pytest.raises(fd.UserError, match='packed already: pack them once'):
    fd.pack(MODEL, params)
  with pytest.raises(fd.UserError, match='packed: give those that they were packed from'):
    fd.quantize(MODEL, params)
  with pytest.raises(fd.UserError, match='packed parameters are not written'):
    write(tmp_path / 'model.safetensors', params)
  assert not list(tmp_path.iterdir())
  with pytest.raises(fd.UserError, match='packed parameters are not placed on a mesh: place those'):
    place(params, make_mesh(MeshConfig()), ())
  with pytest.raises(fd.UserError, match='packed parameters are not trained, nor trained on'):
    gradients_of(base_task(MODEL, start=params), params, {}, {}, jax.random.key(0))
