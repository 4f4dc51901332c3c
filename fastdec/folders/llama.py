"""Llama and families like it from Hugging Face's files: settings of `models/lm.py`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

from fastdec.errors import UserError
from fastdec.fields import Between, Layers, Positive, Share, Size, read, shown
from fastdec.folders.generation import end_and_pad, said_of, suppressed
from fastdec.folders.stored import Stacked
from fastdec.folders.tensors import are_equal, shaped
from fastdec.models.api import Params
from fastdec.models.lm import LM, LMConfig

ACTIVATIONS = {  # ours by theirs
  'silu': 'silu', 'swish': 'silu', 'relu': 'relu', 'gelu': 'gelu', 'gelu_python': 'gelu',
  'gelu_new': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh',
}  # fmt: skip
ROPES = {  # fields that each needs
  'default': (), 'linear': ('factor',), 'dynamic': ('factor',), 'yarn': (),
  'llama3': ('factor', 'low_freq_factor', 'high_freq_factor'),
  'longrope': ('short_factor', 'long_factor'),
}  # fmt: skip
OLDER_ROPES = {'su': 'longrope'}
MULTIPLIERS = ('embedding_multiplier', 'residual_multiplier', 'logits_scaling')
# fields that change the result, and that few families have
GEMMA = ('query_pre_attn_scalar', 'attn_logit_softcapping', 'final_logit_softcapping')
SPECIAL = (
  *MULTIPLIERS, 'attention_multiplier', 'no_rope_layers', *GEMMA, 'rope_local_base_freq',
  'use_bidirectional_attention',
)  # fmt: skip
NORMS = {  # names of a layer's norms, by `LMConfig.norms`
  'before': {'attention_norm': 'input_layernorm', 'mlp_norm': 'post_attention_layernorm'},
  'after': {
    'attention_out_norm': 'post_attention_layernorm', 'mlp_out_norm': 'post_feedforward_layernorm',
  },
  'both': {
    'attention_norm': 'input_layernorm', 'mlp_norm': 'pre_feedforward_layernorm',
    'attention_out_norm': 'post_attention_layernorm', 'mlp_out_norm': 'post_feedforward_layernorm',
  },
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Family:
  """A row of the table: what tells models of a model_type from Llama."""

  # meanings of absent keys; null is the default of the dataclass `Said`
  absent: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  heeds: tuple[str, ...] = ()  # fields of `Said` that other families do not have, or ignore
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of `LMConfig`


BIASES = ('attention_bias', 'mlp_bias')
OF_GEMMA = {
  'num_key_value_heads': 4, 'hidden_activation': 'gelu_pytorch_tanh', 'sliding_window': 4096,
  'query_pre_attn_scalar': 256, 'tie_word_embeddings': True,
}  # fmt: skip
FAMILIES = {
  'llama': Family(heeds=BIASES),
  'mistral': Family({'num_key_value_heads': 8, 'sliding_window': 4096}),
  'qwen2': Family({'sliding_window': 4096}, settings={'qkv_bias': True}),
  'qwen3': Family({'sliding_window': 4096}, ('attention_bias',), {'qk_norm': True}),
  'granite': Family({'attention_multiplier': 1.0}, (*BIASES, 'attention_multiplier', *MULTIPLIERS)),
  'smollm3': Family(
    {'num_key_value_heads': 4, 'tie_word_embeddings': True, 'rope_theta': 2e6},
    (*BIASES, 'no_rope_layers'),
  ),
  'olmo2': Family(
    {'rms_norm_eps': 1e-5}, ('attention_bias',), {'norms': 'after', 'joined_qk_norm': True}
  ),
  'phi3': Family({'rms_norm_eps': 1e-5}, ('partial_rotary_factor',)),
  # read by `folders.gemma`
  'gemma2': Family(
    {
      **OF_GEMMA,
      'head_dim': 256,
      'attn_logit_softcapping': 50.0,
      'final_logit_softcapping': 30.0,
      'sliding_window_pattern': 2,
    },
    ('attention_bias', *GEMMA),
    {'norms': 'both'},
  ),
  'gemma3_text': Family(
    {
      **OF_GEMMA,
      'head_dim': 256,
      'rope_theta': 1e6,
      'rope_local_base_freq': 1e4,
      'sliding_window_pattern': 6,
    },
    ('attention_bias', *GEMMA, 'rope_local_base_freq'),
    {'norms': 'both', 'qk_norm': True},
  ),
}
MODEL_TYPES = tuple(name for name in FAMILIES if not name.startswith('gemma'))
OVERFLOWS = ()


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
class SaidOfRope:
  """Fields of rope_parameters, or of rope_scaling."""

  rope_type: str | None = None
  type: str | None = None
  rope_theta: Positive | None = None
  partial_rotary_factor: float | None = None
  factor: Positive | None = None
  low_freq_factor: Positive | None = None
  high_freq_factor: Positive | None = None
  beta_slow: Positive | None = None
  beta_fast: Positive | None = None
  truncate: bool | None = None
  attention_factor: Positive | None = None
  mscale: float | None = None
  mscale_all_dim: float | None = None
  short_factor: tuple[Positive, ...] | None = None
  long_factor: tuple[Positive, ...] | None = None
  original_max_position_embeddings: Size | None = None


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
      max_positions=_max_positions(said, settings),
      bos_id=bos if bos is not None else ends[0] if ends else 0,
      eos_ids=ends,
      pad_id=pad,
      suppressed_ids=tuple(sorted(suppressed(config, generation))),
      dtype=dtype,
    )
  )


def said_by(kind: str, config: Mapping[str, Any]) -> Said:
  """Reads config.json of a model of this model_type."""
  return read(Said, {**FAMILIES[kind].absent, **config}, 'config.json', ': ', ignores=True)


def layer_settings(kind: str, said: Said) -> dict[str, Any]:
  """Returns the fields of an `LMConfig` that describe its layers.

  Raises:
    UserError: an option that is not supported.
  """
  activation = said.hidden_activation or said.hidden_act
  if activation not in ACTIVATIONS:
    raise UserError(
      f'hidden_act={activation!r} of config.json is not supported: known are'
      f' {", ".join(ACTIVATIONS)}'
    )
  family = FAMILIES[kind]
  for field in SPECIAL:
    if getattr(said, field) not in (None, False) and field not in family.heeds:
      raise UserError(
        f'{field}={shown(getattr(said, field))} of config.json is not known of model_type {kind!r}:'
        ' remove it if the model was made without it'
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
    'head_width': said.head_dim or (128 if kind == 'qwen3' else None),
    'activation': ACTIVATIONS[activation],
    'norm_epsilon': said.rms_norm_eps,
    **_rope(said, 'partial_rotary_factor' in family.heeds),
    'qkv_bias': bias,
    'out_bias': bias,
    'mlp_bias': bool(said.mlp_bias) and 'mlp_bias' in family.heeds,
    'windows': _windows(kind, said),
    'unrotated': _unrotated(kind, said),
    'embedding_scale': said.embedding_multiplier or 1.0,
    'residual_scale': said.residual_multiplier or 1.0,
    'score_scale': score_scale,
    'score_cap': said.attn_logit_softcapping,
    'logit_cap': said.final_logit_softcapping,
    'logit_scale': 1 / (said.logits_scaling or 1.0),
    **family.settings,
  }


def params_of(model: LM, tensors: Mapping[str, Any]) -> Params:
  """Returns the parameters from tensors by their Hugging Face names, matrices [outputs, inputs].

  A copy of a tied embedding is left out. An output matrix that differs from the embedding is used,
  whatever the config says.

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
    params[f'layer_{i}'] = layer_params(c, tensors, f'model.layers.{i}.')
  return params


