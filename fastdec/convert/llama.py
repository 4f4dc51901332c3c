"""Llama, Mistral, Qwen2 and Qwen3 from Hugging Face's config and tensors: settings of one model (`models/lm.py`)."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from fastdec.convert.huggingface import end_and_pad, suppressed
from fastdec.errors import UserError
from fastdec.models.api import Params
from fastdec.models.lm import LM, LMConfig

MODEL_TYPES = ('llama', 'mistral', 'qwen2', 'qwen3')
ACTIVATIONS = {  # ours by theirs
  'silu': 'silu', 'swish': 'silu', 'gelu': 'gelu', 'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh',
  'relu': 'relu',
}  # fmt: skip
ROPES = ('default', 'linear', 'llama3')


def model_of(config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str) -> LM:
  """The model that config.json and generation_config.json describe, computing in `dtype`.

  Raises:
    UserError: an option that is not supported.
    KeyError: config.json lacks a size.
  """
  kind, heads = config['model_type'], config['num_attention_heads']
  activation = config.get('hidden_act', 'silu')
  if activation not in ACTIVATIONS:
    raise UserError(f'hidden_act={activation!r} of config.json is not supported: known are {", ".join(ACTIVATIONS)}')
  ends, pad = end_and_pad(config, generation)
  bias = bool(config.get('attention_bias', False))
  bos = config.get('bos_token_id')
  return LM(
    LMConfig(
      vocab_size=config['vocab_size'],
      d_model=config['hidden_size'],
      d_ff=config['intermediate_size'],
      layers=config['num_hidden_layers'],
      heads=heads,
      key_heads=config.get('num_key_value_heads') or heads,
      head_width=config.get('head_dim') or (128 if kind == 'qwen3' else None),
      activation=ACTIVATIONS[activation],
      norm_epsilon=config.get('rms_norm_eps', 1e-6),
      **_rope(config),
      qkv_bias=bias or kind == 'qwen2',
      out_bias=bias and kind != 'qwen2',
      mlp_bias=bool(config.get('mlp_bias', False)) and kind == 'llama',
      qk_norm=kind == 'qwen3',
      windows=_windows(config),
      tied=bool(config.get('tie_word_embeddings', False)),
      max_positions=config.get('max_position_embeddings'),
      bos_id=bos if bos is not None else ends[0] if ends else 0,
      eos_ids=ends,
      pad_id=pad,
      suppressed_ids=tuple(sorted(suppressed(config, generation))),
      dtype=dtype,
    )
  )


def params_of(model: LM, tensors: Mapping[str, Array]) -> Params:
  """The parameters from tensors by their Hugging Face names, matrices [outputs, inputs]."""
  c = model.config
  params = {'embedding': tensors['model.embed_tokens.weight'], 'norm': {'scale': tensors['model.norm.weight']}}
  if not c.tied:
    params['output'] = tensors['lm_head.weight']
  for i in range(c.layers):
    params[f'layer_{i}'] = _layer(c, tensors, f'model.layers.{i}.')
  return params


def _layer(c: LMConfig, tensors: Mapping[str, Array], prefix: str) -> Params:
  norm = lambda name: {'scale': tensors[f'{prefix}{name}.weight']}

  def dense(has_bias: bool, *names: str) -> Params:
    """One projection, or several of one width as one."""
    joined = lambda part: jnp.concatenate([tensors[f'{prefix}{name}.{part}'] for name in names])
    return {part: joined(ours) for part, ours in (('kernel', 'weight'), ('bias', 'bias'))[: 1 + has_bias]}

  layer = {
    'attention_norm': norm('input_layernorm'),
    'q': dense(c.qkv_bias, 'self_attn.q_proj'),
    'kv': dense(c.qkv_bias, 'self_attn.k_proj', 'self_attn.v_proj'),
    'out': dense(c.out_bias, 'self_attn.o_proj'),
    'mlp_norm': norm('post_attention_layernorm'),
    'gate_up': dense(c.mlp_bias, 'mlp.gate_proj', 'mlp.up_proj'),
    'down': dense(c.mlp_bias, 'mlp.down_proj'),
  }
  if c.qk_norm:
    layer |= {'q_norm': norm('self_attn.q_norm'), 'k_norm': norm('self_attn.k_norm')}
  return layer


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
  """From `rope_parameters`, or as older files have it: `rope_theta` and `rope_scaling`."""
  rope = config.get('rope_parameters') or config.get('rope_scaling') or {}
  kind = rope.get('rope_type', rope.get('type', 'default'))
  if kind not in ROPES:
    raise UserError(f'rope_type={kind!r} of config.json is not supported: known are {", ".join(ROPES)}')
  partial = rope.get('partial_rotary_factor', config.get('partial_rotary_factor', 1))
  if partial not in (None, 1):
    raise UserError(f'partial_rotary_factor={partial} of config.json is not supported: it must be 1')
  found = {'rope': kind, 'rope_theta': float(rope.get('rope_theta', config.get('rope_theta', 1e4)))}
  if kind != 'default':
    found['rope_factor'] = float(rope['factor'])
  if kind == 'llama3':
    found |= {'rope_low': float(rope['low_freq_factor']), 'rope_high': float(rope['high_freq_factor'])}
    found['rope_original'] = rope['original_max_position_embeddings']
  return found


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
  """What each layer sees. Llama has no windows; Qwen's are off unless said, and then of some layers."""
  kind, layers = config['model_type'], config['num_hidden_layers']
  window = config.get('sliding_window', 4096) or 0
  if kind == 'llama' or not window or (kind != 'mistral' and not config.get('use_sliding_window', False)):
    return ()
  if kind == 'mistral':
    return (window,) * layers
  first = config.get('max_window_layers', 28)
  kinds = config.get('layer_types') or ['full_attention' if i < first else 'sliding_attention' for i in range(layers)]
  return tuple(window if kind == 'sliding_attention' else 0 for kind in kinds)
