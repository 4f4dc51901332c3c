"""Rotary positions of GGUF files, in the words of config.json."""

from typing import Any

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.folders.stored import Stored
from fastdec.hub.gguf.header import GgufTensor, Header
from fastdec.hub.gguf.metadata import Metadata
from fastdec.models.rotary import Rope

TENSORS = ('rope_freqs.weight', 'rope_factors_long.weight', 'rope_factors_short.weight')


def make_rope(header: Header, fields: Metadata) -> dict[str, Any]:
  """Returns what config.json calls rope_parameters.

  Raises:
    UserError: a scaling that is not known.
  """
  rope: dict[str, Any] = {'rope_theta': fields.rope_freq_base}
  dimensions = fields.rope_dimension_count or fields.width
  if dimensions != fields.width:
    rope['partial_rotary_factor'] = dimensions / fields.width
  kind, factor = fields.rope_scaling_type, fields.rope_scaling_factor or fields.rope_scale_linear
  original = fields.rope_scaling_original_context_length
  if kind not in ('none', 'linear', 'yarn', 'longrope'):
    raise UserError(
      f'rope.scaling.type={quote(kind)} of {header.path} is not supported: known are none, linear,'
      ' yarn, longrope'
    )
  is_scaled = factor not in (None, 1) and kind != 'none'

  # Factors of each frequency are tensors. They take the place of all other scaling.
  factors = {}
  for name in TENSORS:
    if name in header.tensors:
      factors[name] = _numbers(header.tensors[name], dimensions // 2)
  is_long = [*factors] == [*TENSORS[1:]]
  needs_long = kind == 'longrope' or fields.rope_scaling_attn_factor not in (None, 1)
  is_known = is_long or [*factors] in ([], [TENSORS[0]])
  if not is_known or (needs_long and not is_long) or (factors and is_scaled):
    raise UserError(
      f'{header.path} has rope.scaling.type={kind}, factor={factor},'
      f' attn_factor={fields.rope_scaling_attn_factor} and {", ".join(factors) or "no tensors"} of'
      ' factors, which do not belong together: convert it again'
    )
  if is_long:
    return rope | {
      'rope_type': 'longrope',
      'long_factor': factors[TENSORS[1]],
      'short_factor': factors[TENSORS[2]],
      'attention_factor': fields.rope_scaling_attn_factor or 1.0,
      'original_max_position_embeddings': original,
    }
  if factors:
    return rope | _of_factors(factors[TENSORS[0]], fields)
  if is_scaled and kind == 'yarn':
    return rope | {
      'rope_type': 'yarn',
      'factor': factor,
      'original_max_position_embeddings': original,
      'attention_factor': fields.rope_scaling_yarn_attn_factor,
      'beta_fast': fields.rope_scaling_yarn_beta_fast,
      'beta_slow': fields.rope_scaling_yarn_beta_slow,
      'truncate': header.architecture != 'gpt-oss',
    }
  if is_scaled:
    return rope | {'rope_type': 'linear', 'factor': factor}
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


def _numbers(tensor: GgufTensor, count: int) -> list[float]:
  """Reads a short tensor of floats."""
  if tensor.kind.name != 'F32' or tensor.shape != (count,):
    raise UserError(
      f'{tensor.name} of {tensor.file} must be a list of {count} floats, and is'
      f' {tensor.kind.name}{list(tensor.shape)}: convert the model again'
    )
  return Stored(tensor.file, tensor.offset, np.dtype('<f4'), tensor.shape)[:].tolist()
