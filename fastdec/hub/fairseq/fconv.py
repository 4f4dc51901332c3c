"""fairseq's FConv: shapes give layer widths and kernels, and weight normalisation is folded.

A normalised weight is stored as its direction v and lengths g: weight = g v / ||v||, the norm over
all axes on which g has size 1. There is one length per output; in the decoder's convolutions before
December 2017 (decoder.version below 2) there is one per frame, as the shape of g shows. A model
prepared for generation has the weight itself.
"""

import re

import numpy as np

from fastdec.errors import UserError
from fastdec.hub.fairseq.state_dict import END, PAD, StateDict
from fastdec.hub.tensors import shaped
from fastdec.models.api import Params
from fastdec.models.fconv import FConv, FConvConfig, Layers, list_sizes

# (channels, width, number of layers back to the residual)
DEEPER = re.compile(r'\(\s*\d+\s*,\s*\d+\s*,(?!\s*1\s*\))')


def read(tensors: StateDict, embeddings: Params, heads: int | None) -> tuple[FConv, Params]:
  """Reads the model of a state dict, and its parameters, matrices [outputs, inputs].

  Args:
    embeddings: 'embedding', and 'source_embedding' if the source has its own.
    heads: must be None: an FConv has one head.
  """
  if heads is not None:
    raise UserError(
      f'{tensors.where} is an FConv, of one attention head: leave out --heads={heads}'
    )
  words, d = embeddings['embedding'].shape
  layers = {side: _layers(tensors, side) for side in ('encoder', 'decoder')}
  positions = {side: tensors.positions(side, d) for side in layers}
  least = min(map(len, positions.values()))
  d_out = tensors.sizes(_stored_name(tensors, 'decoder.fc3'), 'words, width')[1]
  output = _dense(tensors, 'decoder.fc3', words, d_out)
  is_tied = np.array_equal(output['kernel'], embeddings['embedding'])
  config = FConvConfig(
    vocab_size=words,
    source_vocab_size=len(embeddings.get('source_embedding', ())) or None,
    d_embed=d,
    d_out=d_out,
    encoder_layers=layers['encoder'],
    decoder_layers=layers['decoder'],
    is_tied=is_tied,
    dropout=tensors.options.get('dropout') or 0.0,
    max_positions=least,
    pad_id=PAD,
    eos_ids=(END,),
    start_id=END,
    suppressed_ids=(PAD,),
  )
  params = {**embeddings, 'output_bias': output['bias']}
  if not is_tied:
    params['output'] = output['kernel']
  for side, ours in (('encoder', 'source_positions'), ('decoder', 'target_positions')):
    params[ours] = positions[side][:least]
    params[f'{side}_enter'] = _dense(tensors, f'{side}.fc1', layers[side][0][0], d)
    width = {'encoder': d, 'decoder': d_out}[side]
    params[f'{side}_leave'] = _dense(tensors, f'{side}.fc2', width, layers[side][-1][0])
    for i, sizes in enumerate(list_sizes(layers[side])):
      params[f'{side}_{i}'] = _layer(tensors, side, i, sizes, d)
  return FConv(config), params


def _layers(tensors: StateDict, side: str) -> Layers:
  """Returns (channels, kernel width) of each convolution, up to the last that has tensors."""
  option = tensors.options.get(f'{side}_layers')
  if isinstance(option, str) and DEEPER.search(option):
    raise UserError(
      f'{tensors.where} has residuals over several layers ({side}_layers={option}):'
      ' give another model'
    )
  layers = []
  for i in range(tensors.count(f'{side}.convolutions.')):
    name = f'{side}.convolutions.{i}'
    sizes = tensors.sizes(_stored_name(tensors, name), 'kernel width, inputs, outputs')
    width, _, outputs = sizes
    if outputs % 2:
      raise UserError(
        f'{name} has {outputs} outputs, and a gated layer has an even number: {tensors.advice}'
      )
    layers.append((outputs // 2, width))
  return tuple(layers)


def _layer(tensors: StateDict, side: str, i: int, sizes: tuple[int, int, int], d: int) -> Params:
  inputs, channels, width = sizes
  conv = _dense(tensors, f'{side}.convolutions.{i}', width, inputs, 2 * channels)
  kernel = np.moveaxis(conv['kernel'], -1, 0).reshape(2, channels, width * inputs)
  layer = {'conv': {'kernel': kernel, 'bias': conv['bias'].reshape(2, channels)}}
  if inputs != channels:
    layer['skip'] = _dense(tensors, f'{side}.projections.{i}', channels, inputs)
  if side == 'decoder':
    layer['query'] = _dense(tensors, f'decoder.attention.{i}.in_projection', d, channels)
    layer['out'] = _dense(tensors, f'decoder.attention.{i}.out_projection', channels, d)
  return layer


def _dense(tensors: StateDict, name: str, *shape: int) -> Params:
  """Reads a linear layer [outputs, inputs], or a convolution [kernel width, inputs, outputs]."""
  axis = {2: 0, 3: 2}[len(shape)]  # of the outputs
  bias = shaped(tensors, f'{name}.bias', shape[axis])
  stored = shaped(tensors, _stored_name(tensors, name), *shape)
  if f'{name}.weight' in tensors:
    return {'kernel': np.asarray(stored), 'bias': bias}

  # Compute a normalised weight from its direction and lengths.
  v = np.asarray(stored, np.float64)
  if len(shape) == 3 and tensors[f'{name}.weight_g'].shape == (shape[0], 1, 1):
    axis = 0  # the old norm of a convolution
  g_shape = [1] * len(shape)
  g_shape[axis] = shape[axis]
  g = shaped(tensors, f'{name}.weight_g', *g_shape)
  others = tuple(i for i in range(len(shape)) if i != axis)
  norm = np.sqrt((v**2).sum(others, keepdims=True))
  weight = np.asarray(g, np.float64) * v / np.where(norm == 0, 1, norm)
  return {'kernel': weight.astype(np.float32), 'bias': bias}


def _stored_name(tensors: StateDict, name: str) -> str:
  """Returns the name of the tensor that has a weight's shape."""
  return f'{name}.weight' if f'{name}.weight' in tensors else f'{name}.weight_v'
