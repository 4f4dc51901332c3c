"""Compiles training steps for GPUs that are only described, and counts what they would run.

As `benchmarks/program.py` does for decoding; it says what must be installed. The model is
`transformer_base` over 32,000 words, each GPU has 96 rows of 256 tokens in bfloat16.

  .gpu/bin/python benchmarks/training.py --tasks base --layers 1 2 --gpus 8
  .gpu/bin/python benchmarks/training.py --tasks base --layers 1 --show 30   # the longest kernels

All columns are of one GPU:
  kernels: of a step, with those of loops as often as they run
  TFLOPs: of products; wide: of products that do not read bfloat16
  GB: that kernels read and write
  on paper ms: the sum over kernels of their FLOPs or bytes at the rates of the data sheet, or 2 us
  of peak: the FLOPs at the peak rate, by that time
  exchanged MB: by all collectives; exchanges: their number
  temporary GB: memory of the program, besides its arguments
"""

import argparse
import collections
import os
import re
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from program import BANDWIDTH, COLLECTIVES, H100, LAUNCH, count_bytes, split_computations

from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.kernels.mesh import AUTO
from fastdec.kernels.sharding import AXES, using
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from fastdec.training import losses
from fastdec.training.drafts import losses as draft_losses
from fastdec.training.drafts.losses import DraftLoss
from fastdec.training.drafts.start import layers_like
from fastdec.training.drafts.tasks import frozen_draft_task
from fastdec.training.loop import make_step
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import (
  Task,
  TrainState,
  base_task,
  finetuned_heads_task,
  frozen_heads_task,
)

PEAK = {'bf16': 989e12, 'f32': 494e12}  # FLOPs a second
TASKS = ('base', 'drawn', 'all', 'places', 'together', 'eagle', 'block')
INSTRUCTION = re.compile(r'\s*(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$')
NO_KERNELS = ('parameter', 'constant', 'bitcast', 'tuple', 'get-tuple-element', 'partition-id')
LENGTH = 256


class Step(NamedTuple):
  """An instruction of a compiled program; shapes are HLO text."""

  name: str
  output: str
  operation: str
  inputs: tuple[str, ...]  # names
  line: str
  is_root: bool


class Kernel(NamedTuple):
  """A kernel, or a collective."""

  step: Step
  flops: float
  dtype: str  # that its products read
  bytes: float

  @property
  def seconds(self) -> float:
    rate = PEAK['bf16' if self.dtype == 'bf16' else 'f32']
    return max(LAUNCH, self.bytes / BANDWIDTH, self.flops / rate)


def find_kernels(text: str) -> list[Kernel]:
  """Returns the kernels and collectives of an HLO text, those of loops as often as they run."""
  entry = re.search(r'(?m)^ENTRY %?([\w.\-]+)', text)
  assert entry is not None
  computations, shapes = {}, {}
  for name, lines in split_computations(text):
    steps = [_read_step(match, match.string) for match in map(INSTRUCTION.match, lines) if match]
    computations[name] = steps
    shapes |= {step.name: step.output for step in steps}
  return list(_walk(computations, shapes, entry[1]))


def _read_step(match: re.Match[str], line: str) -> Step:
  # Operands end with the parenthesis that closes the first one.
  depth, operands = 1, ''
  for letter in match[5]:
    depth += (letter == '(') - (letter == ')')
    if not depth:
      break
    operands += letter
  inputs = tuple(re.findall(r'%([\w.\-]+)', operands))
  return Step(match[2], match[3], match[4], inputs, line, bool(match[1]))


def _walk(computations: dict[str, list[Step]], shapes: dict[str, str], name: str) -> Any:
  for step in computations[name]:
    kind = step.operation.removesuffix('-start')
    called = re.findall(
      r'(?:calls|to_apply|body|branch_computations|(?:true|false)_computation)='
      r'(\{[^}]*\}|%?[\w.\-]+)', step.line,
    )  # fmt: skip
    inner = [one for group in called for one in re.findall(r'[\w.\-]+', group)]
    if kind in ('while', 'call', 'conditional', 'async'):
      passes = re.search(r'"known_trip_count":\{"n":"(\d+)"', step.line)
      for one in inner:
        yield from int(passes[1] if passes else 1) * list(_walk(computations, shapes, one))
    elif kind in COLLECTIVES:
      yield Kernel(step, 0, '', count_bytes(step.output))
    elif kind == 'fusion':
      yield _count_fusion(step, computations[inner[0]], shapes)
    elif kind not in NO_KERNELS and not kind.endswith('-done'):
      flops, dtype = _count_product(step, shapes)
      moved = sum(count_bytes(shapes[each]) for each in step.inputs) + count_bytes(step.output)
      yield Kernel(step, flops, dtype, moved)


