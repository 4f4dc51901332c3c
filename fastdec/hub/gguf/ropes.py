"""Rotary positions of GGUF files, in the words of config.json."""

from typing import Any

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.folders.stored import Stored
from fastdec.hub.gguf.header import GgufTensor, Header
from fastdec.hub.gguf.metadata import Metadata
from fastdec.models.rotary import Rope


def make_rope(header: Header, fields: Metadata) -> dict[str, Any]:
  """Returns what config.json calls rope_parameters.

  Raises:
    UserError: a scaling that is not known.
  """
  rope: dict[str, Any] = {'rope_theta': fields.rope_freq_base}
  if fields.rope_dimension_count not in (None, fields.width):
    rope['partial_rotary_factor'] = fields.rope_dimension_count / fields.width
  kind, factor = fields.rope_scaling_type, fields.rope_scaling_factor
  if kind == 'none' and fields.rope_scale_linear:
    kind, factor = 'linear', fields.rope_scale_linear
  original = fields.rope_scaling_original_context_length
  long, short = (header.tensors.get(f'rope_factors_{name}.weight') for name in ('long', 'short'))
  if 'rope_freqs.weight' in header.tensors:
    return rope | _of_factors(_numbers(header.tensors['rope_freqs.weight']), fields)
  if long is not None and short is not None:
    rope |= {'rope_type': 'longrope', 'short_factor': _numbers(short)}
    return rope | {
      'long_factor': _numbers(long),
      'attention_factor': fields.rope_scaling_attn_factor or 1.0,
      'original_max_position_embeddings': original,
    }
  if kind == 'linear':
    return rope | {'rope_type': 'linear', 'factor': factor}
  if kind == 'yarn':
    return rope | {
      'rope_type': 'yarn',
      'factor': factor,
      'original_max_position_embeddings': original,
      'attention_factor': fields.rope_scaling_yarn_attn_factor,
      'beta_fast': fields.rope_scaling_yarn_beta_fast,
      'beta_slow': fields.rope_scaling_yarn_beta_slow,
      'truncate': header.architecture != 'gpt-oss',
    }
  if kind not in ('none', 'longrope'):
    raise UserError(
      f'rope.scaling.type={shown(kind)} of {header.path} is not supported: known are none, linear,'
      ' yarn, longrope'
    )
  return rope


def _of_factors(factors: list[float], fields: Metadata) -> dict[str, Any]:
  """Returns the rope that divides frequencies by these factors, in texts of every length.

  They are those of Llama 3.1 and later models, or else longrope without a longer text.
  """
  plain = Rope('default', fields.rope_freq_base).frequencies(2 * len(factors))
  llama = Rope('llama3', fields.rope_freq_base, factor=max(factors))
  if np.allclose(plain / factors, llama.frequencies(2 * len(factors)), rtol=1e-4, atol=0):
    return {
      'rope_type': 'llama3',
      'factor': llama.factor,
      'low_freq_factor': llama.low,
      'high_freq_factor': llama.high,
      'original_max_position_embeddings': llama.original,
    }
  return {
    'rope_type': 'longrope',
    'short_factor': factors,
    'long_factor': factors,
    'factor': 1.0,
    'attention_factor': 1.0,
    'original_max_position_embeddings': fields.context_length,
  }


def _numbers(tensor: GgufTensor) -> list[float]:
  """Reads a short tensor of floats."""
  if tensor.kind.name != 'F32' or len(tensor.shape) != 1:
    raise UserError(
      f'{tensor.name} of {tensor.file} is not a list of floats: convert the model again'
    )
  return Stored(tensor.file, tensor.offset, np.dtype('<f4'), tensor.shape)[:].tolist()
