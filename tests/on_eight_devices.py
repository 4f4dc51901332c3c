"""Computes on eight virtual CPU devices what `test_sharding` checks, and prints it as JSON.

python -m tests.on_eight_devices core   (or: rest, families, drafts, chosen, steps)
"""

import dataclasses
import json
import math
import os
import re
import sys
import tempfile
from unittest import mock

from tests.compiling import xla_flags

os.environ['XLA_FLAGS'] = xla_flags('--xla_force_host_platform_device_count=8')

import grain
import jax
import jax.numpy as jnp
import numpy as np

import fastdec as fd
from fastdec.decoding import sizes
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.pool import decode_all
from fastdec.decoding.run import begin
from fastdec.decoding.sampling import best, draw
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.kernels.quantized import round_kernel
from fastdec.kernels.sharding import (
  WORDS,
  MeshConfig,
  constrain,
  make_mesh,
  mesh_of,
  partition_of,
  place,
  place_rows,
  using,
)
from fastdec.models.experts import ExpertsConfig
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.layers import look_up
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.losses import DraftLoss
from fastdec.training.drafts.start import layers_like
from fastdec.training.drafts.tasks import finetuned_draft_task, frozen_draft_task
from fastdec.training.loop import LoopConfig, make_step, train
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import TrainState, base_task, finetuned_heads_task, frozen_heads_task
from tests.decoding import methods_table
from tests.training.fakes import pairs

MODEL = Transformer(
  TransformerConfig(vocab_size=30, d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1)
)
HEADS3 = BlockwiseHeads(k=3, d_model=16, d_ff=16)
TABLE, HEADS3_TABLE = MODEL.partition(2), HEADS3.partition(2)
MESHES = {'8 x 1': MeshConfig(8, 1), '4 x 2': MeshConfig(4, 2)}
SOURCES = np.random.default_rng(0).integers(2, 30, (8, 6)).astype(np.int32)
OPTIMIZER = OptimizerConfig(d_model=16, warmup=5)


def decoding(params, head_params, cases):
  """Returns whether each strategy writes the same tokens as on one device."""
  found, alone = {}, {}
  for name, kind in cases:
    mesh = make_mesh(MESHES[name])
    placed, placed_heads = place(params, mesh, TABLE), place(head_params, mesh, HEADS3_TABLE)
    if kind not in alone:
      alone[kind] = translated(kind, params, head_params)
    found[f'{kind} on {name}'] = np.allclose(
      alone[kind], translated(kind, placed, placed_heads), rtol=1e-5
    )
  return found


def translated(kind, params, head_params):
  """The tokens of each row, or the scores of given ones; 'grown ...': by caches that grow."""
  if kind.startswith('grown '):
    with mock.patch.object(sizes, 'FIRST', 3):
      return translated(kind.removeprefix('grown '), params, head_params)
  if kind == 'score':
    return fd.score(MODEL, params, SOURCES, SOURCES).total
  if kind == 'data set':
    return decode_all(MODEL, params, list(SOURCES), fd.Greedy(), 10, rows=8).tokens
  if kind == 'trace':  # of any number of rows, with the calls of its replay
    lookup = fd.PromptLookup(ngram=1, k=3)
    trace = fd.trace(MODEL, params, list(SOURCES[:3]), lookup, 10)
    calls = fd.replay(trace, lookup, MODEL, params).calls
    return np.concatenate([*trace.texts, trace.call_ends, calls])
  strategies = {
    'greedy': fd.Greedy(), 'blockwise': fd.Blockwise((HEADS3, head_params)), 'beam': fd.Beam(2),
    'sample': fd.Sample()
  }  # fmt: skip
  return fd.decode(
    MODEL, params, SOURCES, strategies[kind], max_len=10, key=jax.random.key(1)
  ).tokens


def images():
  """Whether blockwise decoding of images on a mesh, with rings in parts, is that of one device."""
  sizes = dict(
    d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, source_size=2, size=4,
    block_length=6,
  )  # fmt: skip
  model = ImageTransformer(ImageTransformerConfig(**sizes))
  params, head_params = model.init(jax.random.key(0)), HEADS3.init(jax.random.key(1))
  small = np.random.default_rng(0).integers(0, 256, (8, 2, 2, 3)).astype(np.uint8)
  made = lambda params, head_params: (
    fd.decode(model, params, small, fd.Blockwise((HEADS3, head_params))).tokens
  )
  mesh = make_mesh(MESHES['4 x 2'])
  placed = made(place(params, mesh, model.partition(2)), place(head_params, mesh, HEADS3_TABLE))
  return {'images on 4 x 2': bool((made(params, head_params) == placed).all())}