def _count_fusion(step: Step, body: list[Step], shapes: dict[str, str]) -> Kernel:
  """Counts a fusion: what it reads of each input, what it writes, and its products."""
  readers = collections.defaultdict(list)
  for one in reversed(body):
    for each in one.inputs:
      if one.operation == 'bitcast':
        readers[each] += readers[one.name]
      else:
        readers[each].append(one)

  flops, dtype, moved = 0.0, '', 0.0
  for one in body:
    if one.operation == 'parameter':
      # If an array is only cut, parts of it are read; if it is overwritten in part, none is.
      kinds = {(each.operation, each.inputs[0]) for each in readers[one.name]}
      if kinds and all(kind in ('slice', 'dynamic-slice', 'gather') for kind, _ in kinds):
        moved += sum(count_bytes(each.output) for each in readers[one.name])
      elif not all(kind in ('dynamic-update-slice', 'scatter') for kind, _ in kinds):
        moved += count_bytes(one.output)
    elif one.operation in ('dot', 'convolution'):
      product, dtype = _count_product(one, shapes)
      flops += product
    if one.is_root:
      written = one.output
      if one.operation == 'dynamic-update-slice':
        written = shapes[one.inputs[1]]
      moved += count_bytes(written)
  return Kernel(step, flops, dtype, moved)


def _count_product(step: Step, shapes: dict[str, str]) -> tuple[float, str]:
  contracted = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)', step.line)
  if contracted is None:
    return 0, ''
  sizes = []
  for shape in (step.output, shapes[step.inputs[0]]):
    dtype, dims = re.findall(r'(\w+)\[([\d,]*)\]', shape)[0]
    sizes.append([int(size) for size in dims.split(',') if size])
  axes = [int(axis) for axis in re.findall(r'\d+', contracted[1])]
  return 2 * float(np.prod(sizes[0]) * np.prod([sizes[1][axis] for axis in axes])), dtype


def make_task(kind: str, model: Any, trunk: Any, settings: argparse.Namespace) -> Task:
  """Returns a task on shapes of the trunk's parameters."""
  heads, places = BlockwiseHeads(k=10, d_model=512, d_ff=2048), settings.places
  if kind == 'base':
    return base_task(model)
  if kind == 'together':
    return finetuned_heads_task(model, heads, trunk, draw='all', anchors=places, p1_share=0.5)
  if kind in ('drawn', 'all', 'places'):
    anchors = places if kind == 'places' else 0
    return frozen_heads_task(
      model, heads, trunk, draw='one' if kind == 'drawn' else 'all', anchors=anchors
    )
  sizes: Any = {'layers': layers_like(model, 1), 'vocab_size': 32000, 'd_target': 512}
  network: Any = EagleNetwork(**sizes)
  if kind == 'block':
    network = BlockNetwork(**sizes, k=8, markov=64)
  like = jax.eval_shape(network.init, jax.random.key(0))
  start = Bound(network, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like))
  return frozen_draft_task(Bound(model, trunk), start, DraftLoss(anchors=places))


