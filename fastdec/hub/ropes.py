"""Rotary positions of config.json: its fields for them, as settings of `models/rotary.py`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import Positive, Size, read
from fastdec.hub.lm_families import LlamaFields

ROPES = {  # fields that each needs
  'default': (), 'linear': ('factor',), 'dynamic': ('factor',), 'yarn': (),
  'llama3': ('factor', 'low_freq_factor', 'high_freq_factor'),
  'longrope': ('short_factor', 'long_factor'),
}  # fmt: skip
OLDER_ROPES = {'su': 'longrope'}


@dataclasses.dataclass(frozen=True)
class RopeFields:
  """Fields of rope_parameters, or of rope_scaling."""

  rope_type: str | None = None
  type: str | None = None
  rope_theta: Positive | None = None
  partial_rotary_factor: float | None = None
  factor: Positive | None = None
  low_freq_factor: Positive | None = None
  high_freq_factor: Positive | None = None
  beta_slow: Positive | None = None
  beta_fast: Positive | None = None
  truncate: bool | None = None
  attention_factor: Positive | None = None
  mscale: float | None = None
  mscale_all_dim: float | None = None
  short_factor: tuple[Positive, ...] | None = None
  long_factor: tuple[Positive, ...] | None = None
  original_max_position_embeddings: Size | None = None


def read_rope(config: LlamaFields, is_phi: bool) -> dict[str, Any]:
  """Returns the fields of an `LMConfig` about rotary positions.

  They are in `rope_parameters`, or in `rope_theta` and `rope_scaling` of older files; of both,
  `rope_scaling` wins.

  Raises:
    UserError: a rope that is not supported, or that lacks a field.
  """
  name = 'rope_scaling' if config.rope_scaling else 'rope_parameters'
  parameters, local_theta = _split_by_layer(config, name)
  rope = read(RopeFields, parameters, f'config.json: {name}', ignores=True)
  kind = rope.rope_type or rope.type or 'default'
  if is_phi and kind == 'yarn':  # early files of Phi call it so
    kind = 'longrope'
  kind = OLDER_ROPES.get(kind, kind)
  if kind not in ROPES:
    raise UserError(
      f'rope_type={kind!r} of config.json is not supported: known are {", ".join(ROPES)}'
    )
  for field in ROPES[kind]:
    if getattr(rope, field) is None:
      raise UserError(
        f"config.json: {name} lacks the field '{field}': set it to a number, or leave rope_type out"
      )
  share = rope.partial_rotary_factor or config.partial_rotary_factor or 1.0
  if not 0 < share <= 1 or (share < 1 and not is_phi):
    raise UserError(
      f'partial_rotary_factor={share} of config.json is not supported: it must be 1, or above 0 in'
      ' models of Phi'
    )
  settings = {
    'rope': kind,
    'rope_theta': rope.rope_theta or config.rope_theta or 1e4,
    'rope_share': float(share),
    'local_theta': local_theta,
  }
  return settings | _stretch(kind, rope, config)


def _split_by_layer(config: LlamaFields, name: str) -> tuple[Mapping[str, Any], float | None]:
  """Returns the parameters of full layers, and the base of layers with a window (Gemma 3).

  Newer files of Gemma 3 nest both in one field.

  Raises:
    UserError: other parameters that differ by layer.
  """
  parameters = getattr(config, name) or {}
  local_theta = config.rope_local_base_freq
  is_nested = not parameters.keys().isdisjoint({'sliding_attention', 'full_attention'})
  if local_theta is not None and is_nested:
    sliding = read(
      RopeFields, parameters.get('sliding_attention') or {}, f'config.json: {name}', ignores=True
    )
    if (sliding.rope_type or 'default') != 'default':
      raise UserError(
        f'rope_type={sliding.rope_type!r} of sliding_attention in config.json is not supported: it'
        " must be 'default'"
      )
    local_theta = sliding.rope_theta or local_theta
    parameters = parameters.get('full_attention') or {}
  if any(isinstance(value, Mapping) for value in parameters.values()):
    raise UserError(
      'rope_parameters of config.json differ by layer, which is not supported: give one set for all'
    )
  return parameters, local_theta


def _stretch(kind: str, rope: RopeFields, config: LlamaFields) -> dict[str, Any]:
  """Returns the settings that stretch positions beyond the length of training."""
  if kind == 'default':
    return {}
  if kind == 'linear':
    return {'rope_factor': rope.factor}
  longest = config.max_position_embeddings
  original = config.original_max_position_embeddings or rope.original_max_position_embeddings
  if kind == 'dynamic' or original is None:
    original = longest
  if original is None:
    raise UserError(
      "config.json lacks the field 'max_position_embeddings': set it to the longest"
      ' text of training'
    )
  factor = rope.factor or (longest or original) / original
  settings: dict[str, Any] = {'rope_factor': factor, 'rope_original': original}
  if kind == 'llama3':
    settings |= {'rope_low': rope.low_freq_factor, 'rope_high': rope.high_freq_factor}
  if kind == 'yarn':
    settings |= {
      'rope_low': rope.beta_slow or 1.0,
      'rope_high': rope.beta_fast or 32.0,
      'rope_truncate': rope.truncate is not False,
      'rope_scale': rope.attention_factor or _yarn_scale(factor, rope),
    }
  if kind == 'longrope':
    scale = 1.0
    if factor > 1 and original > 1:
      scale = math.sqrt(1 + math.log(factor) / math.log(original))
    settings |= {
      'rope_short': rope.short_factor,
      'rope_long': rope.long_factor,
      'rope_scale': rope.attention_factor or scale,
    }
  return settings


def _yarn_scale(factor: float, rope: RopeFields) -> float:
  """Returns the factor of rotated queries and keys, which sharpens attention in long texts."""

  def scale(mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

  if rope.mscale and rope.mscale_all_dim:
    return scale(rope.mscale) / scale(rope.mscale_all_dim)
  return scale(1.0)


def find_longest(config: LlamaFields, settings: Mapping[str, Any]) -> int | None:
  """Returns the length of the longest text; None: no limit.

  YaRN's files may keep the length before the stretch, so the larger of the two counts.
  """
  longest = config.max_position_embeddings
  if longest is None or settings['rope'] == 'dynamic':
    return None
  if settings['rope'] == 'yarn':
    return max(longest, int(settings['rope_factor'] * settings['rope_original']))
  return longest
