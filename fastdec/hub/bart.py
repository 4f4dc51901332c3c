"""BART and families like it from Hugging Face's files: settings of `models/transformer.py`.

These are Marian (OPUS-MT), BART, mBART, and M2M-100 with NLLB.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from fastdec.errors import UserError
from fastdec.fields import Between, Layers, Share, Size, read, shown
from fastdec.folders.stored import Stacked
from fastdec.hub.families import check_heeded
from fastdec.hub.generation import pad_of_sources, said_of, suppressed
from fastdec.hub.tensors import are_equal, shaped
from fastdec.models.api import Params
from fastdec.models.transformer import Transformer, TransformerConfig


@dataclasses.dataclass(frozen=True)
class Family:
  """A row of the table: what tells models of a model_type from others."""

  models: str  # under the names that people know
  settings: Mapping[str, Any]  # fields of `TransformerConfig`
  absent: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # meanings of absent keys
  emits_pad: bool = True


IDS = {'bos_token_id': 0, 'pad_token_id': 1, 'eos_token_id': 2}
FAMILIES = {
  # positions of the first two are tables: of waves that the file lacks, and learned
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
ACTIVATIONS = {  # ours by theirs
  'swish': 'swish', 'silu': 'swish', 'relu': 'relu', 'gelu': 'exact_gelu',
  'gelu_python': 'exact_gelu', 'gelu_new': 'gelu', 'gelu_fast': 'gelu', 'gelu_pytorch_tanh': 'gelu',
}  # fmt: skip
NEEDED = {  # fields that may be absent, but have no other value
  'share_encoder_decoder_embeddings': True, 'tie_word_embeddings': True, 'is_encoder_decoder': True,
}  # fmt: skip
OTHERS = (  # fields of families that are nearly these, and change the result
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
class Said:
  """Fields of config.json, by its names; positions are a table in memory."""

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
    UserError: an option that is not supported; a size that is missing, or a value of another kind.
  """
  family = FAMILIES[config['model_type']]
  _check_needed(family, config)
  check_heeded(config, Said.__annotations__, OTHERS)
  config = {**family.absent, **config}
  said = read(Said, config, 'config.json', ': ', ignores=True)
  source, target = said.vocab_size, said.decoder_vocab_size
  if target not in (None, source):
    raise UserError(
      f'vocab_size={source} and decoder_vocab_size={target} are not supported: they'
      ' must be the same'
    )
  if said.activation_function not in ACTIVATIONS:
    activation, known = said.activation_function, ', '.join(ACTIVATIONS)
    raise UserError(
      f'activation_function={activation!r} of config.json is not supported: known are {known}'
    )
  ids, pad = said_of(config, generation), pad_of_sources(config, generation)
  starts = (ids.decoder_start_token_id, ids.bos_token_id, pad)
  hidden = set() if family.emits_pad else {pad} - {*ids.ends}
  return Transformer(
    TransformerConfig(
      **family.settings,
      vocab_size=said.vocab_size,
      d_model=said.d_model,
      d_ff=said.encoder_ffn_dim,
      heads=said.encoder_attention_heads,
      decoder_d_ff=said.decoder_ffn_dim,
      decoder_heads=said.decoder_attention_heads,
      encoder_layers=said.encoder_layers,
      decoder_layers=said.decoder_layers,
      norm_epsilon=1e-5,
      activation=ACTIVATIONS[said.activation_function],
      attention_bias=True,
      scales_embedding=bool(said.scale_embedding),
      dropout=said.dropout,
      attention_dropout=said.attention_dropout,
      activation_dropout=said.activation_dropout,
      first_position=pad + 1 if family.settings['positions'] == 'sinusoidal' else 0,
      max_positions=said.max_position_embeddings,
      pad_id=pad,
      eos_ids=ids.ends,
      start_id=next(start for start in starts if start is not None),
      suppressed_ids=tuple(sorted(hidden | suppressed(config, generation))),
      dtype=dtype,
    )
  )


def _check_needed(family: Family, config: Mapping[str, Any]) -> None:
  """Raises UserError for a field of another value than models of this family have."""
  is_pre_norm, has_norm = family.settings['norm'] == 'pre', 'embedding_norm' in family.settings
  norms = {'normalize_before': is_pre_norm, 'add_final_layer_norm': is_pre_norm}
  norms |= {'normalize_embedding': has_norm}
  for name, needed in (NEEDED | norms).items():
    if bool(config.get(name, needed)) != needed:
      raise UserError(
        f'{name}={shown(config[name])} of config.json is not supported: it must be {needed}'
      )


