"""Block drafts of every layout compute their authors' formulas, also with options of which there is
no case by their code."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import fastdec as fd
from fastdec.decoding.methods.eagle import Read
from fastdec.models.lm import LM, LMConfig
from fastdec.struct import Bound
from tests.hub.draft_formulas import Block, dflash2, domino, lilicorr, walk
from tests.hub.draft_layouts import (
  BLOCK,
  EMBEDDED,
  GRU,
  HEAD,
  QWEN3,
  SELECTOR,
  D,
  V,
  convolutions,
  prefixed,
  qwen3,
  tensors_of,
)  # fmt: skip
from tests.hub.draft_layouts import lilicorr as correlator

N, ROWS, MASK, EPSILON = 9, 4, 9, 0.02
SLIDING = {'use_sliding_window': True, 'sliding_window': 4}
SLIDING |= {'layer_types': ['sliding_attention', 'full_attention']}
SHAPES = BLOCK | qwen3(2)


def everything(layer, row, key):
  return True


def earlier(layer, row, key):
  return key <= row


def near(window, causal, cut=True, layers=(0,)):
  """The last `window` positions up to the row, in some layers; `cut`: rows count too."""

  def sees(layer, row, key):
    if layer not in layers:
      return key <= row if causal == 'all' else True
    is_near = row - key < window and (key - row < window or not cut)
    return (is_near or (key >= 0 and not cut)) and (key <= row or causal == 'none')

  return sees


def at_the_root(window):
  return lambda layer, row, key: key >= -window


def argmax(block, states, root, first=1):
  return walk(root, ROWS - 1, lambda i, *_: block.logits(states)[first + i])


def of_domino(**settings):
  return lambda block, states, context, root: domino(block, states, root, **settings)


def of_dflash2(**settings):
  return lambda block, states, context, root: dflash2(block, states, root, **settings)


def of_lilicorr(count):
  settings = {'layers': 1, 'heads': 2, 'epsilon': 0.3, 'scale': 7.0}
  return lambda block, states, context, root: lilicorr(
    block, states, root, context, count, **settings
  )


def lattice(count, width, **settings):
  return {
    'projector_type': 'lilicorr', 'lilicorr_candidate_topk': count, 'lilicorr_hidden_size': width,
    'lilicorr_num_layers': 1, 'lilicorr_num_heads': 2, 'lilicorr_mlp_ratio': 1.5,
    'lilicorr_factor_dim': 3, 'lilicorr_vector_eps': 0.3, 'lilicorr_logit_scale': 7.0, **settings,
  }  # fmt: skip


PLAIN_LATTICE = {k: v for k, v in correlator(3, 5, D, 12, 3).items() if 'token_proj' not in k}
CHOSEN = {
  'projector_type': 'dflash2', 'conv_group_size': 4, 'selector_rank': 3, 'selector_top_k': 4,
}  # fmt: skip
RECURRENT = {'projector_type': 'domino', 'emb_dim': 3, 'gru_hidden_dim': 4}
# at the top of config.json, in its dflash_config, more shapes, what a row sees, other settings of
# the formulas, and those of the chain
CASES = {
  'no key': ({}, {}, {}, everything, {}, None),
  'causal_head of JetSpec': ({}, {'causal_head': True}, {}, earlier, {}, None),
  'a wider target of JetSpec': (
    {}, {'causal_head': True, 'target_hidden_size': 10},
    EMBEDDED | HEAD | {'hidden_dim_adapter.proj.weight': (D, 10)}, earlier, {}, None,
  ),
  'causal, by Model-Optimizer': ({}, {'causal': True}, {}, earlier, {}, None),
  'JetSpec of Automodel': (
    SLIDING | {'is_causal': False}, {'causal': True, 'block_size': ROWS}, {}, near(4, 'all'), {},
    None,
  ),
  'is_causal with a window': (SLIDING | {'is_causal': True}, {}, {}, near(4, 'all'), {}, None),
  'a window, by SpecForge': (SLIDING, {}, {}, near(4, 'windows', cut=False), {}, None),
  'a window smaller than the block, by SpecForge': (
    SLIDING | {'sliding_window': 2}, {}, {}, near(2, 'windows', cut=False), {}, None,
  ),
  'a window smaller than the block, by Automodel': (
    SLIDING | {'sliding_window': 3, 'is_causal': False}, {}, {}, near(3, 'none'), {}, None,
  ),
  'use_swa of Model-Optimizer': (
    {'sliding_window': 6, 'layer_types': ['full_attention'] * 2},
    {'use_swa': True, 'swa_window_size': 5, 'causal': False}, {},
    near(5, 'none', layers=(0, 1)), {}, None,
  ),
  'use_swa with the window at the top': (
    {'sliding_window': 5}, {'use_swa': True}, {}, near(5, 'none', layers=(0, 1)), {}, None,
  ),
  'embeddings as taps': ({}, {'target_layer_ids': [-1, 0, 1]}, {}, everything, {}, None),
  'dflash 2 of Automodel with scalings': (
    {'architectures': ['Qwen3DFlash2DraftModel'], 'is_causal': False},
    CHOSEN | {'projector_type': None, 'conv_kernel_size': 3, 'block_size': ROWS,
              'input_embedding_scale': 2.5, 'output_multiplier': 0.3,
              'final_logit_softcapping': 2.0},
    SELECTOR | convolutions(2, 3, 4), everything, {'scale': 2.5},
    of_dflash2(count=4, multiplier=0.3, cap=2.0),
  ),
  'dflash 2 with a kernel longer than the block': (
    {'block_size': None, 'is_causal': False}, CHOSEN | {'conv_kernel_size': 5, 'block_size': ROWS},
    SELECTOR | convolutions(2, 5, 4), everything, {}, of_dflash2(count=4),
  ),
  'lilicorr as wide as the draft': (
    {}, lattice(5, 0), PLAIN_LATTICE, everything, {}, of_lilicorr(5),
  ),
  'lilicorr of two candidates, with convolutions': (
    {}, lattice(2, 6, causal=False, conv_kernel_size=2, conv_group_size=2),
    convolutions(2, 2, 2) | correlator(3, 2, 6, 9, 3), everything, {'group': 2}, of_lilicorr(2),
  ),
  'domino, shifted, all corrected': (
    {}, RECURRENT | {'shift_label': True}, GRU, everything, {}, of_domino(first=0, bare=0),
  ),
  'domino, not shifted, two bare': (
    {}, RECURRENT | {'pure_draft_prefix_len': 2}, GRU, everything, {}, of_domino(first=1, bare=2),
  ),
  'domino with its early names': (
    {}, RECURRENT | {'pure_draft_prefix_len': 1}, prefixed('logit_head.', GRU), everything, {},
    of_domino(first=1, bare=1, prefix='logit_head.'),
  ),
}  # fmt: skip


@jax.jit
def draft_of(drafter, target, states):
  """Returns the states of blocks after each word, and the tokens of their chains."""
  module, params = drafter.draft
  parts = jnp.split(states[None], len(module.taps), axis=-1)
  features = jnp.repeat(module.features(params, parts[0], parts), V, axis=0)
  cache = module.init_cache(params, None, V, N + 16)
  root = jnp.arange(V, dtype=jnp.int32)
  rows, cache = module.see(params, target, features, jnp.zeros((V, N), jnp.int32), cache)
  cache = cache.commit(None, jnp.full(V, N, jnp.int32))
  read = module.read(params, target, root, rows[:, -1], cache)
  draft, _ = drafter.propose(target, Read(cache, rows[:, -1]), root, None)
  return read, draft.tokens[:, 1:]


@pytest.mark.parametrize('name', CASES)
@pytest.mark.wide(
  'a wider*', '*by Automodel', 'use_swa with*', 'dflash 2 of*', 'lilicorr of two*', 'domino, not*'
)
def test_a_block_computes_its_authors_formulas(name, tmp_path):
  outer, inner, shapes, sees, settings, head = CASES[name]
  config = QWEN3 | {'num_hidden_layers': 2, 'rms_norm_eps': EPSILON, 'block_size': ROWS} | outer
  config['dflash_config'] = {'mask_token_id': MASK, 'target_layer_ids': [0, 2, 4]} | inner
  tensors = tensors_of(SHAPES | shapes)
  (tmp_path / 'config.json').write_text(json.dumps(config))
  save_file(tensors, tmp_path / 'model.safetensors')
  module, params = fd.load_draft(tmp_path)
  assert module.taps == tuple(k + 1 for k in config['dflash_config']['target_layer_ids'])

  # The target has random embeddings, and a projection of its own.
  rng = np.random.default_rng(1)
  width = inner.get('target_hidden_size', D)
  words = [rng.normal(size=(V, width)).astype(np.float32) for _ in range(2)]
  target = LM(LMConfig(vocab_size=V, d_model=width, d_ff=4, layers=6, heads=1, tied=False))
  whole = jax.jit(target.init)(jax.random.key(0))
  whole |= {'embedding': jnp.asarray(words[0]), 'output': jnp.asarray(words[1])}
  if width != D:
    words = [tensors['embed_tokens.weight'], tensors['lm_head.weight']]
  taps = rng.normal(size=(N, 3, width))
  states = jnp.asarray(taps.reshape(N, -1), jnp.float32)
  with jax.default_matmul_precision('highest'):
    drafter = fd.BlockDraft((module, params)).drafter
    read, tokens = draft_of(drafter, Bound(target, whole), states)

  block = Block(tensors, *words, ROWS, MASK, sees, epsilon=EPSILON, **settings)
  context = block.features(taps)
  first = int(module.drops_first)
  for root in range(V):
    wanted = block.states(context, root)
    np.testing.assert_allclose(read[root], wanted[first : first + ROWS - 1], rtol=1e-3, atol=1e-3)
    if head is None:
      chain = argmax(block, wanted, root)
    else:
      chain = head(block, wanted, context, root)
    assert tokens[root].tolist() == chain
