"""Llama and families like it: what their config.json may say, and what tells them apart."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from fastdec.fields import Between, Layers, Positive, Share, Size


@dataclasses.dataclass(frozen=True)
class Said:
  """Fields of config.json, by its names."""

  vocab_size: Size
  hidden_size: Size
  intermediate_size: Size
  num_hidden_layers: Layers
  num_attention_heads: Size
  num_key_value_heads: Size | None = None
  head_dim: Size | None = None
  hidden_act: str = 'silu'
  rms_norm_eps: Share = 1e-6
  attention_bias: bool | None = False
  mlp_bias: bool | None = False
  tie_word_embeddings: bool | None = False
  max_position_embeddings: Size | None = None
  original_max_position_embeddings: Size | None = None
  rope_theta: Positive | None = None
  rope_scaling: dict | None = None
  rope_parameters: dict | None = None
  partial_rotary_factor: float | None = None
  sliding_window: Annotated[int, Between(0, 2**31 - 1)] | None = None
  use_sliding_window: bool | None = False
  max_window_layers: int = 28
  layer_types: tuple[str, ...] | None = None
  sliding_window_pattern: Size | None = None  # by default each layer of this number sees all
  hidden_activation: str | None = None  # goes before hidden_act
  attention_multiplier: Positive | None = None
  query_pre_attn_scalar: Positive | None = None
  attn_logit_softcapping: Positive | None = None
  final_logit_softcapping: Positive | None = None
  rope_local_base_freq: Positive | None = None
  use_bidirectional_attention: bool | str | None = None
  embedding_multiplier: Positive | None = None
  residual_multiplier: Positive | None = None
  logits_scaling: Positive | None = None
  no_rope_layers: tuple[int, ...] | None = None  # 1: the layer has rope
  no_rope_layer_interval: Size | None = None


@dataclasses.dataclass(frozen=True)
class Family:
  """A row of the table: what tells models of a model_type from Llama."""

  # meanings of absent keys; null is the default of `Said`
  absent: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  heeds: tuple[str, ...] = ()  # fields of `Said` that other families do not have, or ignore
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of `LMConfig`
  # layers with a window: 'none', 'all', all but each nth ('most'); or, with use_sliding_window,
  # those from max_window_layers on ('late') or without rope ('unrotated')
  windows: str = 'none'


BIASES = ('attention_bias', 'mlp_bias')
MULTIPLIERS = ('embedding_multiplier', 'residual_multiplier', 'logits_scaling')
CAPS = ('query_pre_attn_scalar', 'attn_logit_softcapping', 'final_logit_softcapping')
SPECIAL = (  # fields that change the result, and that few families have
  *MULTIPLIERS, 'attention_multiplier', 'no_rope_layers', *CAPS, 'rope_local_base_freq',
  'use_bidirectional_attention',
)  # fmt: skip
OF_GEMMA = {
  'num_key_value_heads': 4, 'head_dim': 256, 'hidden_activation': 'gelu_pytorch_tanh',
  'sliding_window': 4096, 'query_pre_attn_scalar': 256, 'tie_word_embeddings': True,
}  # fmt: skip
FAMILIES = {
  'llama': Family(heeds=BIASES),
  'mistral': Family({'num_key_value_heads': 8, 'sliding_window': 4096}, windows='all'),
  'qwen2': Family({'sliding_window': 4096}, (), {'qkv_bias': True}, 'late'),
  'qwen3': Family(
    {'head_dim': 128, 'sliding_window': 4096}, ('attention_bias',), {'qk_norm': True}, 'late'
  ),
  'granite': Family({'attention_multiplier': 1.0}, (*BIASES, 'attention_multiplier', *MULTIPLIERS)),
  'smollm3': Family(
    {'num_key_value_heads': 4, 'tie_word_embeddings': True, 'rope_theta': 2e6},
    (*BIASES, 'no_rope_layers'),
    windows='unrotated',
  ),
  'olmo2': Family(
    {'rms_norm_eps': 1e-5}, ('attention_bias',), {'norms': 'after', 'joined_qk_norm': True}
  ),
  'phi3': Family({'rms_norm_eps': 1e-5}, ('partial_rotary_factor',), windows='all'),
  'gemma2': Family(
    {
      **OF_GEMMA,
      'attn_logit_softcapping': 50.0,
      'final_logit_softcapping': 30.0,
      'sliding_window_pattern': 2,
    },
    ('attention_bias', *CAPS),
    {'norms': 'both'},
    'most',
  ),
  'gemma3_text': Family(
    {**OF_GEMMA, 'rope_theta': 1e6, 'rope_local_base_freq': 1e4, 'sliding_window_pattern': 6},
    ('attention_bias', *CAPS, 'rope_local_base_freq'),
    {'norms': 'both', 'qk_norm': True},
    'most',
  ),
}
