"""Marian (OPUS-MT) from Hugging Face's config and tensors: a post-norm Transformer (`models/transformer.py`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from fastdec.errors import UserError
from fastdec.folders.huggingface import end_and_pad, suppressed
from fastdec.folders.stored import Stacked
from fastdec.folders.tensors import are_equal, shaped
from fastdec.models.api import Params
from fastdec.models.transformer import Transformer, TransformerConfig

MODEL_TYPES = ('marian',)
ACTIVATIONS = {  # ours by theirs
  'swish': 'swish', 'silu': 'swish', 'relu': 'relu', 'gelu': 'exact_gelu', 'gelu_python': 'exact_gelu',
  'gelu_new': 'gelu', 'gelu_fast': 'gelu', 'gelu_pytorch_tanh': 'gelu',
}  # fmt: skip
NEEDED = {  # what may be said, but not otherwise
  'share_encoder_decoder_embeddings': True, 'tie_word_embeddings': True, 'is_encoder_decoder': True,
  'normalize_before': False, 'normalize_embedding': False, 'add_final_layer_norm': False,
}  # fmt: skip
COPIES = ('model.encoder.embed_tokens.weight', 'model.decoder.embed_tokens.weight', 'lm_head.weight')


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
  source, target = config['vocab_size'], config.get('decoder_vocab_size')
  if target not in (None, source):
    raise UserError(f'vocab_size={source} and decoder_vocab_size={target} are not supported: they must be the same')
  activation = config.get('activation_function', 'gelu')
  if activation not in ACTIVATIONS:
    known = ', '.join(ACTIVATIONS)
    raise UserError(f'activation_function={activation!r} of config.json is not supported: known are {known}')
  if generation.get('pad_token_id') is None and config.get('pad_token_id') is None:
    raise UserError('pad_token_id=null in config.json is not supported: give the id that fills up short sources')
  ends, pad = end_and_pad(config, generation)
  start = generation.get('decoder_start_token_id')
  start = config.get('decoder_start_token_id') if start is None else start
  return Transformer(
    TransformerConfig(
      vocab_size=config['vocab_size'],
      d_model=config['d_model'],
      d_ff=config['encoder_ffn_dim'],
      heads=config['encoder_attention_heads'],
      decoder_d_ff=config['decoder_ffn_dim'],
      decoder_heads=config['decoder_attention_heads'],
      encoder_layers=config['encoder_layers'],
      decoder_layers=config['decoder_layers'],
      norm='post',
      norm_epsilon=1e-5,
      activation=ACTIVATIONS[activation],
      attention_bias=True,
      output_bias=True,
      scales_embedding=bool(config.get('scale_embedding', False)),
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


def params_of(model: Transformer, tensors: Mapping[str, Any]) -> Params:
  """The parameters from tensors by their Hugging Face names, matrices [outputs, inputs].

  Marian's positions come as if they had been learned: its order of waves is not the Transformer's.

  Raises:
    UserError: a tensor of another shape than the config means, or sides with embeddings of their own.
  """
  c, names = model.config, set(tensors)
  table = _positions(c.max_positions, c.d_model)
  params = {
    'embedding': shaped(tensors, 'model.shared.weight', c.vocab_size, c.d_model),
    'output_bias': np.zeros(c.vocab_size),
    'source_positions': table,
    'target_positions': table,
  }
  if 'final_logits_bias' in names:
    params['output_bias'] = shaped(tensors, 'final_logits_bias', 1, c.vocab_size).reshape(c.vocab_size)
  for i in range(c.encoder_layers):
    params[f'encoder_{i}'] = _layer(tensors, f'model.encoder.layers.{i}.', c.d_model, c.d_ff, has_cross=False)
  for i in range(c.decoder_layers):
    d_ff = c.of_decoder.d_ff
    params[f'decoder_{i}'] = _layer(tensors, f'model.decoder.layers.{i}.', c.d_model, d_ff, has_cross=True)
  for copy in COPIES:
    if copy in names and not are_equal(tensors[copy], params['embedding']):
      raise UserError(f'{copy} is not model.shared.weight: embeddings of their own are not supported')
  return params


def _layer(tensors: Mapping[str, Any], prefix: str, d: int, d_ff: int, has_cross: bool) -> Params:
  def part(name, *shape):
    return shaped(tensors, f'{prefix}{name}', *shape)

  def dense(*names: str, outputs: int = d, inputs: int = d) -> Params:
    """One projection, or several of one size as one."""
    kernels = tuple(part(f'{name}.weight', outputs, inputs) for name in names)
    biases = tuple(part(f'{name}.bias', outputs) for name in names)
    if len(names) == 1:
      return {'kernel': kernels[0], 'bias': biases[0]}
    return {'kernel': Stacked(kernels), 'bias': Stacked(biases)}

  def norm(name: str) -> Params:
    return {'norm': {ours: part(f'{name}_layer_norm.{x}', d) for ours, x in (('scale', 'weight'), ('bias', 'bias'))}}

  layer = {
    'attention': {'qkv': dense(*(f'self_attn.{x}_proj' for x in 'qkv')), 'out': dense('self_attn.out_proj')},
    'around_attention': norm('self_attn'),
    'feed_forward': {'w1': dense('fc1', outputs=d_ff), 'w2': dense('fc2', inputs=d_ff)},
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
  angles = np.arange(positions)[:, None] / 1e4 ** (2 * np.arange((d + 1) // 2) / d)
  return np.concatenate([np.sin(angles), np.cos(angles)[:, : d // 2]], axis=1)  # an odd width has one sine more
