"""Marian (OPUS-MT) from Hugging Face's config and tensors: a post-norm Transformer (`models/transformer.py`)."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fastdec.convert.huggingface import end_and_pad, suppressed
from fastdec.errors import UserError
from fastdec.models.api import Params
from fastdec.models.transformer import Transformer, TransformerConfig

MODEL_TYPES = ('marian',)
ACTIVATIONS = {  # ours by theirs
  'swish': 'swish', 'silu': 'swish', 'relu': 'relu', 'gelu': 'exact_gelu', 'gelu_new': 'gelu',
  'gelu_pytorch_tanh': 'gelu',
}  # fmt: skip
NEEDED = {  # what may be said, but not otherwise
  'scale_embedding': True, 'share_encoder_decoder_embeddings': True, 'tie_word_embeddings': True,
  'normalize_before': False, 'normalize_embedding': False, 'add_final_layer_norm': False,
}  # fmt: skip
SAME = (
  ('encoder_attention_heads', 'decoder_attention_heads'),
  ('encoder_ffn_dim', 'decoder_ffn_dim'),
  ('vocab_size', 'decoder_vocab_size'),
)


def model_of(config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str) -> Transformer:
  """The model that config.json and generation_config.json describe, computing in `dtype`.

  `forced_eos_token_id` is not heeded: a row that reaches max_len ends there, without an end token.

  Raises:
    UserError: an option that is not supported.
    KeyError: config.json lacks a size.
  """
  for name, needed in NEEDED.items():
    if bool(config.get(name, needed)) != needed:
      raise UserError(f'{name}={config[name]} of config.json is not supported: it must be {needed}')
  for one, other in SAME:
    if config.get(other) not in (None, config[one]):
      raise UserError(f'{one}={config[one]} and {other}={config[other]} are not supported: they must be the same')
  activation = config.get('activation_function', 'gelu')
  if activation not in ACTIVATIONS:
    known = ', '.join(ACTIVATIONS)
    raise UserError(f'activation_function={activation!r} of config.json is not supported: known are {known}')
  ends, pad = end_and_pad(config, generation)
  start = generation.get('decoder_start_token_id')
  start = config.get('decoder_start_token_id') if start is None else start
  return Transformer(
    TransformerConfig(
      vocab_size=config['vocab_size'],
      d_model=config['d_model'],
      d_ff=config['encoder_ffn_dim'],
      heads=config['encoder_attention_heads'],
      encoder_layers=config['encoder_layers'],
      decoder_layers=config['decoder_layers'],
      norm='post',
      norm_epsilon=1e-5,
      activation=ACTIVATIONS[activation],
      attention_bias=True,
      output_bias=True,
      dropout=config.get('dropout', 0.1),
      attention_dropout=config.get('attention_dropout', 0.0),
      activation_dropout=config.get('activation_dropout', 0.0),
      positions='learned',
      max_positions=config['max_position_embeddings'],
      pad_id=pad,
      eos_ids=ends,
      start_id=pad if start is None else start,
      suppressed_ids=tuple(sorted({pad, *suppressed(config, generation)})),
      dtype=dtype,
    )
  )


def params_of(model: Transformer, tensors: Mapping[str, Array]) -> Params:
  """The parameters from tensors by their Hugging Face names, matrices [outputs, inputs].

  Marian's positions come as if they had been learned: its order of waves is not the Transformer's.
  """
  c = model.config
  table = jnp.asarray(_positions(c.max_positions, c.d_model), c.dtype)
  params = {
    'embedding': tensors['model.shared.weight'],
    'output_bias': tensors['final_logits_bias'][0],
    'source_positions': table,
    'target_positions': table,
  }
  for side, layers in (('encoder', c.encoder_layers), ('decoder', c.decoder_layers)):
    for i in range(layers):
      params[f'{side}_{i}'] = _layer(tensors, f'model.{side}.layers.{i}.', side == 'decoder')
  for copy in ('model.encoder.embed_tokens.weight', 'model.decoder.embed_tokens.weight'):
    if copy in set(tensors):  # asking the mapping itself would read it
      _check_equal(copy, tensors[copy], params['embedding'])
  return params


def _layer(tensors: Mapping[str, Array], prefix: str, has_cross: bool) -> Params:
  joined = lambda part, names: jnp.concatenate([tensors[f'{prefix}{name}.{part}'] for name in names])
  dense = lambda *names: {'kernel': joined('weight', names), 'bias': joined('bias', names)}
  norm = lambda name: {
    'norm': {
      'scale': tensors[f'{prefix}{name}_layer_norm.weight'], 'bias': tensors[f'{prefix}{name}_layer_norm.bias']
    }
  }  # fmt: skip
  layer = {
    'attention': {'qkv': dense(*(f'self_attn.{x}_proj' for x in 'qkv')), 'out': dense('self_attn.out_proj')},
    'around_attention': norm('self_attn'),
    'feed_forward': {'w1': dense('fc1'), 'w2': dense('fc2')},
    'around_feed_forward': norm('final'),
  }
  if has_cross:
    layer['cross'] = {
      'q': dense('encoder_attn.q_proj'),
      'kv': dense('encoder_attn.k_proj', 'encoder_attn.v_proj'),
      'out': dense('encoder_attn.out_proj'),
    }
    layer['around_cross'] = norm('encoder_attn')
  return layer


def _positions(positions: int, d: int) -> Float[np.ndarray, 't d']:
  """Sines, then cosines, of wavelengths 2 pi .. almost 2 pi * 10^4."""
  angles = np.arange(positions)[:, None] / 1e4 ** (2 * np.arange(d // 2) / d)
  return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _check_equal(name: str, copy: Array, embedding: Array) -> None:
  if copy.shape != embedding.shape or not bool((copy == embedding).all()):
    raise UserError(f'{name} is not model.shared.weight: embeddings of their own for each side are not supported')
