"""BART and families like it from Hugging Face's files: settings of `models/transformer.py`.

The families are Marian (OPUS-MT), BART, mBART, and M2M-100 with NLLB.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import Between, Layers, Share, Size, quote
from fastdec.hub.families import STACK_ACTIVATIONS as ACTIVATIONS
from fastdec.hub.families import check_options, read_fields
from fastdec.hub.generation import generation_ids, pad_of_sources, suppressed_ids
from fastdec.hub.tensors import are_equal, dense, norm, shaped, stacked_dense
from fastdec.models.api import Params
from fastdec.models.transformer import Transformer, TransformerConfig


@dataclasses.dataclass(frozen=True)
class Family:
  """A row of the table: how models of a model_type differ from others."""

  models: str  # the names that people know
  settings: Mapping[str, Any]  # fields of `TransformerConfig`
  absent: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # meanings of absent keys
  emits_pad: bool = True


IDS = {'bos_token_id': 0, 'pad_token_id': 1, 'eos_token_id': 2}
FAMILIES = {
  # Marian's positions are sines that its files lack; BART's are learned: both become a table
  'marian': Family(
    'OPUS-MT and others of Marian',
    {'norm': 'post', 'output_bias': True, 'positions': 'learned'},
    emits_pad=False,
  ),
  'bart': Family(
    'BART',
    {'norm': 'post', 'output_bias': True, 'positions': 'learned', 'embedding_norm': True},
    {**IDS, 'decoder_start_token_id': 2},
  ),
  'mbart': Family(
    'mBART, mBART-50',
    {'norm': 'pre', 'output_bias': True, 'positions': 'learned', 'embedding_norm': True},
    IDS,
  ),
  'm2m_100': Family(
    'M2M-100, NLLB',
    {'norm': 'pre', 'positions': 'sinusoidal'},
    {**IDS, 'decoder_start_token_id': 2, 'activation_function': 'relu', 'scale_embedding': True},
  ),
}
MODEL_TYPES = {name: family.models for name, family in FAMILIES.items()}
OVERFLOWS = ()
NEEDED = {  # fields with the only value that is supported
  'share_encoder_decoder_embeddings': True, 'tie_word_embeddings': True, 'is_encoder_decoder': True,
}  # fmt: skip
OTHERS = (  # fields of similar families, which change the result
  'num_experts', 'attention_window', 'attention_type', 'relative_attention_num_buckets',
  'feed_forward_proj', 'do_blenderbot_90_layernorm',
)  # fmt: skip
COPIES = (
  'model.encoder.embed_tokens.weight',
  'model.decoder.embed_tokens.weight',
  'lm_head.weight',
)
UNUSED = 2  # rows of a table of learned positions before the first


@dataclasses.dataclass(frozen=True)
class BartFields:
  """Fields of config.json, by its names. Positions have a limit, since their table is in memory."""

  vocab_size: Size
  d_model: Size
  encoder_ffn_dim: Size
  encoder_attention_heads: Size
  decoder_ffn_dim: Size
  decoder_attention_heads: Size
  encoder_layers: Layers
  decoder_layers: Layers
  max_position_embeddings: Annotated[int, Between(1, 2**17)]
  decoder_vocab_size: Size | None = None
  activation_function: str = 'gelu'
  scale_embedding: bool | None = False
  dropout: Share = 0.1
  attention_dropout: Share = 0.0
  activation_dropout: Share = 0.0


def model_of(config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str) -> Transformer:
  """Returns the model of config.json and generation_config.json, computing in `dtype`.

  Raises:
    UserError: an option is not supported, a size is missing, or a value has a wrong type.
  """
  family = FAMILIES[config['model_type']]
  _check_needed(family, config)
  check_options(config, BartFields.__annotations__, OTHERS)
  config = {**family.absent, **config}
  fields = read_fields(BartFields, config)
  source, target = fields.vocab_size, fields.decoder_vocab_size
  if target not in (None, source):
    raise UserError(
      f'vocab_size={source} and decoder_vocab_size={target} are not supported: they'
      ' must be the same'
    )
  if fields.activation_function not in ACTIVATIONS:
    activation, known = fields.activation_function, ', '.join(ACTIVATIONS)
    raise UserError(
      f'activation_function={activation!r} of config.json is not supported: known are {known}'
    )
  ids, pad = generation_ids(config, generation), pad_of_sources(config, generation)
  start = ids.decoder_start_token_id
  if start is None:
    start = pad if ids.bos_token_id is None else ids.bos_token_id
  never = suppressed_ids(config, generation)
  if not family.emits_pad and pad not in ids.ends:
    never.add(pad)
  return Transformer(
    TransformerConfig(
      **family.settings,
      vocab_size=fields.vocab_size,
      d_model=fields.d_model,
      d_ff=fields.encoder_ffn_dim,
      heads=fields.encoder_attention_heads,
      decoder_d_ff=fields.decoder_ffn_dim,
      decoder_heads=fields.decoder_attention_heads,
      encoder_layers=fields.encoder_layers,
      decoder_layers=fields.decoder_layers,
      norm_epsilon=1e-5,
      activation=ACTIVATIONS[fields.activation_function],
      attention_bias=True,
      scales_embedding=bool(fields.scale_embedding),
      dropout=fields.dropout,
      attention_dropout=fields.attention_dropout,
      activation_dropout=fields.activation_dropout,
      first_position=pad + 1 if family.settings['positions'] == 'sinusoidal' else 0,
      max_positions=fields.max_position_embeddings,
      pad_id=pad,
      eos_ids=ids.ends,
      start_id=start,
      suppressed_ids=tuple(sorted(never)),
      dtype=dtype,
    )
  )


def _check_needed(family: Family, config: Mapping[str, Any]) -> None:
  """Raises UserError for a field whose value differs from the family's."""
  is_pre_norm = family.settings['norm'] == 'pre'
  needed_values = NEEDED | {
    'normalize_before': is_pre_norm,
    'add_final_layer_norm': is_pre_norm,
    'normalize_embedding': 'embedding_norm' in family.settings,
  }
  for name, needed in needed_values.items():
    if bool(config.get(name, needed)) != needed:
      raise UserError(
        f'{name}={quote(config[name])} of config.json is not supported: it must be {needed}'
      )


