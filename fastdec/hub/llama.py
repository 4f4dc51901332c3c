"""Llama and families like it from Hugging Face's files: settings of `models/lm.py`."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastdec.errors import UserError
from fastdec.hub.families import check_options, read_fields
from fastdec.hub.generation import end_and_pad, generation_ids, suppressed_ids
from fastdec.hub.lm_families import LM_ROWS, PLAIN, Family, LlamaFields
from fastdec.hub.lm_tensors import params_of as params_of
from fastdec.hub.ropes import find_longest, read_rope
from fastdec.models.experts import ExpertsConfig
from fastdec.models.lm import LM, LMConfig

ACTIVATIONS = {  # ours by theirs
  'silu': 'silu', 'swish': 'silu', 'relu': 'relu', 'gelu': 'gelu', 'gelu_python': 'gelu',
  'gelu_new': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh',
}  # fmt: skip
MODEL_TYPES = {
  name: family.models for name, family in LM_ROWS.items() if not name.startswith('gemma')
}
OVERFLOWS = ()


def model_of(config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str) -> LM:
  """Returns the model of config.json and generation_config.json, computing in `dtype`.

  Raises:
    UserError: an option is not supported, a size is missing, or a value has a wrong type.
  """
  model_type = config['model_type']
  fields = llama_fields(model_type, config)
  settings = layer_settings(model_type, fields)
  ends, pad = end_and_pad(config, generation)
  bos = generation_ids(config, generation).bos_token_id
  if bos is None:
    bos = ends[0] if ends else 0
  return LM(
    LMConfig(
      **settings,
      tied=bool(fields.tie_word_embeddings),
      max_positions=find_longest(fields, settings),
      bos_id=bos,
      eos_ids=ends,
      pad_id=pad,
      suppressed_ids=tuple(sorted(suppressed_ids(config, generation))),
      dtype=dtype,
    )
  )


def llama_fields(model_type: str, config: Mapping[str, Any]) -> LlamaFields:
  """Reads config.json of a model of this model_type.

  Raises:
    UserError: a field changes the result, and the family does not have it.
  """
  family = LM_ROWS[model_type]
  check_options(config, (*PLAIN, *family.reads))
  return read_fields(LlamaFields, {**family.absent, **config})


def layer_settings(model_type: str, fields: LlamaFields) -> dict[str, Any]:
  """Returns the fields of an `LMConfig` that describe its layers.

  Raises:
    UserError: an option that is not supported.
  """
  family = LM_ROWS[model_type]
  name = family.activation_field
  activation = getattr(fields, name)
  if activation not in ACTIVATIONS:
    raise UserError(
      f'{name}={activation!r} of config.json is not supported: known are {", ".join(ACTIVATIONS)}'
    )
  score_scale = fields.attention_multiplier
  if fields.query_pre_attn_scalar is not None:
    score_scale = fields.query_pre_attn_scalar**-0.5
  has_bias = bool(fields.attention_bias) and 'attention_bias' in family.reads
  return {
    'vocab_size': fields.vocab_size,
    'd_model': fields.hidden_size,
    'd_ff': fields.intermediate_size,
    'layers': fields.num_hidden_layers,
    'heads': fields.num_attention_heads,
    'key_heads': fields.num_key_value_heads or fields.num_attention_heads,
    'head_width': fields.head_dim,
    'activation': ACTIVATIONS[activation],
    'norm_epsilon': fields.rms_norm_eps,
    **read_rope(fields, family.is_phi),
    'qkv_bias': has_bias,
    'out_bias': has_bias,
    'mlp_bias': bool(fields.mlp_bias) and 'mlp_bias' in family.reads,
    'windows': _windows(family, fields),
    'unrotated': _unrotated(family, fields),
    'experts': _experts(family, fields),
    'embedding_scale': fields.embedding_multiplier or 1.0,
    'residual_scale': fields.residual_multiplier or 1.0,
    'score_scale': score_scale,
    'score_cap': fields.attn_logit_softcapping,
    'logit_cap': fields.final_logit_softcapping,
    'logit_scale': 1 / (fields.logits_scaling or 1.0),
    **family.settings,
  }


def _unrotated(family: Family, fields: LlamaFields) -> tuple[int, ...]:
  """Returns the layers without rotary positions; by default every fourth of SmolLM3."""
  if 'no_rope_layers' not in family.reads:
    return ()
  layers = fields.num_hidden_layers
  if not fields.no_rope_layers:
    interval = fields.no_rope_layer_interval or 4
    return tuple(range(interval - 1, layers, interval))
  has_rope = fields.no_rope_layers  # despite its name: 1 for a layer that is rotated
  if len(has_rope) != layers:
    raise UserError(
      f'no_rope_layers={list(has_rope)} of config.json must have a number for each of {layers}'
      ' layers'
    )
  return tuple(i for i in range(layers) if not has_rope[i])


def _experts(family: Family, fields: LlamaFields) -> ExpertsConfig | None:
  """Returns the sizes of the experts; newer files call their number num_local_experts."""
  count = fields.num_local_experts
  if count is None:
    count = fields.num_experts
  if not count or not fields.num_experts_per_tok or 'num_experts' not in family.reads:
    return None
  layers, dense_layers = range(fields.num_hidden_layers), fields.mlp_only_layers or ()
  sparse_step = fields.decoder_sparse_step or 1
  slope = fields.swiglu_alpha
  if slope is None:
    slope = ExpertsConfig.slope
  return ExpertsConfig(
    count=count,
    chosen=fields.num_experts_per_tok,
    d_ff=fields.moe_intermediate_size or fields.intermediate_size,
    normed=bool(fields.norm_topk_prob) or 'norm_topk_prob' not in family.reads,
    bias='swiglu_limit' in family.reads,
    limit=fields.swiglu_limit,
    slope=slope,
    dense=tuple(i for i in layers if i in dense_layers or (i + 1) % sparse_step),
  )


def _windows(family: Family, fields: LlamaFields) -> tuple[int, ...]:
  """Returns each layer's window, by layer_types or by the family's kind; () if there is none."""
  layers, window, kind = fields.num_hidden_layers, fields.sliding_window, family.windows
  is_switched_on = kind in ('all', 'half', 'most') or fields.use_sliding_window
  if kind == 'none' or not window or not is_switched_on:
    return ()
  if kind in ('all', 'switched'):
    return (window,) * layers
  if fields.layer_types:
    return windows_by_type(fields.layer_types, layers, window)
  numbers, every = range(layers), fields.sliding_window_pattern or 1
  if kind == 'late':
    full = range(fields.max_window_layers)
  elif kind == 'unrotated':
    full = {*numbers} - {*_unrotated(family, fields)}
  elif kind == 'half':
    full = range(1, layers, 2)
  else:
    full = range(every - 1, layers, every)
  return tuple(0 if i in full else window for i in numbers)


def windows_by_type(layer_types: Sequence[str], layers: int, window: int) -> tuple[int, ...]:
  """Returns each layer's window by its entry in layer_types; 0: it sees all.

  Raises:
    UserError: the number of entries is not that of the layers, or their names are unknown.
  """
  windows = {'full_attention': 0, 'sliding_attention': window}
  if len(layer_types) != layers or not set(layer_types) <= set(windows):
    allowed = f'one of {", ".join(windows)} for each of {layers} layers'
    raise UserError(
      f'layer_types={list(layer_types)} of config.json are not supported: they must be {allowed}'
    )
  return tuple(windows[layer_type] for layer_type in layer_types)
