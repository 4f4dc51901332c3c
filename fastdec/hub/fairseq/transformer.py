"""fairseq's Transformer: post-norm, or pre-norm with a last norm; attention with biases.

Names differ with fairseq's age: one in_proj_weight for queries, keys and values, or three;
layer_norms.0 or self_attn_layer_norm; decoder.embed_out or decoder.output_projection.weight, which
may also be left out.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fastdec.errors import UserError
from fastdec.hub.fairseq.state_dict import END, PAD, StateDict
from fastdec.hub.tensors import are_equal, dense, norm, shaped
from fastdec.models.api import Params
from fastdec.models.layers import sinusoids
from fastdec.models.transformer import Transformer, TransformerConfig

POSITIONS = 1024  # fairseq's default for both sides
# ours by theirs
ACTIVATIONS = {'relu': 'relu', 'gelu': 'exact_gelu', 'gelu_accurate': 'gelu', 'gelu_fast': 'gelu'}
OUTPUTS = ('decoder.output_projection.weight', 'decoder.embed_out')
NORMS = {  # by their number in old names
  'encoder': ('self_attn_layer_norm', 'final_layer_norm'),
  'decoder': ('self_attn_layer_norm', 'encoder_attn_layer_norm', 'final_layer_norm'),
}


def read(tensors: StateDict, embeddings: Params, heads: int | None) -> tuple[Transformer, Params]:
  """Reads the model of a state dict, and its parameters, matrices [outputs, inputs].

  Positions are treated as learned: fairseq's sinusoids begin at position 2, too.

  Args:
    embeddings: 'embedding', and 'source_embedding' if the source has its own.
    heads: of encoder and decoder, needed if the checkpoint's options lack them.
  """
  size = embeddings['embedding'].shape
  d = size[1]
  params = {**embeddings, **_positions(tensors, d)}

  # The output matrix may have one of two names, or be left out.
  outputs = [name for name in OUTPUTS if name in tensors]
  if outputs:
    output = shaped(tensors, outputs[0], *size)
    if not are_equal(output, embeddings['embedding']):
      params['output'] = output
  elif tensors.options.get('share_decoder_input_output_embed', True) is False:
    tensors.missing.append(OUTPUTS[0])
  if any('.layernorm_embedding.' in name for name in tensors):
    for side, ours in (('encoder', 'source'), ('decoder', 'target')):
      name = f'{side}.layernorm_embedding'
      params[f'{ours}_embedding_norm'] = norm(tensors, name, d, has_bias=True)

  # Read the layers.
  model = Transformer(_config(tensors, params, heads))
  for side, c in (('encoder', model.config), ('decoder', model.config.of_decoder)):
    for i in range(tensors.count(f'{side}.layers.')):
      params[f'{side}_{i}'] = _layer(tensors, side, i, d, c.d_ff)
    if c.norm == 'pre':
      params[f'{side}_norm'] = norm(tensors, f'{side}.layer_norm', d, has_bias=True)
  return model, params


def _config(tensors: StateDict, params: Params, heads: int | None) -> TransformerConfig:
  options, embedding = tensors.options, params['embedding']
  activation = options.get('activation_fn') or 'relu'
  if activation not in ACTIVATIONS:
    known = ', '.join(ACTIVATIONS)
    raise UserError(
      f'activation_fn={activation!r} of {tensors.where} is not supported: known are {known}'
    )
  heads_of, d_ff = {}, {}
  for side in NORMS:
    heads_of[side] = _heads(tensors, side, heads)
    d_ff[side] = tensors.sizes(f'{side}.layers.0.fc1.weight', 'width, width')[0]
  return TransformerConfig(
    vocab_size=embedding.shape[0],
    source_vocab_size=len(params.get('source_embedding', ())) or None,
    is_tied='output' not in params,
    d_model=embedding.shape[1],
    d_ff=d_ff['encoder'],
    heads=heads_of['encoder'],
    decoder_d_ff=d_ff['decoder'],
    decoder_heads=heads_of['decoder'],
    encoder_layers=tensors.count('encoder.layers.'),
    decoder_layers=tensors.count('decoder.layers.'),
    norm=_norm_place(tensors),
    norm_epsilon=1e-5,
    activation=ACTIVATIONS[activation],
    attention_bias=True,
    scales_embedding=not options.get('no_scale_embedding'),
    dropout=options.get('dropout') or 0.0,
    attention_dropout=options.get('attention_dropout') or 0.0,
    activation_dropout=options.get('activation_dropout') or options.get('relu_dropout') or 0.0,
    positions='learned',
    embedding_norm='source_embedding_norm' in params,
    max_positions=params['source_positions'].shape[0],
    pad_id=PAD,
    eos_ids=(END,),
    start_id=END,
    suppressed_ids=(PAD,),
  )


def _heads(tensors: StateDict, side: str, heads: int | None) -> int:
  """Returns the number of attention heads: the checkpoint's, or else the command's."""
  trained_heads = tensors.options.get(f'{side}_attention_heads')
  if trained_heads is None:
    if heads is None:
      raise UserError(
        f'{tensors.where} does not have the number of attention heads: give --heads'
        ' (mostly 8 or 16)'
      )
    return heads
  if heads is not None and heads != trained_heads:
    raise UserError(
      f'{tensors.where} was trained with {side}_attention_heads={trained_heads}: leave out'
      f' --heads={heads}'
    )
  return trained_heads


def _norm_place(tensors: StateDict) -> str:
  """Returns 'pre' if a norm ends both sides, 'post' if none does.

  Raises:
    UserError: pre-norm lacks a norm at the end (fairseq before 2018), or the sides differ.
  """
  place = 'post'
  for side in NORMS:
    comes_first = tensors.options.get(f'{side}_normalize_before')
    has_last_norm = f'{side}.layer_norm.weight' in tensors
    if comes_first is not None and bool(comes_first) != has_last_norm:
      preposition = 'with' if has_last_norm else 'without'
      raise UserError(
        f'{tensors.where} has {side}_normalize_before={comes_first} {preposition}'
        f' {side}.layer_norm.weight, which is not supported: give another model'
      )
    if has_last_norm:  # if only one side has the norm, the other's is reported as missing
      place = 'pre'
  return place


def _positions(tensors: StateDict, d: int) -> dict[str, Float[np.ndarray, 't d']]:
  """Returns positions, learned from PAD + 1 on, or sinusoids up to the limit in fairseq's options.

  Both sides get the same number of positions, that of the shorter table."""
  tables = {}
  for side, ours, option in (
    ('encoder', 'source_positions', 'max_source_positions'),
    ('decoder', 'target_positions', 'max_target_positions'),
  ):
    if f'{side}.embed_positions.weight' in tensors:
      tables[ours] = tensors.positions(side, d)
    else:
      length = tensors.options.get(option) or POSITIONS
      waves = sinusoids(jnp.asarray(PAD + 1 + np.arange(length)), d)
      tables[ours] = np.pad(waves, ((0, 0), (0, d % 2)))
  least = min(map(len, tables.values()))
  return {name: table[:least] for name, table in tables.items()}


def _layer(tensors: StateDict, side: str, i: int, d: int, d_ff: int) -> Params:
  prefix = f'{side}.layers.{i}.'

  def project(name: str, outputs: int, inputs: int) -> Params:
    return dense(tensors, f'{prefix}{name}', outputs, inputs, has_bias=True)

  def around(index: int) -> Params:
    name = f'{prefix}layer_norms.{index}'
    if f'{name}.weight' not in tensors:
      name = f'{prefix}{NORMS[side][index]}'
    return {'norm': norm(tensors, name, d, has_bias=True)}

  own = _projections(tensors, f'{prefix}self_attn.', d)
  layer = {
    'attention': {'qkv': _join(own), 'out': project('self_attn.out_proj', d, d)},
    'around_attention': around(0),
    'feed_forward': {'w1': project('fc1', d_ff, d), 'w2': project('fc2', d, d_ff)},
    'around_feed_forward': around(len(NORMS[side]) - 1),
  }
  if side == 'decoder':
    cross = _projections(tensors, f'{prefix}encoder_attn.', d)
    layer['cross'] = {
      'q': cross[0],
      'kv': _join(cross[1:]),
      'out': project('encoder_attn.out_proj', d, d),
    }
    layer['around_cross'] = around(1)
  return layer


def _projections(tensors: StateDict, prefix: str, d: int) -> list[Params]:
  """Returns the projections of queries, keys and values."""
  if f'{prefix}in_proj_weight' in tensors:
    kernels = np.split(np.asarray(shaped(tensors, f'{prefix}in_proj_weight', 3 * d, d)), 3)
    biases = np.split(np.asarray(shaped(tensors, f'{prefix}in_proj_bias', 3 * d)), 3)
    return [{'kernel': kernel, 'bias': bias} for kernel, bias in zip(kernels, biases, strict=True)]
  return [dense(tensors, f'{prefix}{x}_proj', d, d, has_bias=True) for x in 'qkv']


def _join(parts: list[Params]) -> Params:
  """Returns projections as one."""
  return {name: np.concatenate([part[name] for part in parts]) for name in ('kernel', 'bias')}
