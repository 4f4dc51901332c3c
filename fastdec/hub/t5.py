"""T5, T5 v1.1 (FLAN-T5 and MADLAD too) and mT5 from Hugging Face's config and tensors."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from fastdec.errors import UserError
from fastdec.fields import Between, Layers, Share, Size
from fastdec.hub.families import STACK_ACTIVATIONS as ACTIVATIONS
from fastdec.hub.families import check_options, read_fields
from fastdec.hub.generation import generation_ids, pad_of_sources, suppressed_ids
from fastdec.hub.tensors import are_equal, dense, norm, shaped, stacked_dense
from fastdec.models.api import Params
from fastdec.models.t5 import T5, T5Config

MODEL_TYPES = {'t5': 'T5, T5 v1.1, FLAN-T5, MADLAD-400', 'mt5': 'mT5'}
OVERFLOWS = ('float16',)  # as in `T5Config`
OF_MT5 = {  # meanings of absent keys that differ from T5's
  'vocab_size': 250112, 'd_ff': 1024, 'num_layers': 8, 'num_heads': 6,
  'feed_forward_proj': 'gated-gelu',
}  # fmt: skip
OTHERS = (  # fields of similar families, which change the result
  'num_experts', 'expert_capacity', 'encoder_attention_type', 'local_radius', 'scalable_attention',
)  # fmt: skip

EMBEDDINGS = ('shared.weight', 'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight')

# In files converted from the first TensorFlow checkpoints; no attention reads it.
OBSOLETE = 'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight'


@dataclasses.dataclass(frozen=True)
class T5Fields:
  """Fields of config.json, by its names; null counts as absent."""

  d_model: Size = 512
  d_kv: Size = 64
  d_ff: Size = 2048
  num_heads: Size = 8
  num_layers: Layers = 6
  num_decoder_layers: Layers | None = None  # None: as many as the encoder
  vocab_size: Size = 32128
  layer_norm_epsilon: Share = 1e-6
  relative_attention_num_buckets: Annotated[int, Between(4, 2**16)] = 32
  relative_attention_max_distance: Annotated[int, Between(1, 2**20)] = 128
  feed_forward_proj: str = 'relu'
  # its two parts; they win over it
  dense_act_fn: str | None = None
  is_gated_act: bool | None = None
  dropout_rate: Share = 0.1
  is_encoder_decoder: bool = True
  tie_word_embeddings: bool = True
  scale_decoder_outputs: bool | None = None  # None: tie_word_embeddings


def model_of(config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str) -> T5:
  """Returns the model of config.json and generation_config.json, computing in `dtype`.

  `tie_word_embeddings` has meant two things. One is that logits are scaled: newer files have a key
  for it, and mT5 never scales them. The other is that logits have no matrix of their own: there the
  tensors decide (`params_of`).

  Raises:
    UserError: an option is not supported, or a value has a wrong type.
  """
  is_mt5 = config.get('model_type') == 'mt5'
  settings = {name: value for name, value in config.items() if value is not None}
  if is_mt5:
    settings = {**OF_MT5, **settings, 'scale_decoder_outputs': False}
  check_options(settings, T5Fields.__annotations__, OTHERS)
  fields = read_fields(T5Fields, settings)
  if not fields.is_encoder_decoder:
    raise UserError(
      'is_encoder_decoder=false in config.json is not supported: give a T5 that has a decoder'
    )
  config = {'pad_token_id': 0, 'eos_token_id': 1, **config, 'vocab_size': fields.vocab_size}
  ids, pad = generation_ids(config, generation), pad_of_sources(config, generation)
  scales_logits = fields.scale_decoder_outputs
  if scales_logits is None:
    scales_logits = fields.tie_word_embeddings
  return T5(
    T5Config(
      d_model=fields.d_model,
      d_kv=fields.d_kv,
      d_ff=fields.d_ff,
      heads=fields.num_heads,
      encoder_layers=fields.num_layers,
      decoder_layers=fields.num_decoder_layers or fields.num_layers,
      vocab_size=fields.vocab_size,
      norm_epsilon=fields.layer_norm_epsilon,
      buckets=fields.relative_attention_num_buckets,
      max_distance=fields.relative_attention_max_distance,
      **_feed_forward(fields),
      dropout=fields.dropout_rate,
      attention_dropout=fields.dropout_rate,
      activation_dropout=fields.dropout_rate,
      dtype=dtype,
      is_tied=scales_logits,
      scales_logits=scales_logits,
      pad_id=pad,
      eos_ids=ids.ends,
      start_id=pad if ids.decoder_start_token_id is None else ids.decoder_start_token_id,
      suppressed_ids=tuple(sorted(suppressed_ids(config, generation))),
    )
  )


def params_of(model: T5, tensors: Mapping[str, Any]) -> Params:
  """Returns the parameters from tensors by their Hugging Face names.

  Embeddings and logits that share a matrix share the array. Unscaled logits have a matrix of their
  own by name, so that `native.save` writes what the config means.

  Raises:
    UserError: a tensor's shape does not fit the config, or encoder and decoder have separate
      embeddings.
  """
  c, names = model.config, set(tensors)
  size = (c.vocab_size, c.d_model)
  if OBSOLETE in names:
    tensors[OBSOLETE]  # a look-up marks it as used, so that it is not reported as unknown
  params: dict[str, Any] = {'embedding': _embedding(tensors, names, size)}
  if not c.is_tied:
    params['lm_head'] = params['embedding']
  if 'lm_head.weight' in names:
    output = shaped(tensors, 'lm_head.weight', *size)
    if not are_equal(output, params['embedding']):
      params['lm_head'] = output
  for side, layers in (('encoder', c.encoder_layers), ('decoder', c.decoder_layers)):
    params[f'{side}_norm'] = norm(tensors, f'{side}.final_layer_norm', c.d_model)
    table = f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
    params[f'{side}_bias'] = shaped(tensors, table, c.buckets, c.heads)
    for i in range(layers):
      params[f'{side}_{i}'] = _layer(c, tensors, f'{side}.block.{i}.layer', side == 'decoder')
  return params


def _layer(c: T5Config, tensors: Mapping[str, Any], prefix: str, has_cross: bool) -> Params:
  d, inner = c.d_model, c.heads * c.d_kv

  def project(name: str, outputs: int, inputs: int) -> Params:
    return dense(tensors, f'{prefix}.{name}', outputs, inputs)

  def stack(*names: str, outputs: int = inner) -> Params:
    return stacked_dense(tensors, [f'{prefix}.{name}' for name in names], outputs, d)

  def around(sublayer: int) -> Params:
    return {'norm': norm(tensors, f'{prefix}.{sublayer}.layer_norm', d)}

  attention, cross = '0.SelfAttention', '1.EncDecAttention'
  layer = {
    'attention': {
      'qkv': stack(f'{attention}.q', f'{attention}.k', f'{attention}.v'),
      'out': project(f'{attention}.o', d, inner),
    },
    'around_attention': around(0),
  }
  if has_cross:
    layer['cross'] = {
      'q': project(f'{cross}.q', inner, d),
      'kv': stack(f'{cross}.k', f'{cross}.v'),
      'out': project(f'{cross}.o', d, inner),
    }
    layer['around_cross'] = around(1)
  last = 2 if has_cross else 1
  feed_forward = f'{last}.DenseReluDense'
  if c.is_gated:
    gate_w1 = stack(f'{feed_forward}.wi_0', f'{feed_forward}.wi_1', outputs=c.d_ff)
    layer['feed_forward'] = {'gate_w1': gate_w1}
  else:
    layer['feed_forward'] = {'w1': project(f'{feed_forward}.wi', c.d_ff, d)}
  layer['feed_forward']['w2'] = project(f'{feed_forward}.wo', d, c.d_ff)
  layer['around_feed_forward'] = around(last)
  return layer


def _embedding(tensors: Mapping[str, Any], names: set[str], size: tuple[int, int]) -> Any:
  """Returns the embedding, of which a file may have several copies."""
  copies = [name for name in EMBEDDINGS if name in names]
  embedding = shaped(tensors, copies[0] if copies else EMBEDDINGS[0], *size)
  for name in copies[1:]:
    if not are_equal(shaped(tensors, name, *size), embedding):
      raise UserError(
        f'{", ".join(EMBEDDINGS)} differ, and T5 shares one: such a model is not supported'
      )
  return embedding


def _feed_forward(fields: T5Fields) -> dict[str, Any]:
  """Returns the fields of a `T5Config` that feed_forward_proj and its parts determine."""
  projection = fields.feed_forward_proj
  gate, _, activation = projection.rpartition('-')
  if gate not in ('', 'gated') or activation not in ACTIVATIONS:
    allowed = ', '.join(ACTIVATIONS)
    raise UserError(
      f'feed_forward_proj={projection!r} is not supported: it may be one of'
      f' {allowed}, or gated- and one'
    )
  if projection == 'gated-gelu':  # of the first T5 v1.1: there gelu means the approximation
    activation = 'gelu_new'
  activation = fields.dense_act_fn or activation
  if activation not in ACTIVATIONS:
    raise UserError(
      f'dense_act_fn={activation!r} is not supported: it may be one of {", ".join(ACTIVATIONS)}'
    )
  is_gated = fields.is_gated_act
  if is_gated is None:
    is_gated = gate == 'gated'
  return {'is_gated': is_gated, 'activation': ACTIVATIONS[activation]}
