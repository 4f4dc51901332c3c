"""Times a call of the target, by its width and by its drafter, against a greedy call.

The floor of a call is the time to read weights, heads and cache once, at the bandwidth that is
measured here.

  python benchmarks/calls.py --out=out/calls.jsonl
  python benchmarks/calls.py --shapes transformer_base --drafts heads eagle block --packed
  python benchmarks/calls.py --shapes wordy --drafts free --widths 1 8 --laws processors constraint
  python benchmarks/calls.py --shapes 1b 8b --dtypes bfloat16 int8 --calls=32     # on a GPU

Weights are random, so drafts are hardly ever right: only calls are timed, all variants in turn. The
nodes of a tree are the root and the first n - 1 nodes of Medusa's mc_sim_7b_63, shortest paths
first.
"""

import argparse
import dataclasses
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

import fastdec as fd
from fastdec import folders
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.evaluation import rows
from fastdec.evaluation.calls import (
  Calls,
  FreeDraft,
  choose_compute_dtype,
  measure_costs,
  random_params,
)
from fastdec.evaluation.rows import Row
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.kernels.packed import most_rows
from fastdec.models.experts import ExpertsConfig
from fastdec.models.fconv import FConvConfig
from fastdec.models.image_transformer import ImageTransformerConfig
from fastdec.models.lm import LMConfig
from fastdec.models.transformer import TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.start import layers_like

LLAMA: Any = {'vocab_size': 128256, 'key_heads': 8, 'heads': 32, 'rope_theta': 5e5}
SHAPES: dict[str, Any] = {
  'transformer_base': TransformerConfig(eos_ids=()),
  'fconv_wmt_en_de': FConvConfig(eos_ids=()),
  'img2img_b3': ImageTransformerConfig(),
  '110m': LMConfig(d_model=768, d_ff=2048, layers=12, heads=12, eos_ids=()),
  'smollm2-135m': LMConfig(
    49_152, d_model=576, d_ff=1536, layers=30, heads=9, key_heads=3, rope_theta=1e5, eos_ids=()
  ),
  'gemma3-270m': LMConfig(
    262_144,
    d_model=640,
    d_ff=2048,
    layers=18,
    heads=4,
    key_heads=1,
    head_width=256,
    activation='gelu_tanh',
    norms='both',
    qk_norm=True,
    rope_theta=1e6,
    local_theta=1e4,
    windows=(*(512,) * 5, 0) * 3,
    eos_ids=(),
  ),
  '1b': LMConfig(**LLAMA, d_model=2048, d_ff=8192, layers=16, eos_ids=()),
  '8b': LMConfig(**LLAMA, d_model=4096, d_ff=14336, layers=32, tied=False, eos_ids=()),
  'wordy': LMConfig(152_064, d_model=1024, d_ff=3072, layers=4, heads=16, eos_ids=()),
  # four of 32 experts a token, each a fifth as wide as the MLPs of 110m
  'experts': LMConfig(
    d_model=768, layers=3, heads=12, eos_ids=(), experts=ExpertsConfig(32, chosen=4, d_ff=410)
  ),
  'toy': LMConfig(vocab_size=500, d_model=32, d_ff=64, layers=1, heads=2, eos_ids=()),
}
DRAFTS = ('free', 'heads', 'paper', 'eagle', 'block')
# All processors but those that force tokens.
PROCESSORS = fd.Processors(
  repetition_penalty=1.2,
  presence_penalty=0.5,
  frequency_penalty=0.1,
  no_repeat_ngram=3,
  min_length=2,
  bad_words=[[7], [8, 9]],
  bias={3: 1.5, (4, 5): 2.0, (6, 7, 8): -3.0},
  begin_suppress=[4],
  encoder_repetition_penalty=1.1,
  encoder_no_repeat_ngram=3,
  length_decay=(8, 1.01),
)


def constraint(model: Any, rows: int) -> tuple[fd.Constraint]:
  """Makes a random constraint as large as a JSON schema's: half of all words may follow a text."""
  rng = np.random.default_rng(0)
  after = rng.integers(-512, 512, (512, 128), np.int32).clip(-1)
  kind = rng.integers(0, 128, model.vocab_size, np.int32)
  tables = map(jnp.asarray, (after, kind, np.full(512, -1, np.int32), np.zeros(2, np.int32)))
  return (fd.Constraint(*tables, spelling=jnp.uint32(0)),)


LAWS = {'processors': PROCESSORS.laws, 'constraint': constraint}
LONG = 4096  # tokens of a long text, whose first calls should cost what a short text's cost
K, NODES = (
  8,
  32,
)  # how long the chains of heads and networks are, and how many nodes their trees have


