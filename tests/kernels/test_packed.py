"""Packed kernels: their products, decoding with them, and what is refused."""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import fastdec as fd
import fastdec.kernels.packed
from fastdec.folders.stored import write
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.kernels.packed import WIDTH, Packed, drop_panels, is_packed, most_rows, pack_kernel
from fastdec.kernels.sharding import MeshConfig, make_mesh, place
from fastdec.models.layers import look_up, product, project, project_each
from fastdec.models.stacks import StackConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.training.gradients import compute_gradients
from fastdec.training.state import base_task
from tests.decoding import models_table

pytestmark = pytest.mark.usefixtures('in_float64')

MODEL = Transformer(TransformerConfig(
  vocab_size=70, d_model=16, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1, eos_ids=(),
  dtype='float64',
))  # fmt: skip
HEADS = BlockwiseHeads(k=4, d_model=16, d_ff=64)
SOURCES = np.array([[3, 4, 5, 6], [7, 8, 9, 3]])


@pytest.fixture(scope='module')
def made():
  with jax.enable_x64(True):
    params, heads = (jax.jit(one.init)(jax.random.key(0)) for one in (MODEL, HEADS))
    return jax.tree.map(lambda x: x.astype(np.float64), (params, heads))


@pytest.mark.parametrize('outputs', [(WIDTH,), (3 * WIDTH,), (70,), (3, 2, 40)])
@pytest.mark.parametrize('rows', [1, 2, most_rows('float32'), most_rows('float32') + 1])
@pytest.mark.wide('*-outputs3', '2-outputs2')
def test_a_product_is_that_of_the_kernel(outputs, rows):
  draw = np.random.default_rng(0).standard_normal
  x, kernel = draw((rows, 24)), jnp.asarray(draw((*outputs, 24)))
  expected = np.einsum('rd,...d->r...', x, kernel)
  made = jax.jit(lambda *of: project(*of))(x, pack_kernel(kernel))
  np.testing.assert_allclose(made, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('rows', [1, 3])
@pytest.mark.parametrize('outputs', [2 * WIDTH, 70])
@pytest.mark.wide('128-1', '70-3')
def test_products_of_one_vector_each_are_those_of_the_kernels(rows, outputs):
  """With 70 outputs, panels reach from one kernel into the next, and are not read."""
  draw = np.random.default_rng(0).standard_normal
  x, kernels = draw((rows, 3, 24)), jnp.asarray(draw((3, outputs, 24)))
  expected = np.einsum('rhd,hfd->rhf', x, kernels)
  made = jax.jit(lambda *of: project_each(*of))(x, pack_kernel(kernels))
  np.testing.assert_allclose(made, expected, rtol=0, atol=1e-12)


def test_a_part_keeps_the_panels_that_it_is_made_of():
  for kernel in (jnp.ones((3 * WIDTH + 5, 24)), jnp.ones((6, WIDTH // 2, 24))):
    whole, each = pack_kernel(kernel), kernel[0].size // 24
    for part in (slice(None), slice(2 * WIDTH // each), slice(2 * WIDTH // each, None)):
      cut = whole[part]
      assert isinstance(cut, Packed)
      np.testing.assert_array_equal(cut.panels, pack_kernel(kernel[part]).panels)
    for index in (slice(1, None), slice(1), slice(None, None, 2), 0, jnp.array([0, 2])):
      cut = whole[index]
      assert not isinstance(cut, Packed)
      np.testing.assert_array_equal(cut, kernel[index])


def test_the_first_heads_of_packed_ones_are_packed():
  heads = BlockwiseHeads(k=4, d_model=WIDTH, d_ff=WIDTH)
  params = jax.jit(heads.init)(jax.random.key(0))
  module, params = heads.drafting(fd.pack(heads, params), 2)
  assert module.k == 3 and is_packed(params['w1']) and is_packed(params['w2'])


def test_kernels_in_half_precision_are_read_as_they_lie():
  """With AMX panels were measured as slower: they are not made, and not read for wider
  parameters."""
  kernel = jnp.ones((70, 24))
  wrong = Packed(kernel, jnp.zeros_like(pack_kernel(kernel).panels))
  result = project(jnp.ones((3, 24), jnp.bfloat16), wrong)
  assert result.dtype == jnp.float32
  assert (result == 24).all()
  shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
  halves = jax.tree.map(lambda x: np.ones(x.shape, jnp.bfloat16), shapes)
  assert not is_packed(fd.pack(MODEL, halves))


def test_panels_are_what_few_rows_read():
  """Wrong panels change the result, but only for few rows."""
  few = most_rows('float32')
  kernel = jnp.ones((140, 24), 'float32')
  wrong = Packed(kernel, jnp.zeros_like(pack_kernel(kernel).panels))
  read = jax.jit(lambda x: product(x, wrong, jnp.float32))
  for rows, value in ((1, 0), (few, 0), (few + 1, 24)):
    assert (np.asarray(read(np.ones((rows, 24), np.float32))) == value).all()


def test_embeddings_are_rows_of_the_kernel():
  table = jnp.arange(140.0).reshape(70, 2)
  np.testing.assert_array_equal(
    look_up(pack_kernel(table), jnp.array([[3], [69]])), table[jnp.array([[3], [69]])]
  )


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
  # the embedding, and w1 of both sides
  assert sum(isinstance(leaf, Packed) for leaf in after.values()) == 3


@pytest.mark.parametrize('of_heads', [False, True])
@pytest.mark.wide('True')
def test_a_packed_model_writes_the_same(made, of_heads):
  params, heads = made
  if of_heads:
    heads = fd.pack(HEADS, heads)
  out = fd.decode(MODEL, fd.pack(MODEL, params), SOURCES, fd.Blockwise((HEADS, heads)), max_len=12)
  plain = fd.decode(MODEL, params, SOURCES, fd.Blockwise((HEADS, made[1])), max_len=12)
  np.testing.assert_array_equal(out.tokens, plain.tokens)
  np.testing.assert_array_equal(out.block_sizes, plain.block_sizes)


@pytest.mark.parametrize('layout', ['separate', 'paper'])
def test_packed_heads_guess_the_same(layout):
  """All heads at once, and one head, as training and measurements use them."""
  heads = BlockwiseHeads(k=6, d_model=WIDTH, d_ff=64, layout=layout)
  params = jax.jit(heads.init)(jax.random.key(1))
  hidden = jnp.asarray(np.cos(np.arange(2.0 * WIDTH)).reshape(2, WIDTH))
  by_panels = fd.pack(heads, params)
  assert is_packed(by_panels['w1']) and is_packed(by_panels['w2'])

  @jax.jit
  def guesses(params):
    return heads.all(params, hidden), [heads.one(params, hidden, jnp.int32(i)) for i in (0, 4)]

  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
  jax.tree.map(close, guesses(by_panels), guesses(params))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['lm with windows', 't5', 'fconv', 'image that forecasts'])
def test_every_kind_of_model_writes_the_same(name, monkeypatch):
  """Panels have four outputs here, since these models are small."""
  monkeypatch.setattr(fastdec.kernels.packed, 'WIDTH', 4)
  case, strategy = models_table.made(name), fd.PromptLookup(ngram=1, k=3)
  by_panels = fd.pack(case.model, case.params)
  assert is_packed(by_panels)
  out = dataclasses.replace(case, params=by_panels).decode(strategy, 6)
  np.testing.assert_array_equal(out.tokens, case.decode(strategy, 6).tokens)


@pytest.mark.parametrize('kind', ['markov', 'medusa', 'eagle', 'block'])
@pytest.mark.slow
def test_every_kind_of_draft_guesses_the_same(made, kind, monkeypatch):
  monkeypatch.setattr(fastdec.kernels.packed, 'WIDTH', 4)
  layers = StackConfig(
    d_model=16, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1, dtype='float64'
  )
  sizes = {'layers': layers, 'vocab_size': 70, 'd_target': 16}
  module, strategy = {
    'markov': (
      BlockwiseHeads(k=4, d_model=16, d_ff=8, rooted=True, markov=4, words=70),
      fd.Blockwise,
    ),
    'medusa': (MedusaHeads(depth=3, d_model=16, vocab_size=70), fd.Blockwise),
    'eagle': (EagleNetwork(**sizes), functools.partial(fd.Eagle, depth=3)),
    'block': (BlockNetwork(**sizes, k=4, markov=4), fd.BlockDraft),
  }[kind]
  fresh = jax.jit(module.init)(jax.random.key(3))
  params = jax.tree.map(lambda x: x.astype(np.float64), fresh)
  by_panels = fd.pack(module, params)
  assert is_packed(by_panels)
  out, expected = (
    fd.decode(MODEL, made[0], SOURCES, strategy((module, one)), max_len=8)
    for one in (by_panels, params)
  )
  np.testing.assert_array_equal(out.tokens, expected.tokens)
  np.testing.assert_array_equal(out.block_sizes, expected.block_sizes)


@pytest.mark.parametrize('shape', [(0, 24), (2, 0, 24)])
def test_no_rows_have_no_product(shape):
  kernel = jnp.ones((70, 24))
  assert project(jnp.ones(shape), pack_kernel(kernel)).shape == (*shape[:-1], 70)


def test_what_was_packed_is_had_back(made):
  params, _ = made
  back = drop_panels(fd.pack(MODEL, params))
  assert not is_packed(back) and all(
    map(operator.is_, jax.tree.leaves(back), jax.tree.leaves(params))
  )


def test_what_is_refused(made, tmp_path):
  for convert in (fd.pack, fd.quantize):
    with pytest.raises(fd.UserError, match='none of these parameters is a kernel of Transformer'):
      convert(MODEL, made[1])
  params = fd.pack(MODEL, made[0])
  with pytest.raises(fd.UserError, match='packed already: pack them only once'):
    fd.pack(MODEL, params)
  with pytest.raises(fd.UserError, match='packed: give the parameters from before packing'):
    fd.quantize(MODEL, params)
  with pytest.raises(fd.UserError, match='packed parameters are not written'):
    write(tmp_path / 'model.safetensors', params)
  assert not list(tmp_path.iterdir())
  with pytest.raises(fd.UserError, match='packed parameters cannot be placed on a mesh: place the'):
    place(params, make_mesh(MeshConfig()), ())
  with pytest.raises(fd.UserError, match='packed parameters are not trained, nor trained on'):
    compute_gradients(base_task(MODEL, start=params), params, {}, {}, jax.random.key(0))
