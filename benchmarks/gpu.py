"""Ten minutes on one GPU: parity, exactness, the speed of calls, a translator that is trained here.

  python benchmarks/gpu.py --out=out/gpu --budget=420s
  python benchmarks/gpu.py --out=out/gpu --budget=540s --text=data/multi30k --parts=translator
  python benchmarks/gpu.py --out=out/gpu-smoke --smoke     # toy sizes, on a CPU

Rows are added to FOLDER/results.jsonl as they come; FOLDER/report.md has the tables. What says most
comes first; what fails is a row with its reason, and the rest goes on. A gap is between the logits
of two tokens where texts part, and rounding explains 1e-4. The floor of a call is the time to read
weights and cache once, at the bandwidth of the data sheet. All weights are random but for the
translator's: its text is train.en.gz, train.de.gz, val.en.gz and val.de.gz of a folder, and its
training needs fastdec[train]. XLA_PYTHON_CLIENT_MEM_FRACTION=0.9 makes room for the largest shape.
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
from fastdec.evaluation.calls import Calls, Drafted, FreeDraft, computing_in, costs, random_params
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
half = functools.partial(jax.tree.map, jnp.bfloat16)


def pieces(
  out: pathlib.Path, text: str, smoke: bool
) -> Iterator[tuple[str, str, float, Iterator[Row]]]:
  """Lists the pieces in order: part, name, seconds of the budget that each row wants, rows."""
  shapes, batches, widths, lengths = ('8b', '1b'), (1, 32, 8), WIDTHS, (256, 1024, 4096, 16384)
  kinds, strategies, size = KINDS, STRATEGIES, 64
  if smoke:
    shapes, batches, widths, lengths = ('toy',), (2,), (8,), (PROMPT + CALLS + 1,)
    kinds, strategies, size = KINDS[:1], STRATEGIES[:3], 16
  models = list(itertools.product(shapes, ('bfloat16', 'int8'), batches))
  models.sort(key=lambda one: (one[0], one[2]) != (shapes[0], batches[0]))  # the two come first
  for kind in kinds[:2]:
    yield 'parity', kind, 20, parity(kind, size)
  for name in strategies:
    yield 'exact', name, 15, exact(name, size)
  for one in models[:2]:
    yield 'widths', '{}, {}, batch {}'.format(*one), 40, calls(*one, widths)
  if text or smoke:
    yield 'translator', 'base', 120, translator(out, text, sorted(batches), smoke)
  for one in models[2:]:
    yield 'widths', '{}, {}, batch {}'.format(*one), 40, calls(*one, widths)
  for length in lengths:
    one = calls(shapes[-1], 'bfloat16', batches[0], (1,), length - PROMPT)
    yield 'growth', f'{length} tokens', 30, one
  for kind in kinds[2:]:
    yield 'parity', kind, 20, parity(kind, size)


def case(kind: str, width: int, words: int) -> tuple[Any, Any, np.ndarray]:
  """Makes a random model, lively enough to write varied texts, and its inputs."""
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
  """Compares float32 on the device with the CPU (on a CPU: with its default precision): what both
  write greedily, and the probabilities of random texts."""
  device, cpu = jax.devices()[0], jax.devices('cpu')[0]
  second = 'default' if device == cpu else 'highest'
  (model, params, inputs), texts, nats = case(kind, width, 1000), [], []
  length = model.fixed_length or width
  targets = np.random.default_rng(1).integers(2, 256, (4, length), np.int32)
  for place, precision in ((cpu, 'highest'), (device, second)):
    with jax.default_device(place), jax.default_matmul_precision(precision):
      here = jax.device_put(params, place)
      out = fd.decode(model, here, inputs, fd.Greedy(), max_len=length).checked()
      texts.append(jax.device_get(out))
      nats.append(np.asarray(fd.score(model, here, inputs, targets).tokens))
  with jax.default_device(cpu), jax.default_matmul_precision('highest'):
    gaps = agreement.partings((model, params), inputs, texts[1], texts[0])
  yield {
    'dtype': 'float32', 'between': f'CPU, highest; {device.device_kind}, {second}',
    'nats_apart': float(np.abs(nats[0] - nats[1]).max()),
    'same_texts': 1 - gaps.size / len(inputs), 'gap': float(gaps.max(initial=0)),
  }  # fmt: skip


def exact(name: str, width: int) -> Iterator[Row]:
  """Compares what a strategy writes with greedy decoding; random drafts are right now and then."""
  model, params, inputs = case('lm', width, 16)
  layers = lm.LMConfig(d_model=width, d_ff=width, layers=1, heads=2)
  sizes: Any = {'layers': layers, 'vocab_size': 16, 'd_target': width}
  modules: list[Any] = [block.BlockNetwork(**sizes, k=4, markov=2), eagle.EagleNetwork(**sizes)]
  modules.append(blockwise.BlockwiseHeads(k=4, d_model=width, d_ff=width))
  modules.append(medusa.MedusaHeads(3, width, 16))
  blocks, grown, stern, tree = [(one, random_params(one, 1, 'float32')) for one in modules]
  near = model, lively(params, 1.0, 0.05)
  made = (
    fd.BlockDraft(blocks, choices=6), fd.Eagle(grown, 3, 2, 6), fd.Medusa(tree, [[0], [1], [0, 0]]),
    fd.Blockwise(stern), fd.Speculative(near, 4), fd.PromptLookup(2, 4), fd.BlockDraft(blocks),
    fd.Eagle(grown, 4), fd.BlockwiseTwoCalls(stern), fd.Beam(1),
  )  # fmt: skip
  ours = made[STRATEGIES.index(name)]
  with jax.default_matmul_precision('highest'):
    texts = [fd.decode(model, params, inputs, one, max_len=width) for one in (ours, fd.Greedy())]
    written, plain = jax.device_get([one.checked() for one in texts])
    gaps = agreement.partings((model, params), inputs, written, plain)
  agreement.check_partings(gaps, len(inputs), 'float32')
  yield {
    'dtype': 'float32', 'tokens_a_call': float(written.mean_block_size),
    'same_texts': 1 - gaps.size / len(inputs), 'gap': float(gaps.max(initial=0)),
  }  # fmt: skip


def calls(
  shape: str, dtype: str, batch: int, widths: tuple[int, ...], tokens: int = CALLS + 1
) -> Iterator[Row]:
  """Times calls on chains of free guesses, in turn with greedy ones, behind random prompts. Beside
  random weights in int8 all is float32."""
  habits = {'key_heads': 8, 'rope_theta': 5e5, 'tied': shape != '8b', 'eos_ids': ()}
  model = lm.LM(lm.LMConfig(**SHAPES[shape], **habits, dtype=computing_in(dtype)))
  target, widest = Bound(model, random_params(model, 0, dtype)), fd.Topology.chain(max(WIDTHS))
  prompts = np.random.default_rng(0).integers(0, model.vocab_size, (batch, PROMPT), np.int32)
  begun = Calls.after_prompt(target, FreeDraft(widest), prompts, tokens, CALLS)
  known = [speed for name, speed in BANDWIDTH.items() if name in jax.devices()[0].device_kind]
  for width in widths:
    wide, variants = FreeDraft(fd.Topology.chain(width)) if width > 1 else NoDraft(), {}
    for name, drafter in (('greedy', NoDraft()), ('wide', wide)):
      state = jax.tree.map(jnp.copy, begun.state)
      variants[name] = Calls(target, Drafted(drafter), state, CALLS)
    name = f'{shape}, {dtype}, batch {batch}, width {width}, room {PROMPT + tokens}'
    yield {'piece': name, 'dtype': dtype, 'batch': batch, **costs(variants, ROUNDS, *known)[1]}


def translator(out: pathlib.Path, text: str, batches: list[int], smoke: bool) -> Iterator[Row]:
  """Trains a translator of 70 million weights for two minutes and a block draft on its own text for
  one, and times whole sentences beside greedy decoding."""
  from fastdec.data.text import caching, corpus, packing, tokens
  from fastdec.training import loop, optimizer, state
  from fastdec.training.drafts import losses, start, tasks

  files: Any = [tuple(f'{text}/{x}.{y}.gz' for y in ('en', 'de')) for x in ('train', 'val')]
  data, d, layers, lines, steps = corpus.TextData('files', *files), 640, 6, 128, 10**6
  if smoke:
    data, d, layers, lines, steps = corpus.TextData('embedded', max_train=100), 32, 1, 4, 2
  opened = corpus.open_text(data, out / 'text')
  tokenizer, _ = caching.tokenizer_of(opened, 300 if smoke else 8000, out / 'text')
  pairs, dev = (
    caching.tokens_of(opened, split, tokenizer, 60, out / 'text') for split in ('train', 'dev')
  )

  def train(name: str, task: Any, pairs: Any, seconds: float) -> tuple[Any, Row]:
    rate = optimizer.OptimizerConfig(d, constant=1.0, warmup=1000)
    config = loop.LoopConfig(steps, keep=1, checkpoint_every=steps, checkpoint_seconds=1e9)
    batches, key = packing.packed_batches(pairs, lines, 64, 0), jax.random.key(0)
    done = loop.train(task, batches, rate, config, out / name, key, budget=seconds)
    size = sum(leaf.size for leaf in jax.tree.leaves(done.params)) / 1e6
    figures = {'million_weights': size, 'steps': done.step}
    return done.params, {'piece': name, 'dtype': 'bfloat16', **figures}

  sizes: Any = {'d_model': d, 'd_ff': 4 * d, 'heads': d // 16, 'vocab_size': tokenizer.vocab_size}
  sizes |= {'encoder_layers': layers, 'decoder_layers': layers, 'dropout': 0.3}
  model: Any = transformer.Transformer(transformer.TransformerConfig(**sizes, dtype='bfloat16'))
  params, row = train('base', state.base_task(model), pairs, 120)
  yield row
  base, params, source = Bound(model, params), half(params), [one for one in pairs.source]
  own = fd.decode_all(model, params, source, fd.Greedy(), max_len=60, rows=4 * lines)
  texts = [row[:length] for row, length in zip(own.tokens, own.lengths, strict=True)]
  sizes = {'vocab_size': model.vocab_size, 'd_target': d, 'k': 8, 'markov': 64}
  network = block.BlockNetwork(layers=start.layers_like(model, 1), **sizes)
  fresh = start.begin(network, base, jax.random.key(1), 'target', None)
  task = tasks.frozen_draft_task(base, Bound(network, fresh), losses.DraftLoss(anchors=16))
  written = tokens.TokenPairs(pairs.source, tokens.Ragged.of(texts))
  learnt, row = train('block draft', task, written, 60)
  yield row
  draft = fd.BlockDraft((network, half(fresh | learnt)), choices=32)
  for batch in batches:
    inputs = np.zeros((2 if smoke else 24, batch, 32), np.int32)
    short = itertools.cycle(one for one in dev.source if len(one) <= 32)
    for line, ids in zip(inputs.reshape(-1, 32), short, strict=False):
      line[: len(ids)] = ids
    ways = {}
    for name, one in (('greedy', fd.Greedy()), ('draft', draft)):
      ways[name] = lambda source, one=one: fd.decode(model, params, source, one, max_len=60)
    times = wallclock.measure(ways, ROUNDS, [(one,) for one in inputs])
    texts = {name: jax.device_get([way(one) for one in inputs]) for name, way in ways.items()}
    same = [(a.tokens == b.tokens).all(1) for a, b in zip(*texts.values(), strict=True)]
    yield {
      'piece': f'clock of a tree of 32, batch {batch}', 'dtype': 'bfloat16', 'batch': batch,
      'ms_a_text': times['draft'].milliseconds / batch,
      'times_greedy': times['draft'].speedup_over(times['greedy']),
      'spread': times['draft'].speedups_over(times['greedy']),
      'tokens_a_call': float(np.mean([one.mean_block_size for one in texts['draft']])),
      'same_texts': float(np.mean(same)),
    }  # fmt: skip


def report(known: Row, found: list[Row]) -> str:
  """Draws the tables of all parts, under the machine."""
  text = [f'# fastdec on {known["device"]}', '; '.join(f'{k} {v}' for k, v in known.items())]
  hidden = {'part', 'dtype', 'batch', 'variant', 'rounds', 'seconds', *known}
  for part in PARTS:
    shown = [row for row in found if row['part'] == part]
    text += [f'## {part.title()}', rows.table(shown, hidden)] if shown else []
  return '\n\n'.join(text) + '\n'


def main() -> None:
  parser = argparse.ArgumentParser(usage=__doc__)
  parser.add_argument('--out', type=pathlib.Path, required=True, help='folder of the results')
  parser.add_argument('--budget', default='420s', help='time to stop after, such as 420s')
  parser.add_argument('--text', default='', help='folder of parallel text for the translator')
  parser.add_argument('--parts', default=','.join(PARTS), help='which, with commas between')
  parser.add_argument('--smoke', action='store_true', help='toy sizes')
  args = parser.parse_args()
  if jax.default_backend() == 'cpu' and not args.smoke:
    parser.error('JAX sees the CPU alone: install jax[cuda13], or try --smoke')
  end, found = time.monotonic() + float(args.budget.rstrip('s')), []
  known = rows.conditions() | {'python': sys.version.split()[0], 'smoke': args.smoke}
  for part, name, seconds, work in pieces(args.out, args.text, args.smoke):
    row = {} if part in args.parts.split(',') else None
    while row is not None and 'error' not in row:
      start = time.monotonic()
      try:
        if end - start < (0 if args.smoke else seconds):
          raise TimeoutError(f'it wants {seconds} s of the budget, and {end - start:.0f} are left')
        row = next(work, None)
      except Exception as error:
        row = {'error': f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'}
      if row is not None:
        row = {'part': part, 'piece': name, **row, 'seconds': time.monotonic() - start, **known}
        found.append(row)
        rows.append(args.out / 'results.jsonl', row)
        (args.out / 'report.md').write_text(report(known, found))
        print(part, row['piece'], f'{row["seconds"]:.0f} s', row.get('error', ''), flush=True)
  print(report(known, found))
  sys.exit(any('error' in row and 'TimeoutError' not in row['error'] for row in found))


if __name__ == '__main__':
  main()