def layer_params(
  c: LMConfig,
  tensors: Mapping[str, Any],
  prefix: str,
  reads: int | None = None,
  is_normed: bool = True,
) -> Params:
  """Returns the parameters of a layer, whose names begin with `prefix`.

  Args:
    c: the sizes.
    tensors: by their names.
    prefix: up to the last dot.
    reads: width of the input of queries, keys and values (None: d_model).
    is_normed: the layer norms that input; first layers of drafts differ in both.
  """
  d, queries, keys, reads = c.d_model, c.heads * c.width, c.kv_heads * c.width, reads or c.d_model

  def norm(name, size):
    return {'scale': shaped(tensors, f'{prefix}{name}.weight', size)}

  def dense(has_bias: bool, outputs: int, inputs: int, *names: str) -> Params:
    """Returns one projection, or several of one size as one."""

    def joined(part: str, *shape: int) -> Any:
      found = tuple(shaped(tensors, f'{prefix}{name}.{part}', *shape) for name in names)
      return found[0] if len(found) == 1 else Stacked(found)

    kernel = {'kernel': joined('weight', outputs, inputs)}
    return {**kernel, 'bias': joined('bias', outputs)} if has_bias else kernel

  layer: Params = {}
  fused = f'{prefix}self_attn.qkv_proj.weight'
  if fused in tensors:  # Phi
    qkv = shaped(tensors, fused, queries + 2 * keys, reads)
    layer['q'] = {'kernel': qkv.rows(0, queries)}
    kv = qkv.rows(queries, queries + keys), qkv.rows(queries + keys, queries + 2 * keys)
    layer['kv'] = {'kernel': Stacked(kv)}
    gate_up = shaped(tensors, f'{prefix}mlp.gate_up_proj.weight', 2 * c.d_ff, d)
    halves = gate_up.rows(0, c.d_ff), gate_up.rows(c.d_ff, 2 * c.d_ff)
    layer['gate_up'] = {'kernel': Stacked(halves)}
  else:
    layer['q'] = dense(c.qkv_bias, queries, reads, 'self_attn.q_proj')
    layer['kv'] = dense(c.qkv_bias, keys, reads, 'self_attn.k_proj', 'self_attn.v_proj')
    layer['gate_up'] = dense(c.mlp_bias, c.d_ff, d, 'mlp.gate_proj', 'mlp.up_proj')
  layer['out'] = dense(c.out_bias, d, queries, 'self_attn.o_proj')
  layer['down'] = dense(c.mlp_bias, d, c.d_ff, 'mlp.down_proj')
  for ours, theirs in NORMS[c.norms].items():
    if is_normed or ours != 'attention_norm':
      layer[ours] = norm(theirs, d)
  if c.qk_norm or c.joined_qk_norm:
    layer['q_norm'] = norm('self_attn.q_norm', c.width if c.qk_norm else queries)
    layer['k_norm'] = norm('self_attn.k_norm', c.width if c.qk_norm else keys)
  return layer