def compile_step(kind: str, layers: int, settings: argparse.Namespace) -> Any:
  """Compiles a training step of transformer_base with this number of layers in each stack."""
  topology = topologies.get_topology_desc(
    platform='cuda', topology=f'1x1x{settings.gpus}', target_config=H100
  )
  mesh = Mesh(np.array(topology.devices).reshape(-1, 1), AXES, axis_types=(AUTO, AUTO))
  whole, by_row = NamedSharding(mesh, P()), NamedSharding(mesh, P('data'))

  def place(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), tree)

  model = Transformer(
    TransformerConfig(encoder_layers=layers, decoder_layers=layers, dtype=settings.dtype)
  )
  optimizer, key = OptimizerConfig(512), jax.eval_shape(lambda: jax.random.key(0))
  transform, trunk = optimizer.build(), jax.eval_shape(model.init, key)
  state, frozen = jax.eval_shape(
    lambda key, trunk: (
      TrainState.create(make_task(kind, model, trunk, settings), transform, key),
      make_task(kind, model, trunk, settings).frozen,
    ),
    key,
    trunk,
  )
  state, batch = place(state), {}
  for side in ('source', 'target'):
    for part in ('', '_segment', '_position'):
      shape = settings.rows * settings.gpus, LENGTH
      batch[side + part] = jax.ShapeDtypeStruct(shape, np.int32, sharding=by_row)
  shardings = jax.tree.map(lambda x: x.sharding, state)
  task = make_task(kind, model, trunk, settings)
  step: Any = make_step(task, transform, optimizer.learning_rate, 1, shardings)
  with using(mesh if settings.gpus > 1 else None):
    return step.lower(state, place(frozen), batch).compile()


def main() -> None:
  parser = argparse.ArgumentParser(usage=__doc__)
  parser.add_argument('--tasks', nargs='+', default=['base'], choices=TASKS)
  parser.add_argument('--layers', nargs='+', type=int, default=[1], help='of each stack')
  parser.add_argument('--gpus', type=int, default=8)
  parser.add_argument('--rows', type=int, default=96, help='of each GPU')
  parser.add_argument('--places', type=int, default=64, help='of a row, at which heads learn')
  parser.add_argument('--dtype', default='bfloat16')
  parser.add_argument(
    '--show', type=int, default=0, help='number of the longest kernels that are listed'
  )
  parser.add_argument(
    '--keep-logits', action='store_true',
    help='keeps those of all heads or guesses for the gradient, instead of computing them again',
  )  # fmt: skip
  settings = parser.parse_args()
  if settings.keep_logits:
    losses.KEPT = draft_losses.KEPT = 2**62
  # Set before JAX looks for devices: this process has none of its own.
  jax.config.update('jax_platforms', 'cpu')
  flags = os.environ.get('XLA_FLAGS', '')
  os.environ['XLA_FLAGS'] = f'{flags} --xla_gpu_autotune_level=0'
  columns = 'task', 'layers', 'kernels', 'TFLOPs', 'wide', 'GB', 'on paper ms', 'of peak'
  columns += 'exchanged MB', 'exchanges', 'temporary GB', 'compile s'
  print('| ' + ' | '.join(columns) + ' |\n|' + ' --- |' * len(columns))
  for kind in settings.tasks:
    for layers in settings.layers:
      began = time.monotonic()
      program = compile_step(kind, layers, settings)
      kernels, exchanges = [], []
      for one in find_kernels(program.as_text()):
        is_exchange = one.step.operation.removesuffix('-start') in COLLECTIVES
        (exchanges if is_exchange else kernels).append(one)
      seconds, flops = sum(one.seconds for one in kernels), sum(one.flops for one in kernels)
      cells = [
        flops / 1e12, sum(one.flops for one in kernels if one.dtype != 'bf16') / 1e12,
        sum(one.bytes for one in kernels) / 1e9, 1e3 * seconds, flops / PEAK['bf16'] / seconds,
        sum(one.bytes for one in exchanges) / 1e6, len(exchanges),
        program.memory_analysis().temp_size_in_bytes / 1e9, time.monotonic() - began,
      ]  # fmt: skip
      numbers = ' | '.join(f'{cell:.4g}' for cell in cells)
      print(f'| {kind} | {layers} | {len(kernels)} | {numbers} |', flush=True)
      longest = sorted(kernels, key=lambda one: -one.seconds)[: settings.show]
      for one in [*exchanges, *longest] if settings.show else []:
        source = re.search(r'op_name="([^"]*)"', one.step.line)
        moved, products = one.bytes / 1e6, one.flops / 1e9
        print(f'  {1e3 * one.seconds:7.3f} ms {moved:8.1f} MB {products:5.0f} GFLOPs'
              f' {one.step.output[:60]:60} {source[1][-70:] if source else ""}')  # fmt: skip


if __name__ == '__main__':
  sys.exit(main())
