"""T5 and T5 v1.1 (FLAN-T5 too) from Hugging Face's config and tensors."""

from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.folders.huggingface import suppressed
from fastdec.folders.stored import Stacked
from fastdec.folders.tensors import are_equal, shaped
from fastdec.models.api import Params
from fastdec.models.t5 import T5, T5Config

MODEL_TYPES = ('t5',)

SIZES = {  # ours by theirs
  'd_model': 'd_model',
  'd_kv': 'd_kv',
  'd_ff': 'd_ff',
  'num_heads': 'heads',
  'num_layers': 'encoder_layers',
  'num_decoder_layers': 'decoder_layers',
  'vocab_size': 'vocab_size',
  'layer_norm_epsilon': 'norm_epsilon',
  'relative_attention_num_buckets': 'buckets',
  'relative_attention_max_distance': 'max_distance',
}
# Theirs: 'relu', 'gated-silu'. 'gated-gelu' alone is by tanh, for the sake of the first T5 v1.1.
ACTIVATIONS = {
  'relu': 'relu', 'silu': 'swish', 'swish': 'swish', 'gelu': 'exact_gelu', 'gelu_python': 'exact_gelu',
  'gelu_new': 'gelu', 'gelu_fast': 'gelu', 'gelu_pytorch_tanh': 'gelu',
}  # fmt: skip
EMBEDDINGS = ('shared.weight', 'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight')

# In files converted from the first TensorFlow checkpoints; no attention reads it.
OBSOLETE = 'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight'


def model_of(config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str) -> T5:
  """The model that config.json and generation_config.json describe, computing in `dtype`.

  `tie_word_embeddings` says two things in their history: whether logits are scaled (newer files say so apart), and
  whether they have a matrix of their own, which the tensors decide (`params_of`).

  Raises:
    UserError: an option that is not supported.
  """
  if not config.get('is_encoder_decoder', True):
    raise UserError('is_encoder_decoder=false in config.json is not supported: give a T5 that has a decoder')
  settings = {**config, **{name: value for name, value in generation.items() if value is not None}}
  pad = settings.get('pad_token_id', 0)
  if pad is None:
    raise UserError('pad_token_id=null in config.json is not supported: give the id that fills up short sources')
  start = settings.get('decoder_start_token_id')
  end = settings.get('eos_token_id', 1)
  is_tied = config.get('tie_word_embeddings') is not False
  rate = config.get('dropout_rate', 0.1)
  sizes = {ours: config[theirs] for theirs, ours in SIZES.items() if config.get(theirs) is not None}
  sizes.setdefault('decoder_layers', sizes.get('encoder_layers', T5Config.encoder_layers))
  return T5(
    T5Config(
      **sizes,
      **_feed_forward(config.get('feed_forward_proj', 'relu')),
      dropout=rate,
      attention_dropout=rate,
      activation_dropout=rate,
      dtype=dtype,
      is_tied=is_tied,
      scales_logits=config.get('scale_decoder_outputs', is_tied),
      pad_id=pad,
      eos_ids=() if end is None else (end,) if isinstance(end, int) else tuple(end),
      start_id=pad if start is None else start,
      suppressed_ids=tuple(sorted(suppressed(config, generation))),
    )
  )


def params_of(model: T5, tensors: Mapping[str, Any]) -> Params:
  """The parameters from tensors by their Hugging Face names, one array where embeddings and logits share theirs.

  Raises:
    UserError: a tensor of another shape than the config means, or encoder and decoder with embeddings of their own.
  """
  c, names = model.config, set(tensors)
  size = (c.vocab_size, c.d_model)
  if OBSOLETE in names:
    tensors[OBSOLETE]  # asked for, so that it is not left over
  params: dict[str, Any] = {'embedding': _embedding(tensors, names, size)}
  if 'lm_head.weight' in names:
    output = shaped(tensors, 'lm_head.weight', *size)
    if not are_equal(output, params['embedding']):
      params['lm_head'] = output
  for side, layers in (('encoder', c.encoder_layers), ('decoder', c.decoder_layers)):
    params[f'{side}_norm'] = {'scale': shaped(tensors, f'{side}.final_layer_norm.weight', c.d_model)}
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
    first = {'gate_w1': {'kernel': Stacked(tuple(weight(f'{dense}.wi_{i}', c.d_ff, d) for i in (0, 1)))}}
  else:
    first = {'w1': {'kernel': weight(f'{dense}.wi', c.d_ff, d)}}
  layer['feed_forward'] = {**first, 'w2': {'kernel': weight(f'{dense}.wo', d, c.d_ff)}}
  layer['around_feed_forward'] = norm(last)
  return layer


def _embedding(tensors: Mapping[str, Any], names: set[str], size: tuple[int, int]) -> Any:
  found = [name for name in EMBEDDINGS if name in names] or EMBEDDINGS[:1]
  first = shaped(tensors, found[0], *size)
  if not all(are_equal(shaped(tensors, name, *size), first) for name in found[1:]):
    raise UserError(f'{", ".join(EMBEDDINGS)} differ, and T5 shares one: such a model is not supported')
  return first


def _feed_forward(projection: str) -> dict[str, Any]:
  gate, _, activation = projection.rpartition('-')
  if gate not in ('', 'gated') or activation not in ACTIVATIONS:
    allowed = ', '.join(ACTIVATIONS)
    raise UserError(f'feed_forward_proj={projection!r} is not supported: it may be one of {allowed}, or gated- and one')
  if projection == 'gated-gelu':
    activation = 'gelu_new'
  return {'is_gated': gate == 'gated', 'activation': ACTIVATIONS[activation]}