def drafters(model: Any, dtype: str, args: argparse.Namespace, packs: bool) -> dict[str, Any]:
  """Makes the drafters to time.

  Args:
    model: the target.
    dtype: type of the heads' and networks' parameters.
    args: the command line: which drafts and which widths.
    packs: whether heads and networks are packed.

  Returns:
    The drafters by the names of their rows.
  """
  made: dict[str, Any] = {'greedy': NoDraft()}

  def bound(module: Any) -> Bound:
    params = random_params(module, 1, dtype)
    return Bound(module, fd.pack(module, params) if packs else params)

  if 'free' in args.drafts:
    for n in args.widths:
      if n > 1:
        made[f'width {n}'] = FreeDraft(fd.Topology.chain(n))
      if 16 <= n <= 64 and isinstance(model.config, LMConfig):
        choices = fd.medusa_choices('mc_sim_7b_63')[: n - 1]
        made[f'tree {n}'] = FreeDraft(fd.Topology.from_choices(choices))

  for draft, layout in (('heads', 'separate'), ('paper', 'paper')):
    if draft in args.drafts:
      heads = bound(BlockwiseHeads(K, model.d_model, 4 * model.d_model, layout))
      made[f'k = {K}, {layout} heads'] = fd.Blockwise(heads).drafter

  if 'eagle' in args.drafts:
    eagle = bound(EagleNetwork(**network_sizes(model)))
    made[f'EAGLE, chain of {K - 1}'] = fd.Eagle(eagle, K - 1).drafter
    made[f'EAGLE, tree of {NODES}'] = fd.Eagle(eagle, K - 1, 8, NODES).drafter
  if 'block' in args.drafts:
    block = bound(BlockNetwork(**network_sizes(model), k=K, markov=64))
    made[f'block, chain of {K - 1}'] = fd.BlockDraft(block).drafter
    made[f'block, tree of {NODES}'] = fd.BlockDraft(block, choices=NODES).drafter
  return made


def network_sizes(model: Any) -> dict[str, Any]:
  """Sizes of a draft network of one layer, which is like the target's."""
  layers = layers_like(model, 1)
  return {'layers': layers, 'vocab_size': model.vocab_size, 'd_target': model.d_model}


def time_model(args: argparse.Namespace, shape: str, dtype: str) -> list[Row]:
  """Times all variants of one model in one type, in turn."""
  config, rng = SHAPES[shape], np.random.default_rng(0)
  model: Any = folders.model_of(dataclasses.replace(config, dtype=choose_compute_dtype(dtype)))
  if isinstance(config, ImageTransformerConfig):
    inputs = rng.integers(0, 256, (args.batch, 8, 8, 3), np.uint8)
  else:
    inputs = rng.integers(2, model.vocab_size, (args.batch, args.prompt), np.int32)
  # All variants have one length, so that their caches have about the same number of slots.
  max_len = model.fixed_length or args.calls + max(*args.widths, NODES) + 1
  params = random_params(model, 0, dtype)
  forms = [False]
  if args.packed and dtype != 'int8w' and most_rows(dtype):
    forms.append(True)

  variants = {}
  for packs in forms:
    target = Bound(model, fd.pack(model, params) if packs else params)
    for name, drafter in drafters(model, dtype, args, packs).items():
      calls = Calls.after_prompt(target, drafter, inputs, max_len, args.calls)
      variants[f'{name}, packed' if packs else name] = calls
      for law in args.laws:
        changed = dataclasses.replace(target, laws=LAWS[law](model, args.batch))
        calls = Calls.after_prompt(changed, drafter, inputs, max_len, args.calls)
        variants[f'{name}, {law}'] = calls
    if not model.fixed_length and not packs:
      # The first calls of a long text: a large limit should cost nothing.
      most = min(LONG, (model.max_positions or LONG) - args.prompt)
      calls = Calls.after_prompt(target, NoDraft(), inputs, most, args.calls)
      variants[f'greedy, max_len={most}'] = calls

  of_model = {'shape': shape, 'dtype': dtype, 'batch': args.batch}
  return [of_model | row for row in measure_costs(variants, args.rounds)]


def main() -> None:
  parser = argparse.ArgumentParser(usage=__doc__)
  parser.add_argument('--out', type=pathlib.Path, default='out/calls.jsonl', help='file of rows')
  parser.add_argument('--shapes', nargs='+', choices=SHAPES, default=['transformer_base', '110m'])
  parser.add_argument('--drafts', nargs='+', choices=DRAFTS, default=['free', 'heads'])
  parser.add_argument('--dtypes', nargs='+', default=['float32', 'int8'])
  parser.add_argument('--widths', nargs='+', type=int, default=[1, 2, 4, 8, 16])
  parser.add_argument('--packed', action='store_true', help='also time packed models (fd.pack)')
  parser.add_argument(
    '--laws', nargs='+', choices=LAWS, default=[], help='also time calls under these laws'
  )
  parser.add_argument('--batch', type=int, default=1)
  parser.add_argument('--prompt', type=int, default=32, help='tokens of a source or prompt')
  parser.add_argument('--calls', type=int, default=16, help='how many a round makes')
  parser.add_argument('--rounds', type=int, default=5)
  args = parser.parse_args()
  conditions = {'config': rows.command(), **rows.conditions()}
  table = []
  for shape in args.shapes:
    for dtype in args.dtypes:
      print(f'{shape}, {dtype}: compiling and timing', flush=True)
      for row in time_model(args, shape, dtype):
        table.append(row | conditions)
        rows.append(args.out, table[-1])
  print(rows.table(table, {'megabytes', 'compile_seconds', *conditions}))


if __name__ == '__main__':
  main()
