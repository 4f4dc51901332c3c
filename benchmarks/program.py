"""Compiles decoding programs for a GPU that is only described, and counts what they would run.

XLA compiles for an H100 without one, so that all but the clock is known on any machine: how many
kernels a call and a layer take, whether the loop's body is one CUDA graph, copies as large as a
weight, and the memory of the program. It needs the CUDA build of JAX, but no driver and no card:

  python -m venv .gpu && .gpu/bin/pip install -c constraints.txt 'jax[cuda13]' -e .   # 4.4 GB
  .gpu/bin/python benchmarks/program.py --shapes 1b --dtypes bfloat16 int8w --drafts free eagle
  .gpu/bin/python benchmarks/program.py --shapes 8b --widths --show    # lists the kernels
  .gpu/bin/python benchmarks/program.py --shapes 8b --mesh 1 8         # on 8 GPUs (data, model)

Columns; on a mesh they are of one GPU:
  kernels: kernels of a call, draft and target, with those of inner loops as often as they run
  sorts: sorts and library calls among them
  a layer: all kernels of a call by the target's layers
  small: kernels that move less than 64 kB; each takes about 2 us
  graphs: CUDA graphs that a call starts; 1 is best, 0 means that each kernel is launched by itself
  copies: kernels that write a tensor as large as a weight without computing anything
  floor: milliseconds to read weights and cache once, at the bandwidth of the data sheet
  on paper: sum over kernels of the larger of 2 us and their bytes by the bandwidth; an estimate, to
    compare programs with each other
  exchanges: collectives of a call, which take 5 us and their bytes at 450 GB/s
  exchanged: their kilobytes
  of sums: these by the sums that a call needs: the nodes' states twice a layer (three times with a
    source), in float32
  largest: the largest of them
  held: gigabytes of weights and state
  whole: megabytes of weights and cache that are not divided over 'model'
  of greedy: `on paper` by that of the same model's greedy call
"""

import argparse
import dataclasses
import glob
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import fastdec as fd
from fastdec import folders
from fastdec.cache.loops import fori_loop
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.sizes import Sizes, exact_widths
from fastdec.decoding.strategy import nodes_of
from fastdec.evaluation import rows
from fastdec.evaluation.calls import Drafted, FreeDraft, choose_compute_dtype, random_params
from fastdec.heads.block import BlockNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.kernels.mesh import AUTO
from fastdec.kernels.products import with_kernels
from fastdec.kernels.quantized import TYPES, round_kernel
from fastdec.kernels.sharding import AXES, choose_shardings, partition_of, using
from fastdec.models.lm import LMConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.start import layers_like

H100 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 threads_per_core_limit: 2048
  core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
  registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3" """
BANDWIDTH = 3.35e12  # bytes a second
LAUNCH = 2e-6  # seconds that any kernel takes
SMALL = 64 * 1024  # bytes
EXCHANGE = 5e-6  # seconds that any collective takes
NETWORK = 450e9  # bytes a second between GPUs

STRATEGIES = ('eagle', 'block', 'medusa', 'sample', 'tree', 'lookahead', 'beam')
LLAMA: dict[str, Any] = {
  'vocab_size': 128256, 'heads': 32, 'key_heads': 8, 'rope_theta': 5e5, 'eos_ids': (),
}  # fmt: skip
SHAPES = {
  '1b': LMConfig(**LLAMA, d_model=2048, d_ff=8192, layers=16),
  '8b': LMConfig(**LLAMA, d_model=4096, d_ff=14336, layers=32, tied=False),
  'smol': LMConfig(49152, d_model=576, d_ff=1536, layers=30, heads=9, key_heads=3, eos_ids=()),
  'translator': TransformerConfig(vocab_size=32768, d_model=1024, d_ff=4096, heads=16),
}
CALLS = 32  # of the loop that is compiled
SIZES = {'pred': 1, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'f16': 2, 'bf16': 2, 's32': 4, 'u32': 4,
  'f32': 4, 's64': 8, 'u64': 8, 'f64': 8}  # fmt: skip
KERNELS = ('fusion', 'custom-call', 'copy', 'dot', 'sort', 'dynamic-slice', 'dynamic-update-slice')
CALLING = ('call', 'conditional')
COLLECTIVES = ('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute',
  'ragged-all-to-all')  # fmt: skip
