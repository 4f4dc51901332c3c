"""Medusa's heads begin as the model's own head, compute the paper's formula, and train one at a
time."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.api import causal, vocabulary_projection
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.training.losses import head_accuracy, head_loss
from fastdec.training.state import frozen_heads_task

D, V, DEPTH = 8, 13, 3
STACKS = {
  'vocab_size': V, 'd_model': D, 'd_ff': 12, 'heads': 2, 'encoder_layers': 1, 'decoder_layers': 1,
}  # fmt: skip
SIZES = {'own': {'vocab_size': V}, 'shared': {}, 'two blocks': {'vocab_size': V, 'layers': 2}}
MODELS = {
  'lm': LM(LMConfig(vocab_size=V, d_model=D, d_ff=12, layers=1, heads=2, tied=False)),
  'transformer': Transformer(TransformerConfig(**STACKS)),
  'marian': Transformer(TransformerConfig(**STACKS, output_bias=True)),
  't5': T5(T5Config(**STACKS, d_kv=4)),
}
HIDDEN = jnp.asarray(np.random.default_rng(2).normal(size=(3, D)), jnp.float32)


@functools.cache
def noisy(module):
  rng, fresh = np.random.default_rng(1), jax.jit(module.init)(jax.random.key(0))
  noise = lambda x: jnp.asarray(np.asarray(x) + 0.3 * rng.normal(size=x.shape), x.dtype)
  return jax.tree.map(noise, fresh)


@functools.cache
def made(kind, **more):
  heads = MedusaHeads(depth=DEPTH, d_model=D, **SIZES[kind], **more)
  return heads, noisy(heads)


TABLE = np.random.default_rng(3).normal(size=(V, D)).astype(np.float32)


def project(x):
  return x @ TABLE.T


@functools.partial(jax.jit, static_argnums=0)
def all_logits(heads, params):
  return heads.logits(params, HIDDEN, project)


@functools.partial(jax.jit, static_argnums=0)
def logits_at(heads, params, offset):
  return heads.logits_at(params, HIDDEN, offset, project)


@pytest.mark.parametrize('kind', ['own', 'shared'])
@pytest.mark.parametrize('name', MODELS)
@pytest.mark.wide('lm-own')
def test_every_head_begins_by_predicting_what_the_model_does(name, kind):
  model = MODELS[name]
  params = noisy(model)
  own = SIZES[kind] | ({'output_bias': True} if name == 'marian' and kind == 'own' else {})
  heads = MedusaHeads(depth=DEPTH, d_model=D, layers=2, **own)
  at_model = lambda x: vocabulary_projection(model)(params, x)
  logits = jax.jit(lambda own: heads.logits(own, HIDDEN, at_model))(heads.start(model, params))
  expected = jax.jit(model.unembed)(params, HIDDEN)
  assert logits.shape == (3, DEPTH, V)
  for of_head in np.asarray(logits).swapaxes(0, 1):
    np.testing.assert_allclose(of_head, expected, atol=2e-6)


@pytest.mark.parametrize('kind', SIZES)
def test_a_head_is_residual_blocks_and_a_projection(kind):
  heads, params = made(kind)
  logits, silu = np.asarray(all_logits(heads, params)), lambda x: x / (1 + np.exp(-x))
  for i in range(DEPTH):
    own, x = jax.tree.map(np.asarray, params[f'head_{i}']), np.asarray(HIDDEN)
    for j in range(heads.layers):
      x = x + silu(x @ own[f'block_{j}']['kernel'].T + own[f'block_{j}']['bias'])
    expected = project(x) if kind == 'shared' else x @ own['projection']['kernel'].T
    np.testing.assert_allclose(logits[:, i], expected, atol=1e-5)


@pytest.mark.parametrize('kind', SIZES)
def test_a_single_head_predicts_what_it_does_among_all_and_offset_0_is_the_model(kind):
  heads, params = made(kind)
  whole = np.asarray(all_logits(heads, params))
  assert heads.offsets == (1, 2, 3)
  for offset in heads.offsets:
    alone = logits_at(heads, params, np.int32(offset))
    np.testing.assert_allclose(alone, whole[:, offset - 1], atol=1e-5)
  np.testing.assert_allclose(logits_at(heads, params, np.int32(0)), project(HIDDEN), atol=1e-5)


def test_an_output_bias_is_added():
  heads, params = made('own', output_bias=True)
  without, _ = made('own')
  added = np.asarray(all_logits(heads, params)) - np.asarray(all_logits(without, params))
  for i in range(DEPTH):
    np.testing.assert_allclose(
      added[:, i], np.tile(params[f'head_{i}']['projection']['bias'], (3, 1)), atol=1e-5
    )


@pytest.mark.parametrize('kind', SIZES)
def test_drafting_leaves_out_later_heads(kind):
  heads, params = made(kind)
  fewer, chosen = heads.drafting(params, 2)
  assert sorted(chosen) == ['head_0', 'head_1'] and fewer.depth == 2
  expected = np.asarray(all_logits(heads, params))[:, :2]
  np.testing.assert_array_equal(all_logits(fewer, chosen), expected)


# ---- training

MODEL = MODELS['transformer']
SENTENCES = np.tile(np.array([[4, 5, 6, 7, 8, 1], [9, 10, 11, 12, 3, 1]], np.int32), (2, 1))
BATCH = {
  f'{side}{part}': jnp.asarray(value)
  for side in ('source', 'target')
  for part, value in (
    ('', SENTENCES),
    ('_segment', SENTENCES > 0),
    ('_position', np.tile(np.arange(6), (4, 1))),
  )
} | {f'{side}_segment': jnp.ones((4, 6), jnp.int32) for side in ('source', 'target')}


@pytest.mark.parametrize('kind', ['own', 'shared'])
@pytest.mark.wide('own')
def test_the_gradient_of_one_head_touches_no_other(kind):
  heads, params = made(kind)
  trunk = jax.jit(MODEL.init)(jax.random.key(0))
  loss = lambda p: head_loss(MODEL, heads, trunk, p, BATCH, jnp.int32(2), 0.1)[0]
  gradient = jax.jit(jax.grad(loss))(params)
  assert [bool(np.any(gradient[f'head_{i}']['block_0']['kernel'])) for i in range(DEPTH)] == [
    False,
    True,
    False,
  ]


@pytest.mark.parametrize('draw', ['one', 'all'])
@pytest.mark.wide('one')
def test_heads_on_a_frozen_trunk_learn_and_begin_at_the_model(draw):
  """They begin with the model's own projection and blocks of zeros, and learn from there."""
  heads = MedusaHeads(depth=DEPTH, d_model=D, vocab_size=V)
  trunk = noisy(MODEL)
  start = heads.start(MODEL, trunk)
  task = frozen_heads_task(MODEL, heads, trunk, start=start, draw=draw)
  params = task.init(jax.random.key(1))
  jax.tree.map(np.testing.assert_array_equal, params, start)
  before = head_accuracy(MODEL, heads, trunk, params, [BATCH])
  assert len(before) == DEPTH + 1

  @jax.jit
  def step(params, key):
    gradient = jax.grad(lambda p: task.loss(p, task.frozen, BATCH, key)[0])(params)
    return jax.tree.map(lambda x, g: x - 0.5 * g, params, gradient)

  for i in range(150):
    params = step(params, jax.random.key(i))
  after = head_accuracy(MODEL, heads, trunk, params, [BATCH])
  assert after[0] == before[0] and all(
    a > b + 0.3 for a, b in zip(after[1:], before[1:], strict=True)
  )
  assert all(np.any(params[f'head_{i}']['block_0']['kernel']) for i in range(DEPTH))


