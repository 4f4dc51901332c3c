"""Llama, Mistral, Qwen2 and Qwen3 from Hugging Face's config and tensors: settings of one model (`models/lm.py`)."""

from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.folders.huggingface import end_and_pad, suppressed
from fastdec.folders.stored import Stacked
from fastdec.folders.tensors import are_equal, shaped
from fastdec.models.api import Params
from fastdec.models.lm import LM, LMConfig

MODEL_TYPES = ('llama', 'mistral', 'qwen2', 'qwen3')
ACTIVATIONS = {  # ours by theirs
  'silu': 'silu', 'swish': 'silu', 'relu': 'relu', 'gelu': 'gelu', 'gelu_python': 'gelu',
  'gelu_new': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh',
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
  bias = bool(config.get('attention_bias', False)) and kind in ('llama', 'qwen3')
  bos = config.get('bos_token_id')
  return LM(
    LMConfig(
      vocab_size=config['vocab_size'],
      d_model=config['hidden_size'],
      d_ff=config['intermediate_size'],
      layers=config['num_hidden_layers'],
      heads=heads,
      key_heads=config.get('num_key_value_heads', 8 if kind == 'mistral' else None) or heads,
      head_width=config.get('head_dim') or (128 if kind == 'qwen3' else None),
      activation=ACTIVATIONS[activation],
      norm_epsilon=config.get('rms_norm_eps', 1e-6),
      **_rope(config),
      qkv_bias=bias or kind == 'qwen2',
      out_bias=bias,
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


def params_of(model: LM, tensors: Mapping[str, Any]) -> Params:
  """The parameters from tensors by their Hugging Face names, matrices [outputs, inputs].

  A copy of a tied embedding is left out; an output matrix that differs from it is used, whatever the config says.

  Raises:
    UserError: a tensor of another shape than the config means.
  """
  c = model.config
  size = (c.vocab_size, c.d_model)
  params: dict[str, Any] = {'embedding': shaped(tensors, 'model.embed_tokens.weight', *size)}
  params['norm'] = {'scale': shaped(tensors, 'model.norm.weight', c.d_model)}
  if not c.tied or 'lm_head.weight' in tensors:
    output = shaped(tensors, 'lm_head.weight', *size)
    if not c.tied or not are_equal(output, params['embedding']):
      params['output'] = output
  for i in range(c.layers):
    params[f'layer_{i}'] = _layer(c, tensors, f'model.layers.{i}.')
  return params


def _layer(c: LMConfig, tensors: Mapping[str, Any], prefix: str) -> Params:
  d, queries, keys = c.d_model, c.heads * c.width, c.kv_heads * c.width

  def norm(name, size):
    return {'scale': shaped(tensors, f'{prefix}{name}.weight', size)}

  def dense(has_bias: bool, outputs: int, inputs: int, *names: str) -> Params:
    """One projection, or several of one size as one."""

    def joined(part: str, *shape: int) -> Any:
      found = tuple(shaped(tensors, f'{prefix}{name}.{part}', *shape) for name in names)
      return found[0] if len(found) == 1 else Stacked(found)

    kernel = {'kernel': joined('weight', outputs, inputs)}
    return {**kernel, 'bias': joined('bias', outputs)} if has_bias else kernel

  layer = {
    'attention_norm': norm('input_layernorm', d),
    'q': dense(c.qkv_bias, queries, d, 'self_attn.q_proj'),
    'kv': dense(c.qkv_bias, keys, d, 'self_attn.k_proj', 'self_attn.v_proj'),
    'out': dense(c.out_bias, d, queries, 'self_attn.o_proj'),
    'mlp_norm': norm('post_attention_layernorm', d),
    'gate_up': dense(c.mlp_bias, c.d_ff, d, 'mlp.gate_proj', 'mlp.up_proj'),
    'down': dense(c.mlp_bias, d, c.d_ff, 'mlp.down_proj'),
  }
  if c.qk_norm:
    layer |= {'q_norm': norm('self_attn.q_norm', c.width), 'k_norm': norm('self_attn.k_norm', c.width)}
  return layer


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
  """From `rope_parameters`, or as older files have it: `rope_theta` and `rope_scaling`, which goes first."""
  rope = config.get('rope_scaling') or config.get('rope_parameters') or {}
  if any(isinstance(value, Mapping) for value in rope.values()):
    raise UserError('rope_parameters of config.json differ by layer, which is not supported: give one set for all')
  kind = rope.get('rope_type', rope.get('type', 'default'))
  if kind not in ROPES:
    raise UserError(f'rope_type={kind!r} of config.json is not supported: known are {", ".join(ROPES)}')
  partial = rope.get('partial_rotary_factor', config.get('partial_rotary_factor', 1))
  if partial not in (None, 1):
    raise UserError(f'partial_rotary_factor={partial} of config.json is not supported: it must be 1')
  found = {'rope': kind, 'rope_theta': float(rope.get('rope_theta') or config.get('rope_theta') or 1e4)}
  if kind != 'default':
    found['rope_factor'] = float(rope['factor'])
  if kind == 'llama3':
    found |= {'rope_low': float(rope['low_freq_factor']), 'rope_high': float(rope['high_freq_factor'])}
    outside = config.get('original_max_position_embeddings')
    original = outside or rope.get('original_max_position_embeddings') or config['max_position_embeddings']
    found['rope_original'] = original
  return found


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
  """What each layer sees. Llama has no windows; Qwen's are off unless said, and then of some layers."""
  kind, layers = config['model_type'], config['num_hidden_layers']
  window = config.get('sliding_window', 4096) or 0
  if kind == 'llama' or not window or (kind != 'mistral' and not config.get('use_sliding_window', False)):
    return ()
  if kind == 'mistral':
    return (window,) * layers
  first, sizes = config.get('max_window_layers', 28), {'full_attention': 0, 'sliding_attention': window}
  kinds = config.get('layer_types') or [list(sizes)[i >= first] for i in range(layers)]
  if len(kinds) != layers or not set(kinds) <= set(sizes):
    allowed = f'one of {", ".join(sizes)} for each of {layers} layers'
    raise UserError(f'layer_types={kinds} of config.json are not supported: they must be {allowed}')
  return tuple(sizes[kind] for kind in kinds)
