"""Memory of published models by their shapes alone: no weights are made, and no call is run.

Weights and caches are counted, and the prompt's call is compiled, as fd.decode would run it on this
backend. A chunk is the part of a prompt that one call scores.

  python benchmarks/memory.py --out=out/memory.jsonl
  python benchmarks/memory.py --models qwen3-8b --batches 1 --tokens 4096 --chunks 256

A card fits what is at most its nominal size in units of 10^9 bytes: it has 7 % more than that, for
the driver and for memory that lies in pieces.
"""

import argparse
import dataclasses
import functools
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastdec.decoding.inputs import width_of
from fastdec.evaluation import rows
from fastdec.folders.families import families
from fastdec.models.api import Capacity, causal
from fastdec.models.lm import LM
from fastdec.products import with_kernels
from fastdec.quantized import quantized

CARDS = (24, 48, 80)  # 10^9 bytes
ROPE_3_1 = {
  'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
  'original_max_position_embeddings': 8192,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {  # their published config.json, as far as it is read
  'qwen3-8b': {
    'model_type': 'qwen3', 'vocab_size': 151936, 'hidden_size': 4096, 'intermediate_size': 12288,
    'num_hidden_layers': 36, 'num_attention_heads': 32, 'num_key_value_heads': 8, 'head_dim': 128,
    'rms_norm_eps': 1e-6, 'rope_theta': 1e6, 'max_position_embeddings': 40960,
    'sliding_window': None, 'use_sliding_window': False, 'eos_token_id': 151645,
  },
  'llama-3.1-8b': {
    'model_type': 'llama', 'vocab_size': 128256, 'hidden_size': 4096, 'intermediate_size': 14336,
    'num_hidden_layers': 32, 'num_attention_heads': 32, 'num_key_value_heads': 8,
    'rms_norm_eps': 1e-5, 'rope_theta': 5e5, 'rope_scaling': ROPE_3_1,
    'max_position_embeddings': 131072, 'eos_token_id': 128001,
  },
  'gemma-3-12b': {
    'model_type': 'gemma3_text', 'vocab_size': 262208, 'hidden_size': 3840,
    'intermediate_size': 15360, 'num_hidden_layers': 48, 'num_attention_heads': 16,
    'num_key_value_heads': 8, 'head_dim': 256, 'rope_scaling': {'rope_type': 'linear', 'factor': 8},
    'sliding_window': 1024, 'max_position_embeddings': 131072, 'eos_token_id': 1,
  },
  'toy': {
    'model_type': 'gemma3_text', 'vocab_size': 500, 'hidden_size': 32, 'intermediate_size': 64,
    'num_hidden_layers': 12, 'num_attention_heads': 2, 'num_key_value_heads': 1,
    'head_dim': 16, 'sliding_window': 8, 'max_position_embeddings': 4096, 'eos_token_id': 1,
  },
}  # fmt: skip
OF_A_KIND = 2  # layers that are compiled of each kind: temporary memory does not grow with more


def model_of(name: str) -> LM:
  """Returns a model, and makes none of its parameters."""
  config = MODELS[name]
  return families()[config['model_type']].model_of(config, {}, 'bfloat16')


def params_of(model: LM, dtype: str) -> Any:
  """Returns the shapes of parameters as `fd.load` keeps them."""

  def made(key: jax.Array) -> Any:
    params = jax.tree.map(lambda x: x.astype(model.config.dtype), model.init(key))
    return with_kernels(model, params, quantized) if dtype == 'int8' else params

  return jax.eval_shape(made, jax.random.key(0))


def cache_of(model: LM, batch: int, tokens: int, chunk: int) -> Any:
  """Returns the shapes of a cache with room for so many tokens."""
  make = functools.partial(model.init_cache, None, None, batch, Capacity(tokens, chunk))
  return jax.eval_shape(make)


def shortened(model: LM) -> LM:
  """Returns the model with a few layers of each kind."""
  windows = [w for w in dict.fromkeys(model.config.layer_windows) for _ in range(OF_A_KIND)]
  sizes = {'layers': len(windows), 'windows': tuple(windows) if any(windows) else ()}
  return LM(dataclasses.replace(model.config, **sizes))


def bytes_of(tree: Any) -> int:
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def prefill_bytes(model: LM, dtype: str, batch: int, tokens: int, chunk: int) -> int:
  """Returns what a call on a chunk takes beside weights and cache, by the compiled program."""

  def call(params: Any, tokens: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
    hidden, _, cache = model.apply(params, tokens, causal(chunk), cache)
    return model.unembed(params, hidden[:, -1:]), cache.commit(None, jnp.full(batch, chunk))

  prompt = jax.ShapeDtypeStruct((batch, chunk), jnp.int32)
  shapes = params_of(model, dtype), prompt, cache_of(model, batch, tokens, chunk)
  found = jax.jit(call, donate_argnums=2).lower(*shapes).compile().memory_analysis()
  assert found is not None  # of a CPU or a GPU
  return found.temp_size_in_bytes


def measured(args: argparse.Namespace, name: str, dtype: str) -> list[rows.Row]:
  """Counts a model in a type, at each batch and length."""
  model = model_of(name)
  weights, found = bytes_of(params_of(model, dtype)), []
  for batch in args.batches:
    for tokens in args.tokens:
      cache = bytes_of(cache_of(model, batch, tokens, min(args.chunks)))
      peaks = {
        chunk: prefill_bytes(shortened(model), dtype, batch, tokens, chunk)
        for chunk in args.chunks
        if chunk <= tokens
      }
      total = weights + cache + min(peaks.values())
      found.append({
        'shape': name, 'dtype': dtype, 'batch': batch, 'tokens': tokens,
        'weights_gb': weights / 1e9, 'cache_kb_a_token': cache / batch / tokens / 1e3,
        'cache_gb': cache / 1e9, **{f'prefill_{c}_gb': peak / 1e9 for c, peak in peaks.items()},
        'total_gb': total / 1e9, 'fits': next((c for c in CARDS if total <= c * 1e9), None),
        'programs': len(np.unique(width_of(np.arange(1, tokens + 1)))),
      })  # fmt: skip
  return found


def main() -> None:
  parser = argparse.ArgumentParser(usage=__doc__)
  parser.add_argument('--out', type=pathlib.Path, default='out/memory.jsonl', help='file of rows')
  parser.add_argument('--models', nargs='+', choices=MODELS, default=[*MODELS][:-1])
  parser.add_argument('--dtypes', nargs='+', default=['bfloat16', 'int8'])
  parser.add_argument('--batches', nargs='+', type=int, default=[1, 32])
  parser.add_argument('--tokens', nargs='+', type=int, default=[4096, 32768])
  parser.add_argument('--chunks', nargs='+', type=int, default=[256, 1024, 4096])
  args = parser.parse_args()
  conditions = {'config': ' '.join(sys.argv[1:]), **rows.conditions()}
  for name in args.models:
    for dtype in args.dtypes:
      print(f'{name}, {dtype}: compiling', flush=True)
      for row in measured(args, name, dtype):
        rows.append(args.out, row | conditions)
        print(rows.table([row]), flush=True)


if __name__ == '__main__':
  main()
