"""Ropes of config.json: its words for how positions turn, as settings of `models/rotary.py`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import Positive, Size, read
from fastdec.hub.lm_families import Said

ROPES = {  # fields that each needs
  'default': (), 'linear': ('factor',), 'dynamic': ('factor',), 'yarn': (),
  'llama3': ('factor', 'low_freq_factor', 'high_freq_factor'),
  'longrope': ('short_factor', 'long_factor'),
}  # fmt: skip
OLDER_ROPES = {'su': 'longrope'}


@dataclasses.dataclass(frozen=True)
class SaidOfRope:
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


def rope_of(said: Said, is_phi: bool) -> dict[str, Any]:
  """Reads `rope_parameters`, or older files' `rope_theta` and `rope_scaling`; the latter wins."""
  name = 'rope_scaling' if said.rope_scaling else 'rope_parameters'
  given, local = getattr(said, name) or {}, said.rope_local_base_freq
  kinds = {'sliding_attention', 'full_attention'}
  if local is not None and kinds & given.keys():  # newer files of Gemma 3
    of_local = given.get('sliding_attention') or {}
    sliding = read(SaidOfRope, of_local, f'config.json: {name}', ignores=True)
    if (sliding.rope_type or 'default') != 'default':
      raise UserError(
        f'rope_type={sliding.rope_type!r} of sliding_attention in config.json is not supported: it'
        " must be 'default'"
      )
    given, local = given.get('full_attention') or {}, sliding.rope_theta or local
  if any(isinstance(value, Mapping) for value in given.values()):
    raise UserError(
      'rope_parameters of config.json differ by layer, which is not supported: give one set for all'
    )
  rope = read(SaidOfRope, given, f'config.json: {name}', ignores=True)
  kind = rope.rope_type or rope.type or 'default'
  kind = 'longrope' if is_phi and kind == 'yarn' else OLDER_ROPES.get(kind, kind)
  if kind not in ROPES:
    raise UserError(
      f'rope_type={kind!r} of config.json is not supported: known are {", ".join(ROPES)}'
    )
  for field in ROPES[kind]:
    if getattr(rope, field) is None:
      raise UserError(
        f"config.json: {name} lacks the field '{field}': set it to a number, or leave rope_type out"
      )
  share = rope.partial_rotary_factor or said.partial_rotary_factor or 1.0
  if not 0 < share <= 1 or (share < 1 and not is_phi):
    raise UserError(
      f'partial_rotary_factor={share} of config.json is not supported: it must be 1, or above 0 in'
      ' models of Phi'
    )
  theta = rope.rope_theta or said.rope_theta or 1e4
  found = {'rope': kind, 'rope_theta': theta, 'rope_share': float(share), 'local_theta': local}
  if kind in ('default', 'linear'):
    return found | ({'rope_factor': rope.factor} if kind == 'linear' else {})
  longest = said.max_position_embeddings
  original = said.original_max_position_embeddings or rope.original_max_position_embeddings
  if kind == 'dynamic' or original is None:
    original = longest
  if original is None:
    raise UserError(
      "config.json lacks the field 'max_position_embeddings': set it to the longest"
      ' text of training'
    )
  factor = rope.factor or (longest or original) / original
  found |= {'rope_factor': factor, 'rope_original': original}
  if kind == 'llama3':
    return found | {'rope_low': rope.low_freq_factor, 'rope_high': rope.high_freq_factor}
  if kind == 'yarn':
    return found | {
      'rope_low': rope.beta_slow or 1.0,
      'rope_high': rope.beta_fast or 32.0,
      'rope_truncate': rope.truncate is not False,
      'rope_scale': rope.attention_factor or _yarn_scale(factor, rope),
    }
  if kind == 'longrope':
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return found | {
      'rope_short': rope.short_factor,
      'rope_long': rope.long_factor,
      'rope_scale': rope.attention_factor or scale,
    }
  return found


def _yarn_scale(factor: float, rope: SaidOfRope) -> float:
  """Returns the factor of turned queries and keys, which sharpens attention in long texts."""

  def grown(by: float) -> float:
    return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0

  if rope.mscale and rope.mscale_all_dim:
    return grown(rope.mscale) / grown(rope.mscale_all_dim)
  return grown(1.0)


def longest_of(said: Said, settings: Mapping[str, Any]) -> int | None:
  """Returns the longest text: some files keep the length before the stretch; dynamic has no end."""
  longest, stretched = said.max_position_embeddings, 0
  if settings['rope'] == 'dynamic':
    return None
  if settings['rope'] == 'yarn':
    stretched = int(settings['rope_factor'] * settings['rope_original'])
  return None if longest is None else max(longest, stretched)
