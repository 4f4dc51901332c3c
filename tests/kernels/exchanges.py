"""Compiles decoding for eight virtual CPU devices, and prints what they exchange in a call as JSON.

python -m tests.kernels.exchanges 'lm, float32, 2 x 4, 1 row, greedy' ...
"""

import dataclasses
import json
import os
import re
import sys
from typing import Any

from tests.compiling import xla_flags

os.environ['XLA_FLAGS'] = xla_flags('--xla_force_host_platform_device_count=8')

import jax
import jax.numpy as jnp
import numpy as np

import fastdec as fd
from benchmarks.program import Collective, abstract, find_collectives
from fastdec.decoding.request import Settings
from fastdec.decoding.run import Limits, make_calls, start
from fastdec.decoding.sampling import FEW
from fastdec.decoding.settings import MOST_TOKENS
from fastdec.decoding.strategy import nodes_of
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.kernels.quantized import Quantized
from fastdec.kernels.sharding import MeshConfig, choose_shardings, make_mesh, partition_of, using
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.training.drafts.start import layers_like
from tests.decoding import methods_table as table

# Any kernel, cache, or row of logits has more entries than the activations of a call.
D, WORDS, PROMPT, MOST = 128, 32768, 6, 64
SIZES: dict[str, Any] = {'vocab_size': WORDS, 'd_model': D, 'd_ff': 4 * D, 'heads': 8}
MODELS: dict[str, Any] = {
  'lm': LM(LMConfig(**SIZES, layers=1, tied=False)),
  'two key heads': LM(LMConfig(**SIZES, layers=1, key_heads=2)),  # which no device shares
  'translator': Transformer(TransformerConfig(**SIZES, encoder_layers=1, decoder_layers=1)),
}
SUMS = {'lm': 2, 'two key heads': 2, 'translator': 3}  # over devices, in a layer
LAYER = r'/jit\(_call_layer\)/|/decoder_0/'  # of the model, in the source of an operation
IN_LAYERS = rf'{LAYER}|/tower/'
STRATEGIES = {
  **{name: table.LOSSLESS[name] for name in table.LOSSLESS if name != 'every id separate'},
  **{f'{name}, sampled': make for name, make in table.DRAWN.items()},
  **table.OTHERS,
}


def place_shapes(module: Any, dtype: str, mesh: Any) -> tuple[Any, Any]:
  """Returns a module and the shapes of its parameters on the mesh."""
  shapes = abstract(module, dtype.removesuffix(' with sums'))
  if dtype.endswith('with sums'):
    shapes = jax.tree.map(_with_sums, shapes, is_leaf=lambda leaf: isinstance(leaf, Quantized))
  shardings = choose_shardings(shapes, mesh, partition_of(module, mesh.shape['model']))
  placed = jax.tree.map(
    lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes, shardings
  )
  if isinstance(module, BlockwiseHeads):  # of which strategies take slices
    placed = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), placed)
  return module, placed


def _with_sums(leaf: Any) -> Any:
  if not isinstance(leaf, Quantized):
    return leaf
  return dataclasses.replace(leaf, sums=jax.ShapeDtypeStruct(leaf.scale.shape, jnp.int32))


def make_kit(model: Any, dtype: str, mesh: Any) -> table.Kit:
  """Returns parts whose heads, widths and words divide over the devices."""
  heads: dict[str, Any] = {'k': 10, 'd_model': D, 'd_ff': D}
  network: dict[str, Any] = {'layers': layers_like(model, 1), 'vocab_size': WORDS, 'd_target': D}
  modules = {
    'separate': BlockwiseHeads(**heads),
    'paper': BlockwiseHeads(**heads, layout='paper'),
    'rooted': BlockwiseHeads(**heads, rooted=True, markov=8, words=WORDS),
    'medusa': MedusaHeads(depth=6, d_model=D, vocab_size=WORDS),
    'rooted medusa': MedusaHeads(depth=3, d_model=D, rooted=True),
    'eagle': EagleNetwork(**network, taps=(0, 1), fuses=True),
    'block': BlockNetwork(**network, k=4, markov=8),
  }

  def made(kind: str) -> tuple[Any, Any]:
    return place_shapes(modules[kind], dtype, mesh)

  pool = fd.build_pool([np.arange(2, 100)], ngram=table.DEEPEST)
  return table.Kit(made, place_shapes(model, dtype, mesh), made, words=16, pool=pool)


def exchange(case: str) -> tuple[list[Collective], int]:
  """Returns what is exchanged in a call, and the rows of a device's activations in it."""
  network, dtype, axes, rows, name = case.split(', ', 4)
  data, parts = map(int, axes.split(' x '))
  mesh, model = make_mesh(MeshConfig(data, parts)), MODELS[network]
  kit, own = make_kit(model, dtype, mesh), int(rows.split()[0])
  inputs, strategy = np.full((data * own, PROMPT), 5, np.int32), STRATEGIES[name](kit)
  settings = Settings(max_len=MOST, key=jax.random.key(0))
  run = start(model, kit.draft[1], inputs, strategy, settings)
  limits = Limits(calls=np.int32(MOST_TOKENS), room=run.sizes.count_room(run.prompt, run._lengths))
  with using(mesh):
    program = make_calls.lower(
      run._target, run._strategy, None, run._coming, limits, run.sizes.most_tokens(run.prompt)
    )
  return find_collectives(program.compile().as_text() or ''), own * nodes_of(strategy)


def find_faults(case: str) -> list[str]:
  """Returns what is larger, and what is more, than a call needs to exchange."""
  found, rows = exchange(case)
  filled = -(-rows // 4) * 4  # `kernels.forms` may fill up rows
  candidates = D
  if 'sampl' in case:
    candidates = FEW * int(case.split(', ')[2].split()[-1])
  faults = []
  for one in found:
    words = D if re.search(IN_LAYERS, one.source) else candidates
    if one.entries > filled * words:
      faults.append(f'{one.kind} {one.shape} {one.source}')

  # A layer sums its activations twice, or three times. In int8 it finds their maximum before.
  in_layers = [one for one in found if re.search(LAYER, one.source)]
  whole = [one for one in in_layers if one.entries >= rows * D]
  sums = SUMS[case.split(', ')[0]]
  if re.search('two.calls', case):  # which runs the layers twice
    sums *= 2
  if len(whole) > sums or ('speculative' not in case and len(in_layers) > 2 * sums):
    faults.append(f'{len(whole)} large and {len(in_layers)} exchanges in a layer')
  return faults


if __name__ == '__main__':
  if sys.argv[1] == '--all':
    for collective in exchange(sys.argv[2])[0]:
      print(collective)
  else:
    print(json.dumps({case: find_faults(case) for case in sys.argv[1:]}))
