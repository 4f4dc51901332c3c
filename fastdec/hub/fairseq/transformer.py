"""fairseq's Transformer: post-norm, or pre-norm with a last norm; attention with biases.

Names differ with fairseq's age: one in_proj_weight for queries, keys and values, or three;
layer_norms.0 or self_attn_layer_norm; decoder.embed_out or decoder.output_projection.weight, which
may also be left out.
"""

import re

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fastdec.errors import UserError
from fastdec.hub.fairseq.state_dict import END, PAD, StateDict
from fastdec.hub.tensors import are_equal, shaped
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

  Positions come like learned ones: fairseq's sinusoids, too, begin at position 2.

  Args:
    embeddings: 'embedding', and 'source_embedding' if the source has its own.
    heads: of encoder and decoder, if the checkpoint's options do not tell.
  """
  size = embeddings['embedding'].shape
  d = size[1]
  params = {**embeddings, **_positions(tensors, d)}
  output = next((shaped(tensors, name, *size) for name in OUTPUTS if name in tensors), None)
  if output is not None and not are_equal(output, embeddings['embedding']):
    params['output'] = output
  elif output is None and tensors.options.get('share_decoder_input_output_embed', True) is False:
    tensors.missing.append(OUTPUTS[0])
  if any('.layernorm_embedding.' in name for name in tensors):
    for side, ours in (('encoder', 'source'), ('decoder', 'target')):
      norm = _norm(tensors, f'{side}.layernorm_embedding', d)
      params[f'{ours}_embedding_norm'] = norm
  model = Transformer(_config(tensors, params, heads))
  for side in NORMS:
    c = model.config if side == 'encoder' else model.config.of_decoder
    for i in range(_depth(tensors, side)):
      params[f'{side}_{i}'] = _layer(tensors, side, i, d, c.d_ff)
    if c.norm == 'pre':
      params[f'{side}_norm'] = _norm(tensors, f'{side}.layer_norm', d)
  return model, params


def _config(tensors: StateDict, params: Params, heads: int | None) -> TransformerConfig:
  options, embedding = tensors.options, params['embedding']
  activation = options.get('activation_fn') or 'relu'
  if activation not in ACTIVATIONS:
    known = ', '.join(ACTIVATIONS)
    raise UserError(
      f'activation_fn={activation!r} of {tensors.where} is not supported: known are {known}'
    )
  heads_of = {side: _heads(tensors, side, heads) for side in NORMS}
  d_ff = {side: tensors.sizes(f'{side}.layers.0.fc1.weight', 'width, width')[0] for side in NORMS}
  return TransformerConfig(
    vocab_size=embedding.shape[0],
    source_vocab_size=params['source_embedding'].shape[0] if 'source_embedding' in params else None,
    is_tied='output' not in params,
    d_model=embedding.shape[1],
    d_ff=d_ff['encoder'],
    heads=heads_of['encoder'],
    decoder_d_ff=d_ff['decoder'],
    decoder_heads=heads_of['decoder'],
    encoder_layers=_depth(tensors, 'encoder'),
    decoder_layers=_depth(tensors, 'decoder'),
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


def _heads(tensors: StateDict, side: str, given: int | None) -> int:
  said = tensors.options.get(f'{side}_attention_heads')
  if said is not None and given is not None and said != given:
    raise UserError(
      f'{tensors.where} was trained with {side}_attention_heads={said}: leave out --heads={given}'
    )
  if said is not None:
    return said
  if given is not None:
    return given
  raise UserError(
    f'{tensors.where} does not say how many attention heads there are: give --heads'
    ' (mostly 8 or 16)'
  )


def _depth(tensors: StateDict, side: str) -> int:
  """Counts the layers of a side, up to the last that has tensors."""
  found = [re.match(rf'{side}\.layers\.(\d+)\.', name) for name in tensors]
  return max((int(match[1]) for match in found if match), default=0) + 1


def _norm_place(tensors: StateDict) -> str:
  """Returns 'pre' if a norm ends both sides, 'post' if none does.

  Raises:
    UserError: pre-norm without a norm at the end (fairseq before 2018), or sides that differ.
  """
  for side in NORMS:
    comes_first = tensors.options.get(f'{side}_normalize_before')
    if comes_first is not None and bool(comes_first) != (f'{side}.layer_norm.weight' in tensors):
      what = (
        f'{side}_normalize_before={comes_first} with{"out" * bool(comes_first)}'
        f' {side}.layer_norm.weight'
      )
      raise UserError(f'{tensors.where} has {what}, which is not supported: give another model')
  last = [f'{side}.layer_norm.weight' in tensors for side in NORMS]
  return 'pre' if any(last) else 'post'  # if only one side has it, the other's counts as missing


def _positions(tensors: StateDict, d: int) -> dict[str, Float[np.ndarray, 't d']]:
  """Returns positions, learned from PAD + 1 on, or sinusoids up to the limit in fairseq's options.

  Both sides get the same number."""
  tables = {}
  for side, ours, option in (
    ('encoder', 'source_positions', 'max_source_positions'),
    ('decoder', 'target_positions', 'max_target_positions'),
  ):
    if f'{side}.embed_positions.weight' in tensors:
      tables[ours] = tensors.positions(side, d)
    else:
      waves = sinusoids(
        jnp.asarray(PAD + 1 + np.arange(tensors.options.get(option) or POSITIONS)), d
      )
      tables[ours] = np.pad(waves, ((0, 0), (0, d % 2)))
  least = min(len(table) for table in tables.values())
  return {name: table[:least] for name, table in tables.items()}


def _layer(tensors: StateDict, side: str, i: int, d: int, d_ff: int) -> Params:
  prefix = f'{side}.layers.{i}.'

  def dense(name: str, outputs: int, inputs: int) -> Params:
    weight, bias = f'{prefix}{name}.weight', f'{prefix}{name}.bias'
    return {
      'kernel': shaped(tensors, weight, outputs, inputs),
      'bias': shaped(tensors, bias, outputs),
    }

  def norm(index: int) -> Params:
    old, new = f'{prefix}layer_norms.{index}', f'{prefix}{NORMS[side][index]}'
    return {'norm': _norm(tensors, old if f'{old}.weight' in tensors else new, d)}

  own = _projections(tensors, f'{prefix}self_attn.', d)
  layer = {
    'attention': {'qkv': _joined(own), 'out': dense('self_attn.out_proj', d, d)},
    'around_attention': norm(0),
    'feed_forward': {'w1': dense('fc1', d_ff, d), 'w2': dense('fc2', d, d_ff)},
    'around_feed_forward': norm(-1 % len(NORMS[side])),
  }
  if side == 'decoder':
    cross = _projections(tensors, f'{prefix}encoder_attn.', d)
    layer['cross'] = {
      'q': cross[0],
      'kv': _joined(cross[1:]),
      'out': dense('encoder_attn.out_proj', d, d),
    }
    layer['around_cross'] = norm(1)
  return layer


def _norm(tensors: StateDict, name: str, d: int) -> Params:
  return {'scale': shaped(tensors, f'{name}.weight', d), 'bias': shaped(tensors, f'{name}.bias', d)}


def _projections(tensors: StateDict, prefix: str, d: int) -> list[Params]:
  """Returns the projections of queries, keys and values."""
  if f'{prefix}in_proj_weight' in tensors:
    kernel, bias = (
      shaped(tensors, f'{prefix}in_proj_weight', 3 * d, d),
      shaped(tensors, f'{prefix}in_proj_bias', 3 * d),
    )
    thirds = zip(np.split(np.asarray(kernel), 3), np.split(np.asarray(bias), 3), strict=True)
    return [{'kernel': kernel, 'bias': bias} for kernel, bias in thirds]

  def part(x, name, *shape):
    return shaped(tensors, f'{prefix}{x}_proj.{name}', *shape)

  return [{'kernel': part(x, 'weight', d, d), 'bias': part(x, 'bias', d)} for x in 'qkv']


def _joined(parts: list[Params]) -> Params:
  """Returns projections as one."""
  return {name: np.concatenate([part[name] for part in parts]) for name in ('kernel', 'bias')}