def compiled(params, cases):
  """Returns the cache's sharding after `init` and after a compiled step, and what a step sends
  between devices."""
  found = {}
  for name, kind, strategy in cases:
    mesh = make_mesh(MESHES[name])
    placed = place(params, mesh, TABLE)
    max_len, *prompt = check_inputs(MODEL, SOURCES, None, None, 10, None)
    with using(mesh):
      target = Bound(MODEL, placed)
      state = begin(target, strategy, *place_rows(tuple(prompt), mesh), max_len)
      step = jax.jit(strategy.step).lower(target, state).compile()
    # the beams of a row share a cache
    cache, stepped = (getattr(x.cache, 'cache', x.cache) for x in (state, step.output_shardings))
    before, memory, after = cache.own.layers[0], cache.memory, stepped.own.layers[0]
    shardings = [x.sharding for x in (before.k, before.v, memory.layers[0].k)] + [after.k, after.v]
    specs = [str(sharding.spec) for sharding in shardings]
    sent = re.findall(
      r'(all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(', step.as_text()
    )
    found[f'{kind} on {name}'] = {'specs': sorted(set(specs)), 'sent': sorted(set(sent))}
  return found


def looked_up():
  """Whether embeddings that are split by words are, bit for bit, those of one device."""
  mesh = make_mesh(MESHES['4 x 2'])
  wide, ids = jax.random.normal(jax.random.key(0), (30, 16)), SOURCES
  tables = {'float32': wide, 'bfloat16': wide.astype('bfloat16'), 'int8': round_kernel(wide)}
  found = {}
  for name, table in tables.items():
    of_words = place({'embedding': table}, mesh, WORDS)['embedding']
    for shape, some in {'rows': ids, 'one': ids[0, 0]}.items():
      alone = jax.jit(look_up)(table, some)
      with using(mesh):
        found[f'{name}, {shape}'] = bool((jax.jit(look_up)(of_words, some) == alone).all())
  return found


def steps(*names):
  """The number of parameters that each task trains, and what devices exchange in a step of it."""
  target = Bound(MODEL, jax.jit(MODEL.init)(jax.random.key(0)))
  eagle, block = draft_networks()
  drafts = [Bound(module, module.init(jax.random.key(1))) for module in (eagle, block)]
  tasks = {
    'base': base_task(MODEL),
    'a drawn head': frozen_heads_task(MODEL, HEADS3, target.params),
    'all heads, and the base': finetuned_heads_task(MODEL, HEADS3, target.params, draw='all'),
    'heads at some places': frozen_heads_task(MODEL, HEADS3, target.params, draw='all', anchors=4),
    'eagle': frozen_draft_task(target, drafts[0], DraftLoss(passes=2, anchors=4)),
    'block, and the base': finetuned_draft_task(target, drafts[1], DraftLoss(kl=0.5), 0.5, 0.1),
  }
  found = {}
  for name in names or tasks:
    task = tasks[name]
    state = TrainState.create(task, OPTIMIZER.build(), jax.random.key(2))
    sent = exchanges(task, state, make_mesh(MESHES['8 x 1']), ())
    found[name] = {'trained': sum(x.size for x in jax.tree.leaves(state.params)), 'sent': sent}
  return found


def exchanges(task, state, mesh, table):
  """The kind, type and number of entries of each array that devices exchange in a training step."""
  state = place(state, mesh, table)
  shardings = jax.tree.map(lambda x: x.sharding, state)
  step = make_step(task, OPTIMIZER.build(), OPTIMIZER.learning_rate, 1, shardings)
  with using(mesh):
    program = step.lower(state, task.frozen, place_rows(pairs(0, rows=16), mesh)).compile()
  sent = []
  exchange = r'= (.*?) (all-\w+|reduce-scatter|collective-\w+)(?:-start)?\(.*?op_name="(.*?)"'
  for shapes, kind, source in re.findall(exchange, program.as_text()):
    for dtype, shape in re.findall(r'(\w+)\[([\d,]*)\]', shapes):
      entries = math.prod(int(size) for size in shape.split(',') if size)
      sent.append({'kind': kind, 'dtype': dtype, 'entries': entries, 'source': source})
  return sent


