"""In int8 a position's state and logits are the same bits, however many tokens its call reads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.api import causal
from fastdec.models.lm import LM, LMConfig

SHAPES = {  # two layers each, of real models' sizes
  'SmolLM2-135M': dict(d_model=576, d_ff=1536, heads=9, key_heads=3),
  'Gemma 3 270M': dict(d_model=640, d_ff=2048, heads=4, key_heads=1, head_width=256),
}
TEXT, TEXTS = 1024, 5  # 5,120 rows of every product
WIDTHS = (2, 4, 8, 16, 32, 64, 128)


def model_of(name):
  return LM(LMConfig(vocab_size=512, layers=2, windows=(0, 0), tied=True, **SHAPES[name]))


@functools.partial(jax.jit, static_argnames=('model', 'width'))
def read(model, params, tokens, width):
  """Logits and states of a text that is read by calls on `width` tokens each."""

  def call(cache, part):
    hidden, _, cache = model.apply(params, part[None], causal(width), cache)
    logits = model.unembed(params, hidden)
    return cache.commit(None, jnp.array([width], jnp.int32)), (hidden[0], logits[0])

  cache = model.init_cache(params, None, 1, len(tokens))
  _, (hidden, logits) = jax.lax.scan(call, cache, tokens.reshape(-1, width))
  return hidden.reshape(len(tokens), -1), logits.reshape(len(tokens), -1)


@pytest.mark.slow
@pytest.mark.parametrize('name', SHAPES)
def test_thousands_of_rows_are_the_same_bits_in_wide_calls_as_in_narrow_ones(name):
  model = model_of(name)
  params = fd.quantize(model, jax.jit(model.init)(jax.random.key(0)))
  differ = dict.fromkeys(WIDTHS, 0)
  for seed in range(TEXTS):
    tokens = jax.random.randint(jax.random.key(seed), (TEXT,), 0, model.vocab_size)
    narrow = read(model, params, tokens, 1)
    for width in WIDTHS:
      for one, other in zip(narrow, read(model, params, tokens, width), strict=True):
        differ[width] += int((np.asarray(one) != np.asarray(other)).any(-1).sum())
  assert differ == dict.fromkeys(WIDTHS, 0)


@pytest.mark.slow
def test_in_float32_they_are_not():
  """So the test above can fail."""
  model = LM(
    LMConfig(vocab_size=512, layers=2, windows=(0, 0), tied=True, **SHAPES['SmolLM2-135M'])
  )
  params = jax.jit(model.init)(jax.random.key(0))
  tokens = jax.random.randint(jax.random.key(0), (TEXT,), 0, model.vocab_size)
  narrow, wide = read(model, params, tokens, 1), read(model, params, tokens, 8)
  assert (np.asarray(narrow[0]) != np.asarray(wide[0])).any(-1).mean() > 0.5
