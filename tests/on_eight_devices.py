"""What `test_sharding` looks at, found on eight virtual CPU devices: `python -m tests.on_eight_devices` prints JSON."""

import dataclasses
import json
import os
import re
import tempfile

os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0'

import grain
import jax
import numpy as np

import fastdec as fd
from fastdec.decoding import decode
from fastdec.decoding.inputs import checked
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.sharding import HEADS, TRANSFORMER, MeshConfig, make_mesh, place, place_rows, using
from fastdec.training.loop import LoopConfig, make_step, train
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import TrainState, base_task, finetuned_heads_task
from tests.training.fakes import pairs

MODEL = Transformer(TransformerConfig(vocab_size=30, d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1))
HEADS3 = BlockwiseHeads(k=3, d_model=16, d_ff=16)
MESHES = {'8 x 1': MeshConfig(8, 1), '4 x 2': MeshConfig(4, 2)}
SOURCES = np.random.default_rng(0).integers(2, 30, (8, 6)).astype(np.int32)
OPTIMIZER = OptimizerConfig(d_model=16, warmup=5)


def decoding(params, head_params):
  """Whether each strategy's tokens, and the scores of given ones, are those of one device."""
  found, alone = {}, {}
  for name, kinds in (('8 x 1', ('beam',)), ('4 x 2', ('beam', 'greedy', 'blockwise', 'sample'))):
    mesh = make_mesh(MESHES[name])
    placed, placed_heads = place(params, mesh, TRANSFORMER), place(head_params, mesh, HEADS['separate'])
    for kind in kinds:
      if kind not in alone:
        alone[kind] = translated(kind, params, head_params)
      found[f'{kind} on {name}'] = np.array_equal(alone[kind], translated(kind, placed, placed_heads))
  one, many = (fd.score(MODEL, p, SOURCES, SOURCES).total for p in (params, placed))
  return found | {'score on 4 x 2': np.allclose(one, many, rtol=1e-5)}


def translated(kind, params, head_params):
  strategies = {
    'greedy': fd.Greedy(), 'blockwise': fd.Blockwise((HEADS3, head_params)), 'beam': fd.Beam(2), 'sample': fd.Sample()
  }  # fmt: skip
  return fd.decode(MODEL, params, SOURCES, strategies[kind], max_len=10, key=jax.random.key(1)).tokens


def compiled(params):
  """How the cache lies after `init` and after a compiled step, and what a step sends between devices."""
  found = {}
  for name, kind, strategy in (('8 x 1', 'beam', fd.Beam(2)), ('4 x 2', 'greedy', fd.Greedy())):
    mesh = make_mesh(MESHES[name])
    placed = place(params, mesh, TRANSFORMER)
    max_len, *prompt = checked(MODEL, SOURCES, None, None, 10, None)
    with using(mesh):
      state = decode._init(MODEL, strategy, placed, *place_rows(tuple(prompt), mesh), max_len)
      step = decode._step.lower(MODEL, strategy, placed, state).compile()
    before, memory = state.cache.own.layers[0], state.cache.memory
    after = step.output_shardings.cache.own.layers[0]
    shardings = [x.sharding for x in (before.k, before.v, memory.layers[0].k)] + [after.k, after.v]
    specs = [str(sharding.spec) for sharding in shardings]
    sent = re.findall(r'(all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(', step.as_text())
    found[f'{kind} on {name}'] = {'specs': sorted(set(specs)), 'sent': sorted(set(sent))}
  return found


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


def training(params):
  """Losses and norms of gradients of three steps, dropout included."""
  base, heads = base_task(MODEL), finetuned_heads_task(MODEL, HEADS3, params, draw='all')
  both = (*TRANSFORMER, *HEADS['separate'])
  found = {'base': {'1': losses(base, None, ())}, 'heads': {'1': losses(heads, None, ())}}
  for name, config in MESHES.items():
    found['base'][name] = losses(base, make_mesh(config), TRANSFORMER)
  found['heads']['4 x 2'] = losses(heads, make_mesh(MESHES['4 x 2']), both)
  sure = base_task(Transformer(dataclasses.replace(MODEL.config, dropout=0, attention_dropout=0, activation_dropout=0)))
  found['parts'] = {'1': losses(sure, None, ()), '8 x 1': losses(sure, make_mesh(MESHES['8 x 1']), TRANSFORMER, 2)}
  return found


def continuing():
  """The largest difference in parameters between a run that changes its mesh half way, and one that does not."""

  def run(workdir, steps, mesh):
    config = LoopConfig(steps, checkpoint_every=2)
    data = grain.MapDataset.range(10).map(lambda i: pairs(i, rows=8)).repeat()
    return train(base_task(MODEL), data, OPTIMIZER, config, workdir, jax.random.key(3), None, None, mesh, TRANSFORMER)

  with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
    whole = run(one, 4, None)
    run(two, 2, make_mesh(MESHES['4 x 2']))
    changed = run(two, 4, None)
  apart = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), whole.params, changed.params)
  return max(jax.tree.leaves(apart))


if __name__ == '__main__':
  params, head_params = MODEL.init(jax.random.key(0)), HEADS3.init(jax.random.key(1))
  found = {
    'decoding': decoding(params, head_params), 'compiled': compiled(params), 'training': training(params),
    'continuing': continuing(),
  }  # fmt: skip
  print(json.dumps(found))