def params_of(model: Transformer, tensors: Mapping[str, Any]) -> Params:
  """Returns the parameters from tensors by their Hugging Face names, matrices [outputs, inputs].

  Marian's positions come like learned ones: its order of waves is not the Transformer's.

  Raises:
    UserError: a tensor of another shape than the config means, or separate embeddings of source and
      target.
  """
  c = model.config
  params = {'embedding': shaped(tensors, 'model.shared.weight', c.vocab_size, c.d_model)}
  if c.output_bias:
    params['output_bias'] = np.zeros(c.vocab_size)
    if 'final_logits_bias' in tensors:
      bias = shaped(tensors, 'final_logits_bias', 1, c.vocab_size)
      params['output_bias'] = bias.reshape(c.vocab_size)
  if c.positions == 'learned' and not c.embedding_norm:
    waves = _waves(c.max_positions, c.d_model)
    params['source_positions'] = params['target_positions'] = waves
  for stack, side in (('encoder', 'source'), ('decoder', 'target')):
    if c.embedding_norm:
      rows = c.max_positions + UNUSED
      table = shaped(tensors, f'model.{stack}.embed_positions.weight', rows, c.d_model)
      params[f'{side}_positions'] = table.rows(UNUSED, rows)
      params[f'{side}_embedding_norm'] = _norm(
        tensors, f'model.{stack}.layernorm_embedding', c.d_model
      )
    if c.norm == 'pre':
      params[f'{stack}_norm'] = _norm(tensors, f'model.{stack}.layer_norm', c.d_model)
  for i in range(c.encoder_layers):
    params[f'encoder_{i}'] = _layer(
      tensors, f'model.encoder.layers.{i}.', c.d_model, c.d_ff, has_cross=False
    )
  for i in range(c.decoder_layers):
    d_ff = c.of_decoder.d_ff
    params[f'decoder_{i}'] = _layer(
      tensors, f'model.decoder.layers.{i}.', c.d_model, d_ff, has_cross=True
    )
  for copy in COPIES:
    if copy in tensors and not are_equal(tensors[copy], params['embedding']):
      raise UserError(
        f'{copy} is not model.shared.weight: embeddings of their own are not supported'
      )
  return params


def _norm(tensors: Mapping[str, Any], name: str, d: int) -> Params:
  return {'scale': shaped(tensors, f'{name}.weight', d), 'bias': shaped(tensors, f'{name}.bias', d)}


def _layer(tensors: Mapping[str, Any], prefix: str, d: int, d_ff: int, has_cross: bool) -> Params:
  def part(name, *shape):
    return shaped(tensors, f'{prefix}{name}', *shape)

  def dense(*names: str, outputs: int = d, inputs: int = d) -> Params:
    """Returns one projection, or several of one size as one."""
    kernels = tuple(part(f'{name}.weight', outputs, inputs) for name in names)
    biases = tuple(part(f'{name}.bias', outputs) for name in names)
    if len(names) == 1:
      return {'kernel': kernels[0], 'bias': biases[0]}
    return {'kernel': Stacked(kernels), 'bias': Stacked(biases)}

  def norm(name: str) -> Params:
    return {'norm': _norm(tensors, f'{prefix}{name}_layer_norm', d)}

  layer = {
    'attention': {
      'qkv': dense(*(f'self_attn.{x}_proj' for x in 'qkv')),
      'out': dense('self_attn.out_proj'),
    },
    'around_attention': norm('self_attn'),
    'feed_forward': {'w1': dense('fc1', outputs=d_ff), 'w2': dense('fc2', inputs=d_ff)},
    'around_feed_forward': norm('final'),
  }
  if has_cross:
    layer['cross'] = {
      'q': dense('encoder_attn.q_proj'),
      'kv': dense('encoder_attn.k_proj', 'encoder_attn.v_proj'),
      'out': dense('encoder_attn.out_proj'),
    }
    layer['around_cross'] = norm('encoder_attn')
  return layer


def _waves(positions: int, d: int) -> Float[np.ndarray, 't d']:
  """Returns sines, then cosines, of wavelengths 2 pi .. almost 2 pi * 10^4."""
  angles = np.arange(positions)[:, None] / 1e4 ** (2 * np.arange((d + 1) // 2) / d)
  # an odd width has one sine more
  return np.concatenate([np.sin(angles), np.cos(angles)[:, : d // 2]], axis=1)
