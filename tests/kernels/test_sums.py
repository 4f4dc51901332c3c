"""In int8 a text does not depend on how many tokens a call reads: equality, bit for bit.

With wide heads it may from 16 tokens on (docs/own/exact.md)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.kernels import sums
from fastdec.models import attention
from fastdec.models.api import causal
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig

# Eight rows of 576 are more than the 4,096 entries from which on XLA's CPU backend sums by a
# library, and so are nine heads of eight rows with 96 slots.
SIZES = {'vocab_size': 300, 'd_model': 576, 'd_ff': 640, 'heads': 9}
STACKS = {**SIZES, 'encoder_layers': 1, 'decoder_layers': 2, 'eos_ids': ()}
MODELS = {
  'grouped heads': LM(LMConfig(**SIZES, key_heads=3, layers=2, eos_ids=())),
  'a head each': LM(LMConfig(**SIZES, layers=2, eos_ids=())),
  'translator': Transformer(TransformerConfig(**STACKS)),
  't5': T5(T5Config(**STACKS, d_kv=64)),
}
# as programs are compiled outside of these tests
OPTIMISED = {'xla_backend_optimization_level': 3, 'xla_cpu_use_fusion_emitters': True}
TOKENS = np.random.default_rng(0).integers(2, 300, (1, 64), np.int32)


def logits_of(model, params, widths):
  """Returns the logits of the last 16 tokens, read after the others in calls of each
  width."""

  @functools.partial(jax.jit, compiler_options=OPTIMISED)
  def read(tokens, cache):
    hidden, _, cache = model.apply(params, tokens, causal(tokens.shape[1]), cache)
    cache = cache.commit(None, jnp.full(1, tokens.shape[1], jnp.int32))
    return model.unembed(params, hidden), cache

  memory, by_width = jax.jit(model.encode)(params, jnp.asarray(TOKENS[:, :9])), []
  _, begun = read(TOKENS[:, :48], model.init_cache(params, memory, 1, 96))
  for width in widths:
    logits, cache = [], begun
    for start in range(48, 64, width):
      one, cache = read(TOKENS[:, start : start + width], cache)
      logits.append(np.asarray(one[0]))
    by_width.append(np.concatenate(logits))
  return by_width


@pytest.mark.wide('grouped heads', 'translator')
@pytest.mark.parametrize('name', MODELS)
def test_calls_of_any_width_compute_the_same_bits(name):
  model = MODELS[name]
  params = fd.quantize(model, jax.jit(model.init)(jax.random.key(0)))
  alone, *wider = logits_of(model, params, (1, 2, 8, 16))
  for logits in wider:
    np.testing.assert_array_equal(logits, alone)


def test_by_xlas_sums_bits_depend_on_the_width(monkeypatch):
  """The test above would see it."""
  config = dataclasses.replace(
    MODELS['grouped heads'].config, norm_epsilon=2e-6
  )  # so that it is traced again
  monkeypatch.setattr(sums, 'row_mean', lambda x: x.mean(axis=-1, keepdims=True))
  monkeypatch.setattr(attention, 'softmax', jax.nn.softmax)
  params = fd.quantize(LM(config), jax.jit(LM(config).init)(jax.random.key(0)))
  wide, alone = logits_of(LM(config), params, (8, 1))
  assert (wide != alone).any()


def computed(x):
  """Our functions, and the gradients of three of them next to those of JAX's functions."""
  slope = lambda f: jax.grad(lambda x: jnp.sin(f(x)).sum())(x)
  values = (
    sums.row_sum(x), sums.row_max(x), sums.row_mean(x)[..., 0], sums.softmax(x),
    sums.normalize(x, 0.5),
  )  # fmt: skip
  pairs = (
    (sums.softmax, jax.nn.softmax),
    (sums.row_sum, lambda x: x.sum(-1)),
    (lambda x: sums.normalize(x, 0.5), lambda x: x / jnp.sqrt((x**2).mean(-1)[:, None] + 0.5)),
  )
  return values, [(slope(ours), slope(theirs)) for ours, theirs in pairs]


def on_another_platform(*args, cpu, default):
  return default(*args)


@pytest.mark.parametrize('width', [1, 2, 3, 9, 64, 576])
@pytest.mark.parametrize('platform', ['cpu', 'another'])
def test_sums_and_their_gradients(width, platform, monkeypatch):
  if platform != 'cpu':
    monkeypatch.setattr(jax.lax, 'platform_dependent', on_another_platform)
  x = np.random.default_rng(1).normal(size=(2, width))
  with jax.enable_x64(True):
    (total, largest, mean, weights, normal), gradients = jax.jit(lambda x: computed(x))(x)
  np.testing.assert_allclose(total, x.sum(-1), rtol=1e-12)
  np.testing.assert_array_equal(largest, x.max(-1))
  np.testing.assert_allclose(mean, x.mean(-1), rtol=1e-12)
  np.testing.assert_allclose(weights, np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-12)
  root = np.sqrt((x**2).mean(-1, keepdims=True) + 0.5)
  np.testing.assert_allclose(normal, x / root, rtol=1e-12)
  for ours, theirs in gradients:
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize('more', [1, 7, 32, 100])
def test_slots_that_are_never_read_change_no_bit(more):
  """Caches have as many slots as their calls have nodes."""
  x = np.random.default_rng(2).normal(size=(3, 121)).astype(np.float32)
  both = jax.jit(lambda logits, x: (sums.softmax(logits), sums.row_sum(x)))
  weights, total = both(x, x)
  padded = np.pad(x, ((0, 0), (0, more)), constant_values=-1e30)
  wider, same_total = jax.device_get(both(padded, np.pad(x, ((0, 0), (0, more)))))
  np.testing.assert_array_equal(wider[:, :121], weights)
  np.testing.assert_array_equal(same_total, total)
