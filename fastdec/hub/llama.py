"""Llama and families like it from Hugging Face's files: settings of `models/lm.py`."""

from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import read
from fastdec.hub.families import check_heeded
from fastdec.hub.generation import end_and_pad, said_of, suppressed
from fastdec.hub.lm_families import FAMILIES, PLAIN, Family, Said
from fastdec.hub.lm_tensors import params_of as params_of
from fastdec.hub.ropes import longest_of, rope_of
from fastdec.models.experts import ExpertsConfig
from fastdec.models.lm import LM, LMConfig

ACTIVATIONS = {  # ours by theirs
  'silu': 'silu', 'swish': 'silu', 'relu': 'relu', 'gelu': 'gelu', 'gelu_python': 'gelu',
  'gelu_new': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh',
}  # fmt: skip
MODEL_TYPES = {
  name: family.models for name, family in FAMILIES.items() if not name.startswith('gemma')
}
OVERFLOWS = ()


def model_of(config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str) -> LM:
  """Returns the model of config.json and generation_config.json, computing in `dtype`.

  Raises:
    UserError: an option that is not supported; a size that is missing, or a value of another kind.
  """
  kind = config['model_type']
  said = said_by(kind, config)
  ends, pad = end_and_pad(config, generation)
  bos = said_of(config, generation).bos_token_id
  settings = layer_settings(kind, said)
  return LM(
    LMConfig(
      **settings,
      tied=bool(said.tie_word_embeddings),
      max_positions=longest_of(said, settings),
      bos_id=bos if bos is not None else ends[0] if ends else 0,
      eos_ids=ends,
      pad_id=pad,
      suppressed_ids=tuple(sorted(suppressed(config, generation))),
      dtype=dtype,
    )
  )


def said_by(kind: str, config: Mapping[str, Any]) -> Said:
  """Reads config.json of a model of this model_type.

  Raises:
    UserError: a field that changes the result, and that the family does not have.
  """
  check_heeded(config, (*PLAIN, *FAMILIES[kind].heeds))
  return read(Said, {**FAMILIES[kind].absent, **config}, 'config.json', ': ', ignores=True)


def layer_settings(kind: str, said: Said) -> dict[str, Any]:
  """Returns the fields of an `LMConfig` that describe its layers.

  Raises:
    UserError: an option that is not supported.
  """
  family = FAMILIES[kind]
  name = 'hidden_activation' if 'hidden_activation' in family.absent else 'hidden_act'
  activation = getattr(said, name)
  if activation not in ACTIVATIONS:
    raise UserError(
      f'{name}={activation!r} of config.json is not supported: known are {", ".join(ACTIVATIONS)}'
    )
  score_scale = said.attention_multiplier
  if said.query_pre_attn_scalar is not None:
    score_scale = said.query_pre_attn_scalar**-0.5
  bias = bool(said.attention_bias) and 'attention_bias' in family.heeds
  return {
    'vocab_size': said.vocab_size,
    'd_model': said.hidden_size,
    'd_ff': said.intermediate_size,
    'layers': said.num_hidden_layers,
    'heads': said.num_attention_heads,
    'key_heads': said.num_key_value_heads or said.num_attention_heads,
    'head_width': said.head_dim,
    'activation': ACTIVATIONS[activation],
    'norm_epsilon': said.rms_norm_eps,
    **rope_of(said, is_phi='partial_rotary_factor' in family.heeds),
    'qkv_bias': bias,
    'out_bias': bias,
    'mlp_bias': bool(said.mlp_bias) and 'mlp_bias' in family.heeds,
    'windows': _windows(family, said),
    'unrotated': _unrotated(family, said),
    'experts': _experts(family, said),
    'embedding_scale': said.embedding_multiplier or 1.0,
    'residual_scale': said.residual_multiplier or 1.0,
    'score_scale': score_scale,
    'score_cap': said.attn_logit_softcapping,
    'logit_cap': said.final_logit_softcapping,
    'logit_scale': 1 / (said.logits_scaling or 1.0),
    **family.settings,
  }


def _unrotated(family: Family, said: Said) -> tuple[int, ...]:
  """Returns the layers without rotary positions; by default every fourth of SmolLM3."""
  if 'no_rope_layers' not in family.heeds:
    return ()
  layers, each = said.num_hidden_layers, said.no_rope_layer_interval or 4
  has = said.no_rope_layers or tuple(int((i + 1) % each != 0) for i in range(layers))
  if len(has) != layers:
    raise UserError(
      f'no_rope_layers={list(has)} of config.json must be a number for each of {layers} layers'
    )
  return tuple(i for i in range(layers) if not has[i])


def _experts(family: Family, said: Said) -> ExpertsConfig | None:
  """Returns the sizes of the experts that config.json names, in newer or older words."""
  count = said.num_local_experts if said.num_local_experts is not None else said.num_experts
  if not count or not said.num_experts_per_tok or 'num_experts' not in family.heeds:
    return None
  only, step = said.mlp_only_layers or (), said.decoder_sparse_step or 1
  limit = {} if said.swiglu_alpha is None else {'slope': said.swiglu_alpha}
  return ExpertsConfig(
    count,
    said.num_experts_per_tok,
    said.moe_intermediate_size or said.intermediate_size,
    normed=bool(said.norm_topk_prob) or 'norm_topk_prob' not in family.heeds,
    bias='swiglu_limit' in family.heeds,
    limit=said.swiglu_limit,
    dense=tuple(i for i in range(said.num_hidden_layers) if i in only or (i + 1) % step),
    **limit,
  )


def _windows(family: Family, said: Said) -> tuple[int, ...]:
  """Returns each layer's window; layer_types go before the rule of the family."""
  layers, window, rule = said.num_hidden_layers, said.sliding_window, family.windows
  always = rule in ('all', 'half', 'most')
  if rule == 'none' or not window or not (always or said.use_sliding_window):
    return ()
  if rule in ('all', 'asked'):
    return (window,) * layers
  sizes = {'full_attention': 0, 'sliding_attention': window}
  is_local = [i >= said.max_window_layers for i in range(layers)]
  if rule in ('half', 'most'):
    each = 2 if rule == 'half' else said.sliding_window_pattern or 1
    is_local = [(i + 1) % each != 0 for i in range(layers)]
  if rule == 'unrotated':
    is_local = [i in _unrotated(family, said) for i in range(layers)]
  kinds = said.layer_types or [list(sizes)[local] for local in is_local]
  if len(kinds) != layers or not set(kinds) <= set(sizes):
    allowed = f'one of {", ".join(sizes)} for each of {layers} layers'
    raise UserError(
      f'layer_types={list(kinds)} of config.json are not supported: they must be {allowed}'
    )
  return tuple(sizes[kind] for kind in kinds)