def gathered_for_embeddings():
  """What a training step gathers for its embeddings."""
  base, mesh = base_task(MODEL), make_mesh(MESHES['4 x 2'])
  state = TrainState.create(base, OPTIMIZER.build(), jax.random.key(2))
  sent = exchanges(base, state, mesh, TABLE)
  return [one for one in sent if one['kind'] == 'all-gather' and 'embed' in one['source']]


def losses(task, mesh, table, accumulate=1):
  transform = OPTIMIZER.build()
  state = TrainState.create(task, transform, jax.random.key(2))
  shardings = None
  if mesh is not None:
    state = place(state, mesh, table)
    shardings = jax.tree.map(lambda x: x.sharding, state)
  step = make_step(task, transform, OPTIMIZER.learning_rate, accumulate, shardings)
  found = []
  for i in range(3):
    with using(mesh):
      state, metrics = step(state, task.frozen, place_rows(pairs(i, rows=16), mesh))
    found.append([float(metrics['loss']), float(metrics['gradient_norm'])])
  return found


def core(params, head_params):
  """The most important results, in seconds."""
  base = base_task(MODEL)
  return {
    'decoding': decoding(params, head_params, [('4 x 2', 'greedy')]),
    'compiled': compiled(params, [('4 x 2', 'greedy', fd.Greedy())]),
    'losses': {
      '1': losses(base, None, ()),
      '4 x 2': losses(base, make_mesh(MESHES['4 x 2']), TABLE),
    },
    'packing': packing(params),
    'looked up': looked_up(),
    'gathered for embeddings': gathered_for_embeddings(),
    'steps': steps('base'),
    'words': words(),
  }


# Cuts that the best few tokens decide, cuts that need all tokens, and settings of rows.
CUTS = {
  'none': fd.Sampling(0.7),
  'few': fd.Sampling(0.7, top_k=5),
  'beyond the best few': fd.Sampling(0.7, top_k=700),
  'sharp': fd.Sampling(0.2, top_p=0.8),
  'flat': fd.Sampling(50.0, top_p=0.8),
  'least': fd.Sampling(1.5, min_p=0.03),
  'all of them': fd.Sampling(3.0, 600, 0.7, 0.01),
  'rows': fd.Sampling([0, 0.5, 1, 1, 2, 9, 0, 1], [0, 9, 300, 2, 0, 999, 0, 1], [0.9, 1] * 4),
}


def words():
  """Whether logits [8, 3, 4096] that are split by words have the same best tokens, the same tokens
  left by each cut, and the same draws as on one device; and the widest array that is exchanged."""
  rng = np.random.default_rng(0)
  x = np.round(rng.normal(0, 3, (8, 3, 4096)), 1).astype(np.float32)  # 200 different ones
  x[0], x[1, :, ::2], x[2, 0, :4000] = 0, -np.inf, -1
  keys = jax.random.split(jax.random.key(0), 8)

  def choose(x):
    x = constrain(x, 'data', None, 'model')
    return best(x, 1), best(x, 7), best(x, 400)

  def cut(x, sampling):
    log_p = sampling.log_probs(constrain(x, 'data', None, 'model'))
    return log_p > -jnp.inf, draw(keys, log_p)

  found, widest = {}, 0
  meshes = {'4 x 2': make_mesh(MESHES['4 x 2']), '1 x 8': make_mesh(MeshConfig(1, 8))}
  alone = {}
  for name, mesh in {'one device': None, **meshes}.items():
    with using(mesh):
      chosen = jax.jit(choose)(x)
      kept = {of: jax.jit(cut)(x, sampling) for of, sampling in CUTS.items()}
      compiled = jax.jit(cut).lower(x, CUTS['rows']).compile().as_text()
    results = {'best': chosen} | kept
    alone = alone or results
    for of, result in results.items():
      same = jax.tree.map(
        lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), alone[of], result
      )
      found[f'{of} on {name}'] = all(jax.tree.leaves(same))
    for shape in re.findall(r'= \w+\[([\d,]+)\]\S* (?:all-|collective-)', compiled):
      widest = max(widest, int(shape.split(',')[-1]))
  return {'same': found, 'widest': widest}