def _rope(said: Said, may_be_partial: bool) -> dict[str, Any]:
  """Reads `rope_parameters`, or older files' `rope_theta` and `rope_scaling`; the latter wins."""
  name = 'rope_scaling' if said.rope_scaling else 'rope_parameters'
  given, local = getattr(said, name) or {}, said.rope_local_base_freq
  if local is not None and 'sliding_attention' in given:  # newer files of Gemma 3
    sliding = read(SaidOfRope, given['sliding_attention'], f'config.json: {name}', ignores=True)
    if (sliding.rope_type or 'default') != 'default':
      raise UserError(
        f'rope_type={sliding.rope_type!r} of sliding_attention in config.json is not supported: it'
        " must be 'default'"
      )
    given, local = given.get('full_attention') or {}, sliding.rope_theta or local
  if any(isinstance(value, Mapping) for value in given.values()):
    raise UserError(
      'rope_parameters of config.json differ by layer, which is not supported: give one set for all'
    )
  rope = read(SaidOfRope, given, f'config.json: {name}', ignores=True)
  kind = rope.rope_type or rope.type or 'default'
  kind = OLDER_ROPES.get(kind, kind)
  if kind not in ROPES:
    raise UserError(
      f'rope_type={kind!r} of config.json is not supported: known are {", ".join(ROPES)}'
    )
  for field in ROPES[kind]:
    if getattr(rope, field) is None:
      raise UserError(
        f"config.json: {name} lacks the field '{field}': set it to a number, or leave rope_type out"
      )
  share = rope.partial_rotary_factor or said.partial_rotary_factor or 1.0
  if not 0 < share <= 1 or (share < 1 and not may_be_partial):
    raise UserError(
      f'partial_rotary_factor={share} of config.json is not supported: it must be 1, or above 0 in'
      ' models of Phi'
    )
  theta = rope.rope_theta or said.rope_theta or 1e4
  found = {'rope': kind, 'rope_theta': theta, 'rope_share': float(share), 'local_theta': local}
  if kind in ('default', 'linear'):
    return found | ({'rope_factor': rope.factor} if kind == 'linear' else {})
  longest = said.max_position_embeddings
  original = said.original_max_position_embeddings or rope.original_max_position_embeddings
  if kind == 'dynamic' or original is None:
    original = longest
  if original is None:
    raise UserError(
      "config.json lacks the field 'max_position_embeddings': set it to the longest"
      ' text of training'
    )
  factor = rope.factor or (longest or original) / original
  found |= {'rope_factor': factor, 'rope_original': original}
  if kind == 'llama3':
    return found | {'rope_low': rope.low_freq_factor, 'rope_high': rope.high_freq_factor}
  if kind == 'yarn':
    return found | {
      'rope_low': rope.beta_slow or 1.0,
      'rope_high': rope.beta_fast or 32.0,
      'rope_truncate': rope.truncate is not False,
      'rope_scale': rope.attention_factor or _yarn_scale(factor, rope),
    }
  if kind == 'longrope':
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return found | {
      'rope_short': rope.short_factor,
      'rope_long': rope.long_factor,
      'rope_scale': rope.attention_factor or scale,
    }
  return found


