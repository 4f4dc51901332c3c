"""Llama and families like it: the fields of their config.json, and how the families differ."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from fastdec.fields import Between, Layers, Positive, Share, Size

Count = Annotated[int, Between(0, 2**31 - 1)]


@dataclasses.dataclass(frozen=True)
class LlamaFields:
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
  sliding_window: Count | None = None
  use_sliding_window: bool | None = False
  max_window_layers: int = 28
  layer_types: tuple[str, ...] | None = None
  sliding_window_pattern: Size | None = None  # Gemma 3's: each layer of this number sees all
  hidden_activation: str | None = None  # Gemma's name of hidden_act
  attention_multiplier: Positive | None = None
  query_pre_attn_scalar: Positive | None = None
  attn_logit_softcapping: Positive | None = None
  final_logit_softcapping: Positive | None = None
  rope_local_base_freq: Positive | None = None
  embedding_multiplier: Positive | None = None
  residual_multiplier: Positive | None = None
  logits_scaling: Positive | None = None
  num_local_experts: Count | None = None
  num_experts: Count | None = None
  num_experts_per_tok: Size | None = None
  moe_intermediate_size: Size | None = None
  norm_topk_prob: bool | None = None
  mlp_only_layers: tuple[int, ...] | None = None
  decoder_sparse_step: Size | None = None
  swiglu_limit: Positive | None = None
  swiglu_alpha: Positive | None = None
  no_rope_layers: tuple[int, ...] | None = None  # 1: the layer has rope
  no_rope_layer_interval: Size | None = None


@dataclasses.dataclass(frozen=True)
class Family:
  """A row of the table: how models of a model_type differ from Llama."""

  models: str  # the names that people know
  # meanings of absent keys; null means the default of `LlamaFields`
  absent: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  reads: tuple[str, ...] = ()  # fields that other families lack or ignore
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of `LMConfig`
  # layers with a window: 'none', 'all', every second ('half'), all but each nth ('most'). Only with
  # use_sliding_window: all ('switched'), from max_window_layers on ('late'), or those without rope
  # ('unrotated')
  windows: str = 'none'
  activation_field: str = 'hidden_act'  # the field of config.json that names the activation
  is_phi: bool = False  # its rope may rotate a share of the width, and have early names


BIASES = ('attention_bias', 'mlp_bias')
MULTIPLIERS = ('embedding_multiplier', 'residual_multiplier', 'logits_scaling')
CAPS = ('query_pre_attn_scalar', 'attn_logit_softcapping', 'final_logit_softcapping')
EXPERTS = ('num_local_experts', 'num_experts', 'num_experts_per_tok', 'experts_per_token')
PLAIN = (  # fields of `COMPUTES` that all families read, or may have without a change
  'sliding_window', 'use_sliding_window', 'max_window_layers', 'sliding_window_pattern',
  '_sliding_window_pattern', 'sliding_window_size', 'partial_rotary_factor', 'rope_theta',
  'rope_scaling', 'rope_parameters', 'no_rope_layer_interval',
)  # fmt: skip
OF_GEMMA = {
  'num_key_value_heads': 4, 'head_dim': 256, 'hidden_activation': 'gelu_pytorch_tanh',
  'sliding_window': 4096, 'query_pre_attn_scalar': 256, 'tie_word_embeddings': True,
}  # fmt: skip
LM_ROWS = {
  'llama': Family('Llama 1 to 3.3, Vicuna, TinyLlama, SmolLM 1 and 2, Yi', reads=BIASES),
  'mistral': Family(
    'Mistral', {'num_key_value_heads': 8, 'sliding_window': 4096}, windows='all',
  ),
  'mixtral': Family(
    'Mixtral',
    {'num_key_value_heads': 8, 'rms_norm_eps': 1e-5, 'rope_theta': 1e6, 'num_experts': 8,
     'num_experts_per_tok': 2},
    EXPERTS, windows='all',
  ),
  'qwen2': Family('Qwen2, Qwen2.5', {'sliding_window': 4096}, (), {'qkv_bias': True}, 'late'),
  'qwen3': Family(
    'Qwen3', {'head_dim': 128, 'sliding_window': 4096}, ('attention_bias', 'use_qk_norm'),
    {'qk_norm': True}, 'late',
  ),
  'qwen3_moe': Family(
    'Qwen3-30B-A3B and other mixtures of Qwen3, Qwen3-Coder',
    {'num_key_value_heads': 4, 'sliding_window': 4096, 'num_experts': 128,
     'num_experts_per_tok': 8, 'moe_intermediate_size': 768},
    ('attention_bias', 'use_qk_norm', *EXPERTS, 'moe_intermediate_size', 'norm_topk_prob',
     'mlp_only_layers', 'decoder_sparse_step'),
    {'qk_norm': True}, 'switched',
  ),
  'gpt_oss': Family(
    'gpt-oss, unquantized',
    {'num_key_value_heads': 8, 'head_dim': 64, 'rms_norm_eps': 1e-5, 'rope_theta': 1.5e5,
     'attention_bias': True, 'sliding_window': 128, 'num_experts': 128,
     'num_experts_per_tok': 4, 'swiglu_limit': 7.0,
     'rope_parameters': {'rope_type': 'yarn', 'factor': 32.0, 'truncate': False,
                         'original_max_position_embeddings': 4096}},
    ('attention_bias', *EXPERTS, 'swiglu_limit', 'swiglu_alpha'), {'sinks': True}, 'half',
  ),
  'granite': Family(
    'Granite 3', {'attention_multiplier': 1.0}, (*BIASES, 'attention_multiplier', *MULTIPLIERS),
  ),
  'smollm3': Family(
    'SmolLM3', {'num_key_value_heads': 4, 'tie_word_embeddings': True, 'rope_theta': 2e6},
    (*BIASES, 'no_rope_layers'), windows='unrotated',
  ),
  'olmo2': Family(
    'OLMo 2', {'rms_norm_eps': 1e-5}, ('attention_bias',),
    {'norms': 'after', 'joined_qk_norm': True},
  ),
  'phi3': Family(
    'Phi-3, Phi-3.5, Phi-4',
    {'rms_norm_eps': 1e-5, 'original_max_position_embeddings': 4096}, windows='all', is_phi=True,
  ),
  'gemma2': Family(
    'Gemma 2',
    {**OF_GEMMA, 'attn_logit_softcapping': 50.0, 'final_logit_softcapping': 30.0},
    ('attention_bias', *CAPS), {'norms': 'both'}, 'half', 'hidden_activation',
  ),
  'gemma3_text': Family(
    'Gemma 3 (text)',
    {**OF_GEMMA, 'rope_theta': 1e6, 'rope_local_base_freq': 1e4, 'sliding_window_pattern': 6},
    # Gemma 3 has a field for a cap of scores, which its own code ignores
    ('attention_bias', *CAPS, 'rope_local_base_freq'),
    {'norms': 'both', 'qk_norm': True, 'score_cap': None}, 'most', 'hidden_activation',
  ),
}  # fmt: skip