def chosen():
  """Whether strategies that draw, rank and compare 2,048 words write on 4 x 2 devices what they do
  on one, by the same blocks; in float64, where other sums of probabilities decide alike."""
  make = {name: methods_table.DRAWN[name] for name in ('speculative', 'eagle, a growing tree')}
  make['block, a chain, as a block'] = methods_table.DRAWN['block, a chain, as a block']
  make['flat'] = lambda kit: fd.Sample(9.0, top_k=900, top_p=0.9, min_p=1e-3)
  make['top n'] = lambda kit: fd.Blockwise(kit.heads('separate'), rule=fd.TopN(40))
  make['tree'] = lambda kit: fd.Medusa(kit.heads('separate'), methods_table.TREE)
  found = {}
  with jax.enable_x64(True):
    sizes = dict(vocab_size=2048, d_model=16, d_ff=32, heads=4, layers=1, dtype='float64')
    model, mesh = LM(LMConfig(**sizes)), make_mesh(MESHES['4 x 2'])
    params = jax.jit(model.init)(jax.random.key(0))
    kit = methods_table.fresh_kit(model, params)

    def on_mesh(module, values):
      return module, place(values, mesh, partition_of(module, 2))

    placed = dataclasses.replace(
      kit,
      heads=lambda kind: on_mesh(*kit.heads(kind)),
      draft=on_mesh(*kit.draft),
      network=lambda kind: on_mesh(*kit.network(kind)),
    )
    for name, made in make.items():
      changed = fd.Processors(repetition_penalty=1.2, no_repeat_ngram=2)
      alone, there = (
        fd.decode(
          model, values, SOURCES, made(parts), max_len=8, key=jax.random.key(1),
          processors=changed if name in ('flat', 'tree') else None,
        )
        for parts, values in ((kit, params), (placed, on_mesh(model, params)[1]))
      )  # fmt: skip
      same = (alone.tokens == there.tokens).all() and (alone.block_sizes == there.block_sizes).all()
      found[name] = bool(same)
  return found


def packing(params):
  """Why parameters on a mesh are not packed."""
  try:
    fd.pack(MODEL, place(params, make_mesh(MESHES['4 x 2']), TABLE))
  except fd.UserError as error:
    return str(error)
  return 'they are'


def rest(params, head_params):
  kinds = ['beam', 'blockwise', 'sample', 'score', 'data set', 'trace']
  kinds += ['grown greedy', 'grown beam', 'grown data set']
  others = [('4 x 2', kind) for kind in kinds]
  heads = finetuned_heads_task(MODEL, HEADS3, params, draw='all')
  base = base_task(MODEL)
  data, both = make_mesh(MESHES['8 x 1']), make_mesh(MESHES['4 x 2'])
  return {
    'decoding': decoding(params, head_params, [('8 x 1', 'beam'), *others]) | images(),
    'compiled': compiled(params, [('8 x 1', 'beam', fd.Beam(2))]),
    'losses': {
      '1': losses(base, None, ()), '8 x 1': losses(base, data, TABLE)
    },
    'losses of heads': {
      '1': losses(heads, None, ()), '4 x 2': losses(heads, both, (*TABLE, *HEADS3_TABLE))
    },
    'losses in parts': {'1': losses(base, None, ()), '8 x 1': losses(base, data, TABLE, 2)},
    'continuing': continuing(),
  }  # fmt: skip


def drafts():
  """The losses of draft networks: one trained on a model that stays, at a sample of places, and one
  with its model, each on a mesh in one part and in two; and whether each, and heads with a bias,
  decode on 4 x 2 devices what they do on one."""
  target, mesh = Bound(MODEL, jax.jit(MODEL.init)(jax.random.key(0))), make_mesh(MESHES['4 x 2'])
  eagle, block = draft_networks()
  tasks = {
    eagle: frozen_draft_task(
      target, Bound(eagle, eagle.init(jax.random.key(1))), DraftLoss(passes=2, anchors=4)
    ),
    block: finetuned_draft_task(
      target, Bound(block, block.init(jax.random.key(1))), DraftLoss(kl=0.5), 0.5, 0.1
    ),
  }
  found = {}
  for module, task in tasks.items():
    table = (*TABLE, *module.partition(2))
    of_kind = {'1': losses(task, None, ()), '4 x 2': losses(task, mesh, table)}
    found[type(module).__name__] = of_kind | {'in parts': losses(task, mesh, table, 2)}
  biased = BlockwiseHeads(k=4, d_model=16, d_ff=16, rooted=True, markov=2, words=30)
  modules = (eagle, block, biased)
  return {
    'losses': found,
    'decoding': {type(module).__name__: drafted(target, module, mesh) for module in modules},
  }


def draft_networks():
  """One that guesses after its own guesses, and one that guesses all at once."""
  same = {'layers': layers_like(MODEL, 1), 'vocab_size': 30, 'd_target': 16}
  return EagleNetwork(**same, words=20), BlockNetwork(**same, k=3, markov=2)