def _yarn_scale(factor: float, rope: SaidOfRope) -> float:
  """Returns the factor of turned queries and keys, which sharpens attention in long texts."""

  def grown(by: float) -> float:
    return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0

  if rope.mscale and rope.mscale_all_dim:
    return grown(rope.mscale) / grown(rope.mscale_all_dim)
  return grown(1.0)


def _max_positions(said: Said, settings: Mapping[str, Any]) -> int | None:
  """Returns the longest text: some files keep the length before the stretch; dynamic has no end."""
  longest, stretched = said.max_position_embeddings, 0
  if settings['rope'] == 'dynamic':
    return None
  if settings['rope'] == 'yarn':
    stretched = int(settings['rope_factor'] * settings['rope_original'])
  return None if longest is None else max(longest, stretched)


def _unrotated(kind: str, said: Said) -> tuple[int, ...]:
  """Returns the layers without rotary positions; by default every fourth of SmolLM3."""
  if 'no_rope_layers' not in FAMILIES[kind].heeds:
    return ()
  layers, each = said.num_hidden_layers, said.no_rope_layer_interval or 4
  has = said.no_rope_layers or tuple(int((i + 1) % each != 0) for i in range(layers))
  if len(has) != layers:
    raise UserError(
      f'no_rope_layers={list(has)} of config.json must be a number for each of {layers} layers'
    )
  return tuple(i for i in range(layers) if not has[i])


def _windows(kind: str, said: Said) -> tuple[int, ...]:
  """Returns each layer's window: Mistral's and Phi's of all layers, others' if they are used."""
  layers, window = said.num_hidden_layers, said.sliding_window
  if kind in ('llama', 'granite', 'olmo2') or not window:
    return ()
  if kind in ('mistral', 'phi3'):
    return (window,) * layers
  if not said.use_sliding_window and not said.sliding_window_pattern:
    return ()
  first, sizes = said.max_window_layers, {'full_attention': 0, 'sliding_attention': window}
  is_local = [i >= first for i in range(layers)]
  if said.sliding_window_pattern:
    is_local = [(i + 1) % said.sliding_window_pattern != 0 for i in range(layers)]
  if kind == 'smollm3':
    is_local = [i in _unrotated(kind, said) for i in range(layers)]
  kinds = said.layer_types or [list(sizes)[local] for local in is_local]
  if len(kinds) != layers or not set(kinds) <= set(sizes):
    allowed = f'one of {", ".join(sizes)} for each of {layers} layers'
    raise UserError(
      f'layer_types={list(kinds)} of config.json are not supported: they must be {allowed}'
    )
  return tuple(sizes[kind] for kind in kinds)