INSTRUCTION = re.compile(r'\s*(?:ROOT )?%?([\w.\-]+) = (\(?.*?\)?) ([\w\-]+)\(')


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A kernel of a compiled program; shapes are HLO text."""

  operation: str
  name: str
  output: str
  inputs: str
  source: str  # the path of modules and functions that it comes from
  computes: bool  # not only copies
  bytes: int  # read and written


@dataclasses.dataclass(frozen=True)
class Collective:
  """An exchange between the devices of a compiled program."""

  kind: str  # all-reduce, all-gather, ...
  shape: str  # HLO text of what each device has afterwards
  entries: int  # of its largest array
  bytes: int
  source: str  # the path of modules and functions that it comes from


def find_kernels(text: str) -> list[Kernel]:
  """Returns the kernels of a call: of the body of an HLO text's largest loop."""
  computations = dict(split_computations(text))
  kernels = []
  for line, found in instructions_in(computations, find_loop(computations), CALLING):
    if found[3] in KERNELS:
      kernels.append(_kernel(computations, line, found[3], found[1], found[2]))
  return kernels


def find_collectives(text: str) -> list[Collective]:
  """Returns what devices exchange in a call: in the body of an HLO text's largest loop.

  An exchange that has a start and an end counts once."""
  computations = dict(split_computations(text))
  exchanges = []
  follows = (*CALLING, 'fusion', 'async-start')
  for line, found in instructions_in(computations, find_loop(computations), follows):
    kind, start, _ = found[3].partition('-start')
    if kind not in COLLECTIVES:
      continue
    shapes = re.findall(r'\b\w+\[[\d,]*\]', found[2])
    if start and kind != 'all-reduce':  # what goes in, then what comes out
      shapes = [shape for shape in shapes if shape != 'u32[]']
      shapes = shapes[len(shapes) // 2 :]
    source = re.search(r'op_name="([^"]*)"', line)
    exchanges.append(
      Collective(
        kind,
        ' '.join(shapes),
        max(count_entries(shape) for shape in shapes),
        sum(count_bytes(shape) for shape in shapes),
        source[1] if source else '',
      )
    )
  return exchanges


def find_loop(computations: dict[str, list[str]]) -> str:
  """Returns the name of the largest body of a loop."""
  bodies = set()
  for lines in computations.values():
    bodies.update(re.findall(r'while\(.*?body=%?([\w.\-]+)', '\n'.join(lines)))
  return max(bodies, key=lambda name: len(computations[name]))


def split_computations(text: str) -> Iterator[tuple[str, list[str]]]:
  """Yields the name and the lines of each computation of an HLO text."""
  name, lines = '', []
  for line in text.split('\n'):
    begins = re.match(r'^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$', line)
    if begins:
      name, lines = begins[1], []
    elif line.startswith('}'):
      yield name, lines
    else:
      lines.append(line)


def instructions_in(
  computations: dict[str, list[str]], name: str, follows: tuple[str, ...]
) -> Iterator[tuple[str, re.Match[str]]]:
  """Yields the lines of a computation with their name, output and operation.

  Those of inner loops come as often as they run, and those of the computations that an operation
  in `follows` calls. A loop whose number of passes is not known counts once. All branches of a
  condition count."""
  for line in computations[name]:
    found = INSTRUCTION.match(line)
    if not found:
      continue
    yield line, found
    body = re.search(r'body=%?([\w.\-]+)', line)
    if found[3] == 'while' and body:
      passes = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
      yield from int(passes[1] if passes else 1) * list(
        instructions_in(computations, body[1], follows)
      )
    elif found[3] in follows:
      called = r'(?:to_apply|calls|(?:branch|true|false)_computations?)=(\{[^}]*\}|%?[\w.\-]+)'
      for group in re.findall(called, line):
        for inner in re.findall(r'[\w.\-]+', group):
          if inner in computations:
            yield from instructions_in(computations, inner, follows)


def _kernel(
  computations: dict[str, list[str]], line: str, operation: str, name: str, output: str
) -> Kernel:
  called = re.search(r'calls=%?([\w.\-]+)', line)
  inner = computations.get(called[1], []) if called else []
  parameters = [re.search(r'= (\S+) parameter\(', step) for step in inner]
  inputs = ' '.join(parameter[1] for parameter in parameters if parameter)
  source = re.search(r'op_name="([^"]*)"', line)
  # If a tensor is only cut, or overwritten in part, only that part is moved.
  cuts = r' (gather|scatter|dynamic-slice|dynamic-update-slice)\('
  is_partial = any(re.search(cuts, step) for step in inner)
  moved = sorted(count_bytes(shape) for shape in [*inputs.split(), output])
  total = sum(size for size in moved if not (is_partial and size == moved[-1]))
  computes = any(re.search(r' (dot|add|multiply|exponential|reduce)\(', step) for step in inner)
  return Kernel(operation, name, output, inputs, source[1] if source else '', computes, total)


def count_bytes(text: str) -> int:
  """Returns the bytes of the shapes in a piece of HLO text."""
  total = 0
  for kind, dims in re.findall(r'\b(\w+)\[([\d,]*)\]', text):
    total += SIZES.get(kind, 0) * count_entries(dims)
  return total


def count_entries(shape: str) -> int:
  """Returns the entries of an array with these sizes; HLO text, such as 'f32[4,64]' or '4,64'."""
  sizes = shape.rpartition('[')[2].rstrip(']')
  return int(np.prod([int(size) for size in sizes.split(',') if size] or [1]))


def abstract(module: Any, dtype: str) -> Any:
  """Returns the shapes of a module's parameters in a type."""
  wide = jax.eval_shape(lambda: random_params(module, 0, choose_compute_dtype(dtype)))
  if dtype not in TYPES:
    return wide

  def narrow(kernel: Any) -> Any:
    return dataclasses.replace(jax.eval_shape(round_kernel, kernel), rounds_inputs=dtype == 'int8')

  return with_kernels(module, wide, narrow)


def place(module: Any, params: Any, mesh: Mesh) -> Any:
  """Returns shapes with the shardings that `sharding.place` gives such parameters."""
  shardings = choose_shardings(params, mesh, partition_of(module, mesh.shape['model']))
  return jax.tree.map(_with_sharding, params, shardings)


def _with_sharding(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def count_held(tree: Any, most_parts: int = 2**31) -> int:
  """Returns the bytes that one device has of shapes with shardings, in few enough parts."""
  total = 0
  for x in jax.tree.leaves(tree):
    entries = int(np.prod(x.sharding.shard_shape(x.shape)))
    if x.size <= most_parts * entries:
      total += entries * x.dtype.itemsize
  return total


def strategies(
  model: Any, dtype: str, mesh: Mesh, args: argparse.Namespace
) -> Iterator[tuple[str, Any]]:
  """Yields the strategies to compile, with their names; greedy decoding is the first."""
  yield 'greedy', fd.Greedy()
  for n in args.widths:
    if n > 1:
      yield f'width {n}', Drafted(FreeDraft(fd.Topology.chain(n)))
  layers, sizes = layers_like(model, 1), {'vocab_size': model.vocab_size, 'd_target': model.d_model}
  of_words = ''
  if args.words:
    sizes['words'], of_words = args.words, f' of {args.words:,} words'

  def bound(module: Any) -> Bound:
    return Bound(module, place(module, abstract(module, dtype), mesh))

  if 'sample' in args.drafts:
    yield 'sampled, top-p', fd.Sample(temperature=0.8, top_p=0.9)
  if 'tree' in args.drafts:
    choices = fd.medusa_choices('mc_sim_7b_63')
    yield 'tree of 64', Drafted(FreeDraft(fd.Topology.from_choices(choices)))
  if 'eagle' in args.drafts:
    eagle = bound(EagleNetwork(layers=layers, **sizes))
    yield f'EAGLE{of_words}, chain of 7', fd.Eagle(eagle, 7)
    yield f'EAGLE{of_words}, tree of 32', fd.Eagle(eagle, 7, 8, 32)
  if 'block' in args.drafts:
    block = bound(BlockNetwork(layers=layers, **sizes, k=8, markov=64))
    yield f'block{of_words}, chain of 7', fd.BlockDraft(block)
    yield f'block{of_words}, tree of 32', fd.BlockDraft(block, choices=32)
  if 'medusa' in args.drafts:
    heads = bound(MedusaHeads(4, model.d_model, model.vocab_size))
    yield 'Medusa, 64 nodes', fd.Medusa(heads, fd.medusa_choices('mc_sim_7b_63'))
  if 'lookahead' in args.drafts:
    yield 'lookahead', fd.Lookahead()
  if 'beam' in args.drafts:
    yield 'beam 4', fd.Beam(4)


def compile_program(
  model: Any, dtype: str, batch: int, strategy: Any, mesh: Mesh, dump: str, args: Any
) -> tuple[dict[str, Any], list[Kernel], list[Collective]]:
  """Compiles CALLS calls in a loop; returns their figures, and what one runs and exchanges."""
  rows, data = batch * mesh.shape['data'], NamedSharding(mesh, P('data'))
  whole, in_use = NamedSharding(mesh, P()), mesh if mesh.size > 1 else None

  def on_device(tree: Any, sharding: NamedSharding) -> Any:
    def put(x: Any) -> Any:
      return x if isinstance(x, jax.ShapeDtypeStruct) else _with_sharding(x, sharding)

    return jax.tree.map(put, tree)

  params, strategy = place(model, abstract(model, dtype), mesh), on_device(strategy, whole)
  inputs = np.zeros((rows, args.prompt), np.int32)
  _, prompt, _ = check_inputs(model, inputs, None, None, args.max_len, None)
  sizes = Sizes(exact_widths(prompt, args.max_len), model, strategy, args.max_len, args.max_len)
  keys = on_device(jax.random.split(jax.random.key(0), rows), data)
  prompt = on_device(sizes.begin(prompt), data)

  def begin(params: Any, strategy: Any, prompt: Any, keys: Any) -> Any:
    return strategy.init(Bound(model, params), prompt, args.max_len, keys)

  def calls(params: Any, strategy: Any, state: Any) -> Any:
    target = Bound(model, params)
    return fori_loop(0, CALLS, lambda _, s: strategy.step(target, s), state, nodes_of(strategy))

  began = time.monotonic()
  with using(in_use):
    arguments = params, strategy, prompt, keys
    state = jax.eval_shape(begin, *arguments)
    if in_use is None:
      state = jax.tree.map(lambda x: _with_sharding(x, whole), state)
    else:
      shardings = jax.jit(begin).lower(*arguments).compile().output_shardings
      state = jax.tree.map(_with_sharding, state, shardings)
    lowered = jax.jit(calls, donate_argnums=2).lower(params, strategy, state)
    program: Any = lowered.compile()
  seconds = time.monotonic() - began

  text = program.as_text()
  kernels, exchanges = find_kernels(text), find_collectives(text)
  # XLA writes next to the program how it is launched.
  metadata = glob.glob(f'{dump}/*calls*thunk_metadata*')
  newest = max(metadata, key=os.path.getmtime, default=None)
  graphs = pathlib.Path(newest).read_text().count('kCommandBuffer') if newest else None
  weights = [count_held(x) for x in jax.tree.leaves(params) if x.size > 2**16]
  copies = [k for k in kernels if not k.computes and count_bytes(k.output) >= min(weights)]
  nodes = batch * nodes_of(strategy)
  a_layer = 2 if model.start_id is None else 3
  sums = 4 * a_layer * model.layers * nodes * model.d_model
  exchanged = sum(one.bytes for one in exchanges)
  on_paper = sum(max(LAUNCH, kernel.bytes / BANDWIDTH) for kernel in kernels)
  on_paper += sum(EXCHANGE + one.bytes / NETWORK for one in exchanges)
  floor = count_held((params, strategy, state.cache)) / BANDWIDTH
  undivided = count_held((params, strategy), 1) + count_held(state.cache, mesh.shape['data'])
  return (
    {
      'kernels': len(kernels),
      'sorts': sum(kernel.operation in ('sort', 'custom-call') for kernel in kernels),
      'a layer': len(kernels) / model.layers,
      'small': sum(kernel.bytes < SMALL for kernel in kernels),
      'graphs': graphs,
      'copies': len(copies),
      'floor ms': 1e3 * floor,
      'on paper ms': 1e3 * on_paper,
      'exchanges': len(exchanges),
      'exchanged kB': exchanged / 1e3,
      'of sums': exchanged / sums,
      'largest': max(exchanges, key=lambda one: one.bytes).shape if exchanges else '',
      'held GB': count_held((params, strategy, state)) / 1e9,
      'whole MB': undivided / 1e6,
      'temporary MB': program.memory_analysis().temp_size_in_bytes / 1e6,
      'compile s': seconds,
    },
    kernels,
    exchanges,
  )


def main() -> None:
  parser = argparse.ArgumentParser(usage=__doc__)
  parser.add_argument('--shapes', nargs='+', default=['1b'], choices=SHAPES)
  parser.add_argument('--dtypes', nargs='+', default=['bfloat16'])
  parser.add_argument('--batches', nargs='+', type=int, default=[1])
  parser.add_argument('--widths', nargs='*', type=int, default=[8], help='tokens of a call')
  parser.add_argument('--drafts', nargs='*', default=[], choices=STRATEGIES)
  parser.add_argument(
    '--mesh', nargs=2, type=int, default=(1, 1), metavar=('DATA', 'MODEL'),
    help='GPUs along each axis; a batch is of each of the first',
  )  # fmt: skip
  parser.add_argument('--layers', type=int, help="instead of the shape's; compiles faster")
  parser.add_argument('--words', type=int, help="of eagle's and block's guesses (all)")
  parser.add_argument('--prompt', type=int, default=64, help='tokens of the prompt')
  parser.add_argument('--max-len', type=int, default=65, help='most tokens that are emitted')
  parser.add_argument('--show', action='store_true', help='lists the kernels')
  parser.add_argument('--out', type=pathlib.Path, help='file that rows are added to')
  args = parser.parse_args()
  # Set before JAX looks for devices: this process has none of its own.
  jax.config.update('jax_platforms', 'cpu')
  dump = tempfile.mkdtemp()
  os.environ['XLA_FLAGS'] = (
    f'{os.environ.get("XLA_FLAGS", "")} --xla_gpu_autotune_level=0 --xla_dump_to={dump}'
    ' --xla_dump_hlo_as_text'
  )
  gpus = args.mesh[0] * args.mesh[1]
  try:
    topology = topologies.get_topology_desc(
      platform='cuda', topology=f'1x1x{gpus}', target_config=H100
    )
  except Exception as error:  # JAX raises several kinds
    sys.exit(f"the CUDA build of JAX is missing ({error}): pip install 'jax[cuda13]'")
  mesh = Mesh(np.array(topology.devices).reshape(args.mesh), AXES, axis_types=(AUTO, AUTO))
  names: list[str] = []
  for shape in args.shapes:
    for dtype in args.dtypes:
      sizes: dict[str, Any] = {'dtype': choose_compute_dtype(dtype)}
      if args.layers:
        is_lm = isinstance(SHAPES[shape], LMConfig)
        sizes['layers' if is_lm else 'decoder_layers'] = args.layers
      model = folders.model_of(dataclasses.replace(SHAPES[shape], **sizes))
      for batch in args.batches:
        greedy = 0.0
        for name, strategy in strategies(model, dtype, mesh, args):
          figures, kernels, exchanges = compile_program(
            model, dtype, batch, strategy, mesh, dump, args
          )
          greedy = greedy or figures['on paper ms']
          row = {'shape': shape, 'layers': model.layers, 'dtype': dtype, 'batch': batch}
          row['drafter'] = name
          if gpus > 1:
            row |= {'data': args.mesh[0], 'model': args.mesh[1]}
          row |= figures
          row['of greedy'] = figures['on paper ms'] / greedy
          for one in exchanges:
            if args.show:
              print(f'  {one.kind:36} {one.bytes:>11,} {one.shape:34} {one.source[-90:]}')
          for kernel in kernels:
            if args.show:
              print(f'  {kernel.name[:36]:36} {kernel.bytes:>11,} {kernel.output[:34]:34}'
                f' {kernel.source[-50:]:50} {kernel.inputs[:90]}')  # fmt: skip
          if not names:
            names = list(row)
            print('| ' + ' | '.join(names) + ' |\n|' + ' --- |' * len(names))
          cells = [f'{x:.4g}' if isinstance(x, float) else str(x) for x in row.values()]
          print('| ' + ' | '.join(cells) + ' |', flush=True)
          if args.out:
            rows.append(args.out, row | rows.conditions())


if __name__ == '__main__':
  main()