def params_of(model: Transformer, tensors: Mapping[str, Any]) -> Params:
  """Returns the parameters from tensors by their Hugging Face names, matrices [outputs, inputs].

  Marian's positions become a table like learned ones: its sines are in another order than ours.

  Raises:
    UserError: a tensor's shape does not fit the config, or source and target have separate
      embeddings.
  """
  c = model.config
  params = {'embedding': shaped(tensors, 'model.shared.weight', c.vocab_size, c.d_model)}
  if c.output_bias:
    params['output_bias'] = np.zeros(c.vocab_size)
    if 'final_logits_bias' in tensors:
      bias = shaped(tensors, 'final_logits_bias', 1, c.vocab_size)
      params['output_bias'] = bias.reshape(c.vocab_size)
  if c.positions == 'learned' and not c.embedding_norm:  # Marian, whose files lack the table
    # all sines, then all cosines, of wavelengths 2 pi .. almost 2 pi * 10^4
    scales = 1e4 ** (2 * np.arange((c.d_model + 1) // 2) / c.d_model)
    angles = np.arange(c.max_positions)[:, None] / scales
    cosines = np.cos(angles)[:, : c.d_model // 2]  # an odd width has one sine more
    table = np.concatenate([np.sin(angles), cosines], axis=1)
    params['source_positions'] = params['target_positions'] = table
  for stack, side in (('encoder', 'source'), ('decoder', 'target')):
    if c.embedding_norm:
      rows = c.max_positions + UNUSED
      table = shaped(tensors, f'model.{stack}.embed_positions.weight', rows, c.d_model)
      params[f'{side}_positions'] = table.rows(UNUSED, rows)
      params[f'{side}_embedding_norm'] = norm(
        tensors, f'model.{stack}.layernorm_embedding', c.d_model, has_bias=True
      )
    if c.norm == 'pre':
      params[f'{stack}_norm'] = norm(tensors, f'model.{stack}.layer_norm', c.d_model, has_bias=True)
  for i in range(c.encoder_layers):
    prefix = f'model.encoder.layers.{i}.'
    params[f'encoder_{i}'] = _layer(tensors, prefix, c.d_model, c.d_ff, has_cross=False)
  for i in range(c.decoder_layers):
    prefix = f'model.decoder.layers.{i}.'
    params[f'decoder_{i}'] = _layer(tensors, prefix, c.d_model, c.of_decoder.d_ff, has_cross=True)
  # The Transformer has one embedding, so copies may be absent, but must not differ.
  for copy in COPIES:
    if copy in tensors and not are_equal(tensors[copy], params['embedding']):
      raise UserError(
        f'{copy} is not model.shared.weight: embeddings of their own are not supported'
      )
  return params


def _layer(tensors: Mapping[str, Any], prefix: str, d: int, d_ff: int, has_cross: bool) -> Params:
  def project(name: str, outputs: int = d, inputs: int = d) -> Params:
    return dense(tensors, f'{prefix}{name}', outputs, inputs, has_bias=True)

  def stack(*names: str) -> Params:
    return stacked_dense(tensors, [f'{prefix}{name}' for name in names], d, d, has_bias=True)

  def around(name: str) -> Params:
    return {'norm': norm(tensors, f'{prefix}{name}_layer_norm', d, has_bias=True)}

  layer = {
    'attention': {
      'qkv': stack('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj'),
      'out': project('self_attn.out_proj'),
    },
    'around_attention': around('self_attn'),
    'feed_forward': {'w1': project('fc1', outputs=d_ff), 'w2': project('fc2', inputs=d_ff)},
    'around_feed_forward': around('final'),
  }
  if has_cross:
    layer['cross'] = {
      'q': project('encoder_attn.q_proj'),
      'kv': stack('encoder_attn.k_proj', 'encoder_attn.v_proj'),
      'out': project('encoder_attn.out_proj'),
    }
    layer['around_cross'] = around('encoder_attn')
  return layer
