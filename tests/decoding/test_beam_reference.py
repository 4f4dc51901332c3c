"""Beam search against what Hugging Face's `generate` wrote and scored, on a tiny Marian checkpoint with its weights."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.transformer import Transformer, TransformerConfig

FOLDER = Path(__file__).parents[3] / 'shared' / 'reference' / 'hf' / 'marian_tiny'
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason='needs ../shared/reference, which is not here')


@pytest.fixture(scope='module')
def marian():
  """Our post-norm Transformer with the checkpoint's weights; Marian's positions as if they had been learned."""
  from safetensors.numpy import load_file

  weights, config = load_file(FOLDER / 'model.safetensors'), json.loads((FOLDER / 'config.json').read_text())
  d, positions = config['d_model'], config['max_position_embeddings']
  model = Transformer(
    TransformerConfig(
      vocab_size=config['vocab_size'], d_model=d, d_ff=config['encoder_ffn_dim'],
      heads=config['encoder_attention_heads'], encoder_layers=config['encoder_layers'],
      decoder_layers=config['decoder_layers'], norm='post', norm_epsilon=1e-5,
      positions='learned', max_positions=positions, activation='swish', attention_bias=True, pad_id=100, eos_ids=(0,),
      start_id=100, suppressed_ids=(100,),
    )
  )  # fmt: skip
  angle = np.arange(positions)[:, None] / 10000 ** (2 * np.arange(d // 2) / d)
  table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
  params = {'embedding': weights['model.shared.weight'], 'source_positions': table, 'target_positions': table}
  for side, layers in (('encoder', config['encoder_layers']), ('decoder', config['decoder_layers'])):
    for i in range(layers):
      params[f'{side}_{i}'] = _layer(weights, f'model.{side}.layers.{i}.', side == 'decoder')
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return model, jax.tree.map(lambda x, like: x.reshape(like.shape), params, shapes)


def _layer(weights, prefix, has_cross):
  fused = lambda *names: {
    'kernel': np.concatenate([weights[f'{prefix}{name}.weight'] for name in names]),
    'bias': np.concatenate([weights[f'{prefix}{name}.bias'] for name in names]),
  }
  norm = lambda name: {
    'norm': {'scale': weights[f'{prefix}{name}_layer_norm.weight'], 'bias': weights[f'{prefix}{name}_layer_norm.bias']}
  }
  layer = {
    'attention': {
      'qkv': fused(*(f'self_attn.{x}_proj' for x in 'qkv')), 'out': fused('self_attn.out_proj')
    },
    'around_attention': norm('self_attn'),
    'feed_forward': {'w1': fused('fc1'), 'w2': fused('fc2')},
    'around_feed_forward': norm('final'),
  }  # fmt: skip
  if has_cross:
    layer['cross'] = {
      'q': fused('encoder_attn.q_proj'),
      'kv': fused('encoder_attn.k_proj', 'encoder_attn.v_proj'),
      'out': fused('encoder_attn.out_proj'),
    }
    layer['around_cross'] = norm('encoder_attn')
  return layer


@pytest.mark.parametrize(
  ('name', 'strategy'),
  [('greedy', fd.Greedy()), ('beam4', fd.Beam(4, length_penalty=fd.PowerPenalty(0.6)))],
  ids=['greedy', 'beam'],
)
def test_tokens_and_scores_are_theirs(marian, name, strategy):
  expected = np.load(FOLDER / 'expected.npz')
  theirs = expected[name][:, 1:]  # without the start token
  out = fd.decode(*marian, expected['source'], strategy, max_len=24)
  np.testing.assert_array_equal(np.asarray(out.tokens)[:, : theirs.shape[1]], theirs)
  if out.scores is not None:
    np.testing.assert_allclose(out.scores, expected['beam4_scores'], rtol=1e-5)


def test_a_greedier_search_would_not_pass(marian):
  """The case tells beam search from greedy decoding, and this length penalty from GNMT's."""
  expected = np.load(FOLDER / 'expected.npz')
  assert (expected['greedy'] != expected['beam4']).any()
  out = fd.decode(*marian, expected['source'], fd.Beam(4, length_penalty=0.6), max_len=24)
  assert not np.allclose(out.scores, expected['beam4_scores'], rtol=1e-3)