def drafted(target, module, mesh):
  """Whether a draft, or heads, write the same texts by the same blocks on a mesh; with `TopN`, by
  wrong guesses too."""
  params = module.init(jax.random.key(3))
  if 'after' in params:  # a fresh bias does nothing
    params['after'] += jax.random.normal(jax.random.key(4), params['after'].shape)
  strategies = {
    BlockwiseHeads: lambda params: fd.Blockwise((module, params), rule=fd.TopN(15)),
    EagleNetwork: lambda params: fd.Eagle((module, params), 2, 2, 5, fd.TopN(15)),
    BlockNetwork: lambda params: fd.BlockDraft((module, params), rule=fd.TopN(15)),
  }
  made = strategies[type(module)]
  alone = fd.decode(*target, SOURCES, made(params), max_len=10)
  placed = place(target.params, mesh, TABLE), made(place(params, mesh, module.partition(2)))
  there = fd.decode(target.module, placed[0], SOURCES, placed[1], max_len=10)
  assert alone.mean_block_size > 1.1
  return bool(
    (alone.tokens == there.tokens).all() and (alone.block_sizes == there.block_sizes).all()
  )


def families():
  """Whether language models, T5 and FConv decode on 4 x 2 devices what they do on one; the shapes
  there."""
  sizes = dict(vocab_size=32, d_model=16, d_ff=24, heads=4)
  grouped = LM(
    LMConfig(
      **sizes, layers=2, key_heads=2, qkv_bias=True, out_bias=True, mlp_bias=True, tied=False
    )
  )
  mixture = {}  # the experts are on the devices of an axis, or each device has all
  for count in (4, 5):
    experts = ExpertsConfig(count, chosen=2, d_ff=24, bias=True)
    mixture[count] = LM(LMConfig(**sizes, layers=1, experts=experts))
  one_key = LM(LMConfig(**sizes, layers=1, key_heads=1))
  gated = T5(
    T5Config(**sizes, d_kv=4, encoder_layers=1, decoder_layers=1, is_gated=True, is_tied=False)
  )
  post = Transformer(  # like BART
    TransformerConfig(
      **sizes, encoder_layers=1, decoder_layers=1, norm='post', positions='learned',
      embedding_norm=True, output_bias=True, attention_bias=True, decoder_heads=2,
    )
  )  # fmt: skip
  layers = dict(encoder_layers=((16, 3),), decoder_layers=((16, 3), (12, 2)))
  gates = FConv(FConvConfig(vocab_size=32, d_embed=16, d_out=16, **layers))
  mesh = make_mesh(MESHES['4 x 2'])
  twice = lambda module, params: (params, place(params, mesh, module.partition(2)))
  grouped_params = twice(grouped, jax.jit(grouped.init)(jax.random.key(0)))
  int8_params = twice(grouped, fd.quantize(grouped, grouped_params[0]))
  experts_params = {
    count: twice(model, jax.jit(model.init)(jax.random.key(5))) for count, model in mixture.items()
  }
  int8_experts = twice(mixture[4], fd.quantize(mixture[4], experts_params[4][0]))
  key_params = twice(one_key, jax.jit(one_key.init)(jax.random.key(1)))
  t5_params = twice(gated, jax.jit(gated.init)(jax.random.key(2)))
  post_params = twice(post, jax.jit(post.init)(jax.random.key(6)))
  fconv_params = twice(gates, jax.jit(gates.init)(jax.random.key(4)))
  speculative = [fd.Speculative((one_key, params), gamma=3) for params in key_params]
  own, shared = MedusaHeads(depth=2, d_model=16, vocab_size=32), MedusaHeads(depth=2, d_model=16)
  heads = {
    module: twice(module, jax.tree.map(lambda x: x + 0.1, module.init(jax.random.key(3))))
    for module in (own, shared)
  }
  tree = lambda module: [
    fd.Medusa((module, params), [[0], [1], [0, 0]]) for params in heads[module]
  ]
  pool = fd.build_pool(list(SOURCES), ngram=3)
  cases = {
    'grouped heads': (grouped, grouped_params, [fd.Greedy()] * 2),
    'grouped heads in int8': (grouped, int8_params, [fd.Greedy()] * 2),
    'grouped heads, speculative': (grouped, grouped_params, speculative),
    'one key head': (one_key, key_params, [fd.Greedy()] * 2),
    'experts': (mixture[4], experts_params[4], [fd.Greedy()] * 2),
    'experts in int8': (mixture[4], int8_experts, [fd.Greedy()] * 2),
    'experts, lookup': (mixture[4], experts_params[4], [fd.PromptLookup(ngram=1, k=3)] * 2),
    'experts that do not divide': (mixture[5], experts_params[5], [fd.Greedy()] * 2),
    't5': (gated, t5_params, [fd.Greedy()] * 2),
    'bart': (post, post_params, [fd.Greedy()] * 2),
    'bart, lookup': (post, post_params, [fd.PromptLookup(ngram=1, k=3)] * 2),
    'fconv': (gates, fconv_params, [fd.Beam(2)] * 2),
    'medusa': (grouped, grouped_params, tree(own)),
    'lookahead': (grouped, grouped_params, [fd.Lookahead(3, 3, 2, pool=pool)] * 2),
    'jacobi': (gated, t5_params, [fd.Jacobi(4)] * 2),
    'lookup': (gates, fconv_params, [fd.PromptLookup(pool=pool)] * 2),
    "medusa, the model's projection": (gated, t5_params, tree(shared)),
  }
  tokens = {}
  for name, (model, params, strategies) in cases.items():
    both = zip(params, strategies, strict=True)
    alone, placed = (
      fd.decode(model, values, SOURCES, strategy, max_len=10) for values, strategy in both
    )
    tokens[name] = bool(
      (alone.tokens == placed.tokens).all() and (alone.block_sizes == placed.block_sizes).all()
    )
  states = {}
  for name, model, params in (
    ('lm', grouped, grouped_params),
    ('experts', mixture[4], experts_params[4]),
    ('t5', gated, t5_params),
    ('fconv', gates, fconv_params),
  ):
    alone, placed = (tapped(model, values) for values in params)
    states[name] = all(
      np.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(alone, placed, strict=True)
    )
  parts = {
    name: {path: part for path, part in map(part_of, jax.tree.leaves_with_path(placed)) if part}
    for name, (_, placed) in {
      'grouped heads': grouped_params, 'one key head': key_params, 't5': t5_params,
      'experts': experts_params[4],
      'fconv': fconv_params, 'medusa': heads[own],
    }.items()
  }  # fmt: skip
  return {'tokens': tokens, 'parts': parts, 'taps': states}


