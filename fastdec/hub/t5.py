"""T5, T5 v1.1 (FLAN-T5 and MADLAD too) and mT5 from Hugging Face's config and tensors."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from fastdec.errors import UserError
from fastdec.fields import Between, Layers, Share, Size, read
from fastdec.folders.stored import Stacked
from fastdec.hub.families import check_heeded
from fastdec.hub.generation import pad_of_sources, said_of, suppressed
from fastdec.hub.tensors import are_equal, shaped
from fastdec.models.api import Params
from fastdec.models.t5 import T5, T5Config

MODEL_TYPES = {'t5': 'T5, T5 v1.1, FLAN-T5, MADLAD-400', 'mt5': 'mT5'}
OVERFLOWS = ('float16',)  # as in `T5Config`
OF_MT5 = {  # meanings of absent keys that differ from T5's
  'vocab_size': 250112, 'd_ff': 1024, 'num_layers': 8, 'num_heads': 6,
  'feed_forward_proj': 'gated-gelu',
}  # fmt: skip
OTHERS = (  # fields of families that are nearly T5, and change the result
  'num_experts', 'expert_capacity', 'encoder_attention_type', 'local_radius', 'scalable_attention',
)  # fmt: skip

# Theirs: 'relu', 'gated-silu'. Only 'gated-gelu' is by tanh, for the first T5 v1.1.
ACTIVATIONS = {
  'relu': 'relu', 'silu': 'swish', 'swish': 'swish', 'gelu': 'exact_gelu',
  'gelu_python': 'exact_gelu', 'gelu_new': 'gelu', 'gelu_fast': 'gelu', 'gelu_pytorch_tanh': 'gelu',
}  # fmt: skip
EMBEDDINGS = ('shared.weight', 'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight')

# In files converted from the first TensorFlow checkpoints; no attention reads it.
OBSOLETE = 'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight'


@dataclasses.dataclass(frozen=True)
class Said:
  """Fields of config.json, by its names; null counts as absent."""

  d_model: Size = 512
  d_kv: Size = 64
  d_ff: Size = 2048
  num_heads: Size = 8
  num_layers: Layers = 6
  num_decoder_layers: Layers | None = None  # as many as the encoder
  vocab_size: Size = 32128
  layer_norm_epsilon: Share = 1e-6
  relative_attention_num_buckets: Annotated[int, Between(4, 2**16)] = 32
  relative_attention_max_distance: Annotated[int, Between(1, 2**20)] = 128
  feed_forward_proj: str = 'relu'
  # parts of it, which go before it
  dense_act_fn: str | None = None
  is_gated_act: bool | None = None
  dropout_rate: Share = 0.1
  is_encoder_decoder: bool = True
  tie_word_embeddings: bool = True
  scale_decoder_outputs: bool | None = None  # if the logits' matrix is the embedding


def model_of(config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str) -> T5:
  """Returns the model of config.json and generation_config.json, computing in `dtype`.

  `tie_word_embeddings` has meant two things. One is that logits are scaled; newer files have a key
  for it, and mT5 never scales them. The other is that they have no matrix of their own; the tensors
  decide it (`params_of`).

  Raises:
    UserError: an option that is not supported, or a value of another kind.
  """
  is_mt5 = config.get('model_type') == 'mt5'
  given = {name: value for name, value in config.items() if value is not None}
  if is_mt5:
    given = {**OF_MT5, **given, 'scale_decoder_outputs': False}
  check_heeded(given, Said.__annotations__, OTHERS)
  said = read(Said, given, 'config.json', ': ', ignores=True)
  if not said.is_encoder_decoder:
    raise UserError(
      'is_encoder_decoder=false in config.json is not supported: give a T5 that has a decoder'
    )
  config = {'pad_token_id': 0, 'eos_token_id': 1, **config, 'vocab_size': said.vocab_size}
  ids, pad = said_of(config, generation), pad_of_sources(config, generation)
  scales = said.scale_decoder_outputs
  scales = said.tie_word_embeddings if scales is None else scales
  return T5(
    T5Config(
      d_model=said.d_model,
      d_kv=said.d_kv,
      d_ff=said.d_ff,
      heads=said.num_heads,
      encoder_layers=said.num_layers,
      decoder_layers=said.num_decoder_layers or said.num_layers,
      vocab_size=said.vocab_size,
      norm_epsilon=said.layer_norm_epsilon,
      buckets=said.relative_attention_num_buckets,
      max_distance=said.relative_attention_max_distance,
      **_feed_forward(said),
      dropout=said.dropout_rate,
      attention_dropout=said.dropout_rate,
      activation_dropout=said.dropout_rate,
      dtype=dtype,
      is_tied=scales,
      scales_logits=scales,
      pad_id=pad,
      eos_ids=ids.ends,
      start_id=pad if ids.decoder_start_token_id is None else ids.decoder_start_token_id,
      suppressed_ids=tuple(sorted(suppressed(config, generation))),
    )
  )


def params_of(model: T5, tensors: Mapping[str, Any]) -> Params:
  """Returns the parameters from tensors by their Hugging Face names.

  Embeddings and logits that share a matrix share the array. Unscaled logits have a matrix of their
  own by name, so that `native.save` writes what the config means.

  Raises:
    UserError: a tensor of another shape than the config means, or separate embeddings of encoder
      and decoder.
  """
  c, names = model.config, set(tensors)
  size = (c.vocab_size, c.d_model)
  if OBSOLETE in names:
    tensors[OBSOLETE]  # asked for, so that it is not left over
  params: dict[str, Any] = {'embedding': _embedding(tensors, names, size)}
  if not c.is_tied:
    params['lm_head'] = params['embedding']
  if 'lm_head.weight' in names:
    output = shaped(tensors, 'lm_head.weight', *size)
    if not are_equal(output, params['embedding']):
      params['lm_head'] = output
  for side, layers in (('encoder', c.encoder_layers), ('decoder', c.decoder_layers)):
    params[f'{side}_norm'] = {
      'scale': shaped(tensors, f'{side}.final_layer_norm.weight', c.d_model)
    }
    table = f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
    params[f'{side}_bias'] = shaped(tensors, table, c.buckets, c.heads)
    for i in range(layers):
      params[f'{side}_{i}'] = _layer(c, tensors, f'{side}.block.{i}.layer', side == 'decoder')
  return params


def _layer(c: T5Config, tensors: Mapping[str, Any], prefix: str, has_cross: bool) -> Params:
  d, inner = c.d_model, c.heads * c.d_kv

  def weight(name, *shape):
    return shaped(tensors, f'{prefix}.{name}.weight', *shape)

  def stacked(*names):
    return Stacked(tuple(weight(name, inner, d) for name in names))

  def norm(index):
    return {'norm': {'scale': weight(f'{index}.layer_norm', d)}}

  layer = {
    'attention': {
      'qkv': {'kernel': stacked(*(f'0.SelfAttention.{x}' for x in 'qkv'))},
      'out': {'kernel': weight('0.SelfAttention.o', d, inner)},
    },
    'around_attention': norm(0),
  }
  if has_cross:
    cross = '1.EncDecAttention'
    layer['cross'] = {
      'q': {'kernel': weight(f'{cross}.q', inner, d)},
      'kv': {'kernel': stacked(f'{cross}.k', f'{cross}.v')},
      'out': {'kernel': weight(f'{cross}.o', d, inner)},
    }
    layer['around_cross'] = norm(1)
  last = 2 if has_cross else 1
  dense = f'{last}.DenseReluDense'
  if c.is_gated:
    first = {
      'gate_w1': {'kernel': Stacked(tuple(weight(f'{dense}.wi_{i}', c.d_ff, d) for i in (0, 1)))}
    }
  else:
    first = {'w1': {'kernel': weight(f'{dense}.wi', c.d_ff, d)}}
  layer['feed_forward'] = {**first, 'w2': {'kernel': weight(f'{dense}.wo', d, c.d_ff)}}
  layer['around_feed_forward'] = norm(last)
  return layer


def _embedding(tensors: Mapping[str, Any], names: set[str], size: tuple[int, int]) -> Any:
  found = [name for name in EMBEDDINGS if name in names] or EMBEDDINGS[:1]
  first = shaped(tensors, found[0], *size)
  if not all(are_equal(shaped(tensors, name, *size), first) for name in found[1:]):
    raise UserError(
      f'{", ".join(EMBEDDINGS)} differ, and T5 shares one: such a model is not supported'
    )
  return first


def _feed_forward(said: Said) -> dict[str, Any]:
  projection = said.feed_forward_proj
  gate, _, activation = projection.rpartition('-')
  if gate not in ('', 'gated') or activation not in ACTIVATIONS:
    allowed = ', '.join(ACTIVATIONS)
    raise UserError(
      f'feed_forward_proj={projection!r} is not supported: it may be one of'
      f' {allowed}, or gated- and one'
    )
  if projection == 'gated-gelu':
    activation = 'gelu_new'
  activation = said.dense_act_fn or activation
  if activation not in ACTIVATIONS:
    raise UserError(
      f'dense_act_fn={activation!r} is not supported: it may be one of {", ".join(ACTIVATIONS)}'
    )
  is_gated = gate == 'gated' if said.is_gated_act is None else said.is_gated_act
  return {'is_gated': is_gated, 'activation': ACTIVATIONS[activation]}
