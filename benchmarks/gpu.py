"""Ten minutes on one GPU: parity, exactness, the speed of calls, and a translator trained here.

  python benchmarks/gpu.py --out=out/gpu --budget=420s
  python benchmarks/gpu.py --out=out/gpu --budget=540s --text=data/multi30k --parts=translator
  python benchmarks/gpu.py --out=out/gpu-smoke --smoke     # toy sizes, on a CPU

Each row is appended to OUT/results.jsonl as it is measured; OUT/report.md has the tables. The most
important pieces come first. A piece that fails becomes a row with its error, and the next one
starts. A gap is the difference of two tokens' logits where texts part; rounding explains 1e-4. The
floor of a call is the time to read weights and cache once, at the bandwidth of the data sheet. All
weights are random but the translator's. It needs fastdec[train], and train.en.gz, train.de.gz,
val.en.gz and val.de.gz in the folder of its text. XLA_PYTHON_CLIENT_MEM_FRACTION=0.9 makes room for
the largest shape.
"""

import argparse
import functools
import itertools
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastdec as fd
from fastdec import folders
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.evaluation import agreement, rows, wallclock
from fastdec.evaluation.calls import (
  Calls,
  Drafted,
  FreeDraft,
  choose_compute_dtype,
  measure_costs,
  random_params,
)
from fastdec.evaluation.rows import Row
from fastdec.heads import block, blockwise, eagle, medusa
from fastdec.models import fconv, image_transformer, lm, t5, transformer
from fastdec.struct import Bound

SHAPES: dict[str, Any] = {  # Llama 3's
  '8b': {'vocab_size': 128256, 'd_model': 4096, 'd_ff': 14336, 'layers': 32, 'heads': 32},
  '1b': {'vocab_size': 128256, 'd_model': 2048, 'd_ff': 8192, 'layers': 16, 'heads': 32},
  'toy': {'vocab_size': 500, 'd_model': 32, 'd_ff': 64, 'layers': 1, 'heads': 8},
}
BANDWIDTH = {'H100': 3.35e12, 'H200': 4.8e12, 'A100': 2.04e12}  # bytes a second, of data sheets
WIDTHS = (1, 16, 64, 8, 32, 4, 2)
KINDS = ('lm', 'transformer', 'fconv', 't5', 'image')
STRATEGIES = ('block, tree', 'eagle, tree', 'medusa, tree', 'blockwise', 'speculative', 'lookup',
  'block, chain', 'eagle, chain', 'blockwise, two calls', 'beam of 1')  # fmt: skip
PARTS = ('parity', 'exact', 'widths', 'translator', 'growth')
PROMPT, CALLS, ROUNDS = 64, 32, 7
half = functools.partial(jax.tree.map, jnp.bfloat16)  # parameters in bfloat16


def pieces(
  out: pathlib.Path, text: str, smoke: bool
) -> Iterator[tuple[str, str, float, Iterator[Row]]]:
  """Yields the pieces in order: part, name, the seconds that one row needs, and its rows."""
  shapes, batches, widths, lengths = ('8b', '1b'), (1, 32, 8), WIDTHS, (256, 1024, 4096, 16384)
  kinds, strategies, size = KINDS, STRATEGIES, 64
  if smoke:
    shapes, batches, widths, lengths = ('toy',), (2,), (8,), (PROMPT + CALLS + 1,)
    kinds, strategies, size = KINDS[:1], STRATEGIES[:3], 16
  cases = list(itertools.product(shapes, ('bfloat16', 'int8'), batches))
  # The largest shape with one text comes first, in both types.
  cases.sort(key=lambda case: (case[0], case[2]) != (shapes[0], batches[0]))

  for kind in kinds[:2]:
    yield 'parity', kind, 20, parity(kind, size)
  for name in strategies:
    yield 'exact', name, 15, exact(name, size)
  for shape, dtype, batch in cases[:2]:
    name = f'{shape}, {dtype}, batch {batch}'
    yield 'widths', name, 40, calls(shape, dtype, batch, widths)
  if text or smoke:
    yield 'translator', 'base', 120, translator(out, text, sorted(batches), smoke)
  for shape, dtype, batch in cases[2:]:
    name = f'{shape}, {dtype}, batch {batch}'
    yield 'widths', name, 40, calls(shape, dtype, batch, widths)
  for length in lengths:
    grown = calls(shapes[-1], 'bfloat16', batches[0], (1,), length - PROMPT)
    yield 'growth', f'{length} tokens', 30, grown
  for kind in kinds[2:]:
    yield 'parity', kind, 20, parity(kind, size)