def tapped(model, params):
  """States of every layer, as a draft learns from them."""
  target, ones = SOURCES[:, :4], np.ones((8, 4), np.int32)
  batch = {
    'target': target,
    'target_segment': ones,
    'target_position': ones * np.arange(4, dtype=np.int32),
  }
  if model.start_id is not None:
    source, ones = SOURCES, np.ones((8, 6), np.int32)
    batch |= {
      'source': source,
      'source_segment': ones,
      'source_position': ones * np.arange(6, dtype=np.int32),
    }
  features = jax.jit(
    lambda params, batch: model.features(params, batch, tuple(range(model.layers + 1)))
  )
  mesh = mesh_of(params)
  with using(mesh):
    return features(params, place_rows(batch, mesh)).taps


def part_of(leaf):
  """The path, and the shape of what one device has; None if that is all."""
  path, x = leaf
  shape = x.addressable_shards[0].data.shape
  return jax.tree_util.keystr(path, simple=True, separator='/'), None if shape == x.shape else shape


def continuing():
  """The largest difference in parameters between a run that changes its mesh half way, and one that
  does not."""

  def run(workdir, steps, mesh):
    config = LoopConfig(steps, checkpoint_every=2)
    data = grain.MapDataset.range(10).map(lambda i: pairs(i, rows=8)).repeat()
    return train(
      base_task(MODEL), data, OPTIMIZER, config, workdir, jax.random.key(3), None, None, mesh, TABLE
    )

  with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
    whole = run(one, 4, None)
    run(two, 2, make_mesh(MESHES['4 x 2']))
    changed = run(two, 4, None)
  apart = jax.tree.map(
    lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), whole.params, changed.params
  )
  return max(jax.tree.leaves(apart))


if __name__ == '__main__':
  models = lambda: [jax.jit(one.init)(jax.random.key(i)) for i, one in enumerate((MODEL, HEADS3))]
  parts = {
    'core': lambda: core(*models()),
    'rest': lambda: rest(*models()),
    'families': families,
    'chosen': chosen,
    'drafts': drafts,
    'steps': steps,
  }
  print(json.dumps(parts[sys.argv[1]]()))
