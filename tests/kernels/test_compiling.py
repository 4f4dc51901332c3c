"""In int8 a text does not depend on how many tokens a call reads: equality, bit for bit."""

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding import decode
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig

# Eight rows of 576, or of 64 slots for nine heads, are more than the 4,096 entries from which on
# XLA's CPU backend would sum by a library.
SIZES = {'vocab_size': 300, 'd_model': 576, 'd_ff': 640, 'heads': 9}
STACKS = {**SIZES, 'encoder_layers': 1, 'decoder_layers': 2, 'eos_ids': ()}
MODELS = {
  'grouped heads': LM(LMConfig(**SIZES, key_heads=3, layers=2, eos_ids=())),
  'a head each': LM(LMConfig(**SIZES, layers=2, eos_ids=())),
  'translator': Transformer(TransformerConfig(**STACKS)),
  't5': T5(T5Config(**STACKS, d_kv=64)),
}
STRATEGIES = [fd.PromptLookup(k=3), fd.PromptLookup(k=8), fd.Jacobi(16)]


def logprobs_of(model, params, inputs, strategy):
  """Tokens, and log-probabilities without rounding."""
  out = fd.decode(model, params, inputs, strategy, max_len=24, logprobs=1)
  return np.asarray(out.tokens), np.asarray(out.logprobs)


@pytest.mark.wide('grouped heads', 'translator')
@pytest.mark.parametrize('name', MODELS)
def test_calls_of_any_width_write_the_same_bits(name):
  model = MODELS[name]
  params = fd.quantize(model, jax.jit(model.init)(jax.random.key(0)))
  inputs = np.random.default_rng(0).integers(2, 300, (2, 70), np.int32)
  tokens, logprobs = logprobs_of(model, params, inputs, fd.Greedy())
  for strategy in STRATEGIES:
    wide_tokens, wide_logprobs = logprobs_of(model, params, inputs, strategy)
    np.testing.assert_array_equal(wide_tokens, tokens)
    np.testing.assert_array_equal(wide_logprobs, logprobs)


def test_without_the_options_bits_depend_on_the_width(monkeypatch):
  """The test above would see it: here the programs are those of a plain `jax.jit`."""
  model = MODELS['grouped heads']
  params = fd.quantize(model, jax.jit(model.init)(jax.random.key(0)))
  inputs = np.random.default_rng(0).integers(2, 300, (2, 70), np.int32)
  _, logprobs = logprobs_of(model, params, inputs, fd.Greedy())
  monkeypatch.setattr(
    decode._decode, 'program', jax.jit(decode._decode._function, static_argnames='bucket')
  )
  _, others = logprobs_of(model, params, inputs, fd.PromptLookup(k=8))
  assert (others != logprobs).any()
