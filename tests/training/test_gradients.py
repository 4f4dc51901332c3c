"""Gradients of batches without tokens and of steps in parts; see also `test_parts`. Half precision
is used to compute, but not to store."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.training.gradients import compute_gradients
from fastdec.training.loop import make_step
from fastdec.training.losses import model_loss
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import Task, TrainState, base_task, frozen_heads_task
from tests.training.fakes import Bigram, on_device, packed, pairs

MODEL = Bigram()
# without dropout
SURE = Task(
  jax.jit(MODEL.init), lambda params, _, batch, key: model_loss(MODEL, params, batch, 0.1)
)


def close(a, b, rtol=1e-5):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-7), a, b)


def test_a_batch_of_padding_has_no_gradient():
  empty = jax.tree.map(np.zeros_like, packed(0, rows=6))
  compute = jax.jit(lambda *of: compute_gradients(SURE, *of, jax.random.key(1), 2))
  gradients, metrics = jax.device_get(compute(SURE.init(jax.random.key(0)), {}, empty))
  assert metrics['tokens'] == 0 and not any(leaf.any() for leaf in jax.tree.leaves(gradients))


def test_a_step_in_parts_is_a_step():
  optimizer = OptimizerConfig(d_model=6, warmup=5)
  after = []
  for parts in (1, 2):
    state = TrainState.create(SURE, optimizer.build(), jax.random.key(1))
    step = make_step(SURE, optimizer.build(), optimizer.learning_rate, parts)
    for _ in range(3):
      state, metrics = step(state, {}, on_device(0, rows=6))
    after.append((state.params, metrics))
  close(*after, rtol=1e-4)


@pytest.fixture(scope='module')
def trained():
  """Ten steps in either precision: (model, state, metrics)."""
  sizes = TransformerConfig(
    vocab_size=30, d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1
  )
  optimizer, by_type = OptimizerConfig(d_model=16, warmup=10, constant=0.2), {}
  for dtype in ('float32', 'bfloat16'):
    model = Transformer(dataclasses.replace(sizes, dtype=dtype))
    task = base_task(model)
    state = TrainState.create(
      dataclasses.replace(task, init=jax.jit(task.init)), optimizer.build(), jax.random.key(1)
    )
    step, metrics = make_step(task, optimizer.build(), optimizer.learning_rate), []
    for i in range(10):
      state, of_step = step(state, {}, pairs(i, rows=8))
      metrics.append(of_step)
    by_type[dtype] = model, state, metrics
  return by_type


@pytest.mark.slow
def test_half_precision_keeps_float32_parameters_and_moments(trained):
  for _, state, _ in trained.values():
    leaves = [leaf for leaf in jax.tree.leaves((state.params, state.opt_state)) if leaf.ndim]
    assert {leaf.dtype for leaf in leaves} == {np.dtype('float32')}
  model, state, _ = trained['bfloat16']
  assert jax.eval_shape(model.hidden, state.params, pairs(0)).dtype == jnp.bfloat16


def test_losses_in_half_precision_are_near_those_in_float32(trained):
  wide, half = (np.array([float(m['loss']) for m in metrics]) for _, _, metrics in trained.values())
  np.testing.assert_allclose(half, wide, rtol=0.02)
  assert (half != wide).any()
  assert half[-3:].mean() < half[:3].mean()


def test_what_was_trained_in_half_precision_loads_in_either(trained, tmp_path):
  model, state, _ = trained['bfloat16']
  Tokenizer.train(
    ['a dog runs', 'ein Hund rennt', 'the cat sits', 'die Katze sitzt'],
    tmp_path / 'pieces.model',
    30,
  )
  folders.save(model, state.params, tmp_path / 'model', tokenizer=tmp_path / 'pieces.model')
  for loaded_as, dtype in ((None, 'bfloat16'), ('float32', 'float32'), ('bfloat16', 'bfloat16')):
    loaded, params = folders.load(tmp_path / 'model', loaded_as)
    assert loaded.config.dtype == dtype and {
      leaf.dtype.name for leaf in jax.tree.leaves(params)
    } == {dtype}
  close(folders.load(tmp_path / 'model', 'float32')[1], state.params, rtol=0)
  # to train on
  close(folders.open(tmp_path / 'model').params(as_stored=True), state.params, rtol=0)


def test_parameters_in_int8_are_neither_trained_nor_trained_on():
  model = Transformer(
    TransformerConfig(vocab_size=30, d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)
  )
  params = jax.jit(model.init)(jax.random.key(0))
  in_int8, key = fd.quantize(model, params), jax.random.key(1)
  heads = BlockwiseHeads(k=2, d_model=8, d_ff=8)
  for task, trained in (
    (base_task(model, start=in_int8), in_int8),
    (frozen_heads_task(model, heads, in_int8), heads.init(key)),
  ):
    with pytest.raises(fd.UserError, match='parameters in int8 cannot be trained, nor trained on'):
      compute_gradients(task, trained, task.frozen, pairs(0, rows=2), key)