def case(kind: str, width: int, words: int) -> tuple[Any, Any, np.ndarray]:
  """Makes a model and its inputs, with random parameters that make its texts varied."""
  layers, rng = width // 16, np.random.default_rng(0)
  text: Any = {'vocab_size': words, 'eos_ids': ()}
  sizes: Any = {'d_model': width, 'd_ff': 2 * width, 'heads': 2}
  stacks: Any = {**sizes, 'encoder_layers': layers, 'decoder_layers': layers}
  image: Any = {'source_size': 1, 'size': 4, 'block_length': 16}
  conv: Any = dict.fromkeys(('encoder_layers', 'decoder_layers'), ((width, 3),) * layers)
  model = folders.model_of({
    'lm': lm.LMConfig(**text, **sizes, layers=layers, key_heads=1),
    'transformer': transformer.TransformerConfig(**text, **stacks),
    'fconv': fconv.FConvConfig(**text, d_embed=width, d_out=width, **conv),
    't5': t5.T5Config(**text, **stacks, d_kv=width // 2),
    'image': image_transformer.ImageTransformerConfig(**stacks, **image),
  }[kind])  # fmt: skip
  # Convolutions have no norm, and would explode.
  fresh = jax.jit(model.init)(jax.random.key(0))
  params = lively(fresh, 1.0 if kind == 'fconv' else 3.0, 0.2)
  if kind == 'image':
    return model, params, rng.integers(0, 256, (4, 1, 1, 3), np.uint8)
  return model, params, rng.integers(2, words, (4, width), np.int32)


def lively(params: Any, gain: float, noise: float) -> Any:
  """Scales parameters up, with noise: a fresh tied model repeats one token."""
  rng = np.random.default_rng(1)
  return jax.tree.map(lambda x: gain * x + jnp.float32(rng.normal(0, noise, x.shape)), params)


def parity(kind: str, width: int) -> Iterator[Row]:
  """Compares the device with the CPU, in float32: their greedy texts, and the probabilities that
  they give random texts. On a CPU it compares the default precision with the highest."""
  device, cpu = jax.devices()[0], jax.devices('cpu')[0]
  precision = 'default' if device == cpu else 'highest'
  model, params, inputs = case(kind, width, 1000)
  length = model.fixed_length or width
  targets = np.random.default_rng(1).integers(2, 256, (4, length), np.int32)

  def write_greedily(place: Any, precision: str) -> tuple[Any, np.ndarray]:
    with jax.default_device(place), jax.default_matmul_precision(precision):
      placed = jax.device_put(params, place)
      text = fd.decode(model, placed, inputs, fd.Greedy(), max_len=length).checked()
      logprobs = fd.score(model, placed, inputs, targets).tokens
      return jax.device_get(text), np.asarray(logprobs)

  expected, expected_logprobs = write_greedily(cpu, 'highest')
  text, logprobs = write_greedily(device, precision)
  with jax.default_device(cpu), jax.default_matmul_precision('highest'):
    gaps = agreement.find_gaps((model, params), inputs, text, expected)
  yield {
    'dtype': 'float32', 'between': f'CPU, highest; {device.device_kind}, {precision}',
    'nats_apart': float(np.abs(expected_logprobs - logprobs).max()),
    'same_texts': 1 - gaps.size / len(inputs), 'gap': float(gaps.max(initial=0)),
  }  # fmt: skip


def exact(name: str, width: int) -> Iterator[Row]:
  """Compares a strategy's text with that of greedy decoding. Random drafts are right by chance."""
  model, params, inputs = case('lm', width, 16)
  layers = lm.LMConfig(d_model=width, d_ff=width, layers=1, heads=2)
  sizes: Any = {'layers': layers, 'vocab_size': 16, 'd_target': width}

  def fresh(module: Any) -> tuple[Any, Any]:
    return module, random_params(module, 1, 'float32')

  blocks = fresh(block.BlockNetwork(**sizes, k=4, markov=2))
  grown = fresh(eagle.EagleNetwork(**sizes))
  heads = fresh(blockwise.BlockwiseHeads(k=4, d_model=width, d_ff=width))
  residual = fresh(medusa.MedusaHeads(3, width, 16))
  near = model, lively(params, 1.0, 0.05)
  strategy = {
    'block, tree': lambda: fd.BlockDraft(blocks, choices=6),
    'eagle, tree': lambda: fd.Eagle(grown, 3, 2, 6),
    'medusa, tree': lambda: fd.Medusa(residual, [[0], [1], [0, 0]]),
    'blockwise': lambda: fd.Blockwise(heads),
    'speculative': lambda: fd.Speculative(near, 4),
    'lookup': lambda: fd.PromptLookup(2, 4),
    'block, chain': lambda: fd.BlockDraft(blocks),
    'eagle, chain': lambda: fd.Eagle(grown, 4),
    'blockwise, two calls': lambda: fd.BlockwiseTwoCalls(heads),
    'beam of 1': lambda: fd.Beam(1),
  }[name]()
  with jax.default_matmul_precision('highest'):
    written = fd.decode(model, params, inputs, strategy, max_len=width).checked()
    plain = fd.decode(model, params, inputs, fd.Greedy(), max_len=width).checked()
    written, plain = jax.device_get((written, plain))
    gaps = agreement.find_gaps((model, params), inputs, written, plain)
  agreement.check_gaps(gaps, len(inputs), 'float32')
  yield {
    'dtype': 'float32', 'tokens_a_call': float(written.mean_block_size),
    'same_texts': 1 - gaps.size / len(inputs), 'gap': float(gaps.max(initial=0)),
  }  # fmt: skip


def calls(
  shape: str, dtype: str, batch: int, widths: tuple[int, ...], tokens: int = CALLS + 1
) -> Iterator[Row]:
  """Times calls on chains of free guesses after random prompts, in turn with greedy calls. With
  weights in int8 all else is float32."""
  habits = {'key_heads': 8, 'rope_theta': 5e5, 'tied': shape != '8b', 'eos_ids': ()}
  model = lm.LM(lm.LMConfig(**SHAPES[shape], **habits, dtype=choose_compute_dtype(dtype)))
  target, widest = Bound(model, random_params(model, 0, dtype)), fd.Topology.chain(max(WIDTHS))
  prompts = np.random.default_rng(0).integers(0, model.vocab_size, (batch, PROMPT), np.int32)
  begun = Calls.after_prompt(target, FreeDraft(widest), prompts, tokens, CALLS)
  device = jax.devices()[0].device_kind
  bandwidth = [speed for name, speed in BANDWIDTH.items() if name in device]
  for width in widths:
    wide = FreeDraft(fd.Topology.chain(width)) if width > 1 else NoDraft()
    variants = {}
    for name, drafter in (('greedy', NoDraft()), ('wide', wide)):
      state = jax.tree.map(jnp.copy, begun.state)
      variants[name] = Calls(target, Drafted(drafter), state, CALLS)
    _, row = measure_costs(variants, ROUNDS, *bandwidth)
    name = f'{shape}, {dtype}, batch {batch}, width {width}, room {PROMPT + tokens}'
    yield {'piece': name, 'dtype': dtype, 'batch': batch, **row}


def translator(out: pathlib.Path, text: str, batches: list[int], smoke: bool) -> Iterator[Row]:
  """Trains a translator of 70 million weights for two minutes, and a block draft for one minute on
  the translator's own text. Then times whole sentences, in turn with greedy decoding."""
  from fastdec.data.text import caching, corpus, packing, tokens
  from fastdec.training import loop, optimizer, state
  from fastdec.training.drafts import losses, start, tasks

  files: Any = [(f'{text}/{split}.en.gz', f'{text}/{split}.de.gz') for split in ('train', 'val')]
  data, d, layers, lines, steps = corpus.TextData('files', *files), 640, 6, 128, 10**6
  if smoke:
    data, d, layers, lines, steps = corpus.TextData('embedded', max_train=100), 32, 1, 4, 2
  opened = corpus.open_text(data, out / 'text')
  tokenizer, _ = caching.make_tokenizer(opened, 300 if smoke else 8000, out / 'text')
  pairs = caching.make_tokens(opened, 'train', tokenizer, 60, out / 'text')
  dev = caching.make_tokens(opened, 'dev', tokenizer, 60, out / 'text')

  def train(name: str, task: Any, pairs: Any, seconds: float) -> tuple[Any, Row]:
    rate = optimizer.OptimizerConfig(d, constant=1.0, warmup=1000)
    config = loop.LoopConfig(steps, keep=1, checkpoint_every=steps, checkpoint_seconds=1e9)
    batches, key = packing.packed_batches(pairs, lines, 64, 0), jax.random.key(0)
    done = loop.train(task, batches, rate, config, out / name, key, budget=seconds)
    size = sum(leaf.size for leaf in jax.tree.leaves(done.params)) / 1e6
    figures = {'million_weights': size, 'steps': done.step}
    return done.params, {'piece': name, 'dtype': 'bfloat16', **figures}

  # Training the translator.
  sizes: Any = {'d_model': d, 'd_ff': 4 * d, 'heads': d // 16, 'vocab_size': tokenizer.vocab_size}
  sizes |= {'encoder_layers': layers, 'decoder_layers': layers, 'dropout': 0.3}
  model: Any = transformer.Transformer(transformer.TransformerConfig(**sizes, dtype='bfloat16'))
  params, row = train('base', state.base_task(model), pairs, 120)
  yield row
  base, params = Bound(model, params), half(params)

  # Training a draft on the translator's own text.
  sources = [ids for ids in pairs.source]
  own = fd.decode_all(model, params, sources, fd.Greedy(), max_len=60, rows=4 * lines)
  texts = [tokens[:length] for tokens, length in zip(own.tokens, own.lengths, strict=True)]
  sizes = {'vocab_size': model.vocab_size, 'd_target': d, 'k': 8, 'markov': 64}
  network = block.BlockNetwork(layers=start.layers_like(model, 1), **sizes)
  fresh = start.start_params(network, base, jax.random.key(1), 'target', None)
  task = tasks.frozen_draft_task(base, Bound(network, fresh), losses.DraftLoss(anchors=16))
  written = tokens.TokenPairs(pairs.source, tokens.Ragged.of(texts))
  learnt, row = train('block draft', task, written, 60)
  yield row
  draft = fd.BlockDraft((network, half(fresh | learnt)), choices=32)

  # Timing whole sentences of up to 32 tokens.
  ways = {
    'greedy': lambda source: fd.decode(model, params, source, fd.Greedy(), max_len=60),
    'draft': lambda source: fd.decode(model, params, source, draft, max_len=60),
  }
  for batch in batches:
    inputs = np.zeros((2 if smoke else 24, batch, 32), np.int32)
    short = itertools.cycle(ids for ids in dev.source if len(ids) <= 32)
    for line, ids in zip(inputs.reshape(-1, 32), short, strict=False):
      line[: len(ids)] = ids
    times = wallclock.measure(ways, ROUNDS, [(sources,) for sources in inputs])
    plain = jax.device_get([ways['greedy'](sources) for sources in inputs])
    drafted = jax.device_get([ways['draft'](sources) for sources in inputs])
    same = [(a.tokens == b.tokens).all(1) for a, b in zip(plain, drafted, strict=True)]
    yield {
      'piece': f'clock of a tree of 32, batch {batch}', 'dtype': 'bfloat16', 'batch': batch,
      'ms_a_text': times['draft'].milliseconds / batch,
      'times_greedy': times['draft'].speedup_over(times['greedy']),
      'spread': times['draft'].speedups_over(times['greedy']),
      'tokens_a_call': float(np.mean([decoded.mean_block_size for decoded in drafted])),
      'same_texts': float(np.mean(same)),
    }  # fmt: skip


def run_piece(work: Iterator[Row], seconds: float, end: float) -> Iterator[Row]:
  """Yields the rows of a piece, each with the seconds that it took.

  A failure is a row too, with its error, and the last one of its piece. It is a TimeoutError if
  fewer than `seconds` are left before `end` (of time.monotonic) when a row begins.
  """
  while True:
    start = time.monotonic()
    try:
      if end - start < seconds:
        raise TimeoutError(f'it wants {seconds} s of the budget, and {end - start:.0f} are left')
      row = next(work, None)
    except Exception as error:
      row = {'error': f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'}
    if row is None:
      return
    yield {**row, 'seconds': time.monotonic() - start}
    if 'error' in row:
      return


def report(conditions: Row, results: list[Row]) -> str:
  """Draws the tables of all parts, below the conditions under which they were measured."""
  machine = '; '.join(f'{name} {value}' for name, value in conditions.items())
  text = [f'# fastdec on {conditions["device"]}', machine]
  hidden = {'part', 'dtype', 'batch', 'variant', 'rounds', 'seconds', *conditions}
  for part in PARTS:
    shown = [row for row in results if row['part'] == part]
    if shown:
      text += [f'## {part.title()}', rows.table(shown, hidden)]
  return '\n\n'.join(text) + '\n'


def main() -> None:
  parser = argparse.ArgumentParser(usage=__doc__)
  parser.add_argument('--out', type=pathlib.Path, required=True, help='folder of the results')
  parser.add_argument('--budget', default='420s', help='time to stop after, such as 420s')
  parser.add_argument('--text', default='', help='folder of parallel text for the translator')
  parser.add_argument('--parts', default=','.join(PARTS), help='parts to run, separated by commas')
  parser.add_argument('--smoke', action='store_true', help='toy sizes')
  args = parser.parse_args()
  if jax.default_backend() == 'cpu' and not args.smoke:
    parser.error('JAX sees only the CPU: install jax[cuda13], or try --smoke')
  end = time.monotonic() + float(args.budget.rstrip('s'))
  conditions = rows.conditions() | {'python': sys.version.split()[0], 'smoke': args.smoke}
  results = []
  for part, name, seconds, work in pieces(args.out, args.text, args.smoke):
    if part not in args.parts.split(','):
      continue
    for row in run_piece(work, 0 if args.smoke else seconds, end):
      row = {'part': part, 'piece': name, **row, **conditions}
      results.append(row)
      rows.append(args.out / 'results.jsonl', row)
      (args.out / 'report.md').write_text(report(conditions, results))
      print(part, row['piece'], f'{row["seconds"]:.0f} s', row.get('error', ''), flush=True)
  print(report(conditions, results))

  # Pieces for which no time was left do not count as failures.
  errors = [row['error'] for row in results if 'error' in row]
  sys.exit(any('TimeoutError' not in error for error in errors))


if __name__ == '__main__':
  main()