# ---- decoding

PROMPTS, LENGTHS = (
  np.array([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]], np.int32),
  np.array([4, 2, 1]),
)


@pytest.mark.slow
def test_heads_in_half_precision_compute_in_the_models_type():
  model = dataclasses.replace(
    MODELS['lm'], config=dataclasses.replace(MODELS['lm'].config, dtype='bfloat16')
  )
  params = model.init(jax.random.key(0))
  hidden, _, _ = model.apply(
    params, jnp.asarray(PROMPTS[:1]), causal(4), model.init_cache(params, None, 1, 4)
  )
  heads, own = made('own')
  assert (
    hidden.dtype == jnp.bfloat16 and heads.logits(own, hidden[:, 0], project).dtype == jnp.float32
  )


# ---- folders and mistakes


def test_model_folders_hold_them(tmp_path):
  heads, params = made('two blocks')
  model = MODELS['transformer']
  folders.save(model, noisy(model), tmp_path / 'model', (heads, params))
  loaded, loaded_params = fd.load_heads(tmp_path)
  assert loaded == heads and fd.load(tmp_path)[0] == model and folders.open(tmp_path).has_heads
  jax.tree.map(np.testing.assert_array_equal, loaded_params, params)


def decode_with(heads):
  model = MODELS['lm']
  strategy = fd.Medusa((heads, noisy(heads)), [[0], [1]])
  return fd.decode(model, noisy(model), PROMPTS, strategy, prompt_lengths=LENGTHS)


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda: MedusaHeads(depth=0, d_model=D), 'depth=0 is not possible: give 1 or more'),
    (lambda: MedusaHeads(depth=1, d_model=D, output_bias=True), 'give vocab_size too'),
    (
      lambda: decode_with(MedusaHeads(depth=1, d_model=16)),
      'hidden states of 16, and this model has 8',
    ),
    (
      lambda: decode_with(MedusaHeads(depth=1, d_model=D, vocab_size=12)),
      'among 12 words, and this model has 13',
    ),
    (
      lambda: MedusaHeads(depth=1, d_model=D, vocab_size=5).start(MODEL, noisy(MODEL)),
      'vocab_size=5 must be the number of words of the model, 13',
    ),
    (
      lambda: MedusaHeads(1, D, V).start(MODELS['marian'], noisy(MODELS['marian'])),
      'give the heads output_bias=True',
    ),
  ],
)
def test_bad_requests_are_refused(call, message):
  with pytest.raises(fd.UserError, match=message):
    call()
