"""Packs parameters where that makes decoding faster."""

import os
from typing import Any

import jax

from fastdec.kernels import forms
from fastdec.kernels.packed import pack
from fastdec.kernels.quantized import is_quantized
from fastdec.kernels.sharding import mesh_of

NARROW = 256  # the kernels of a narrower model fit the CPU's cache, where panels gain nothing
WIDE = 512  # from this width on, XLA's own form is as fast if there are several cores


def pack_if_faster(module: Any, params: Any) -> tuple[Any, Any]:
  """Returns (module, params) with the parameters packed (`fd.pack`) if decoding is then faster.

  It is faster on a CPU, for modules that name their kernels and have a width that gains on the
  cores of this process. Parameters on a mesh or in int8 are never packed, and none on a CPU with
  AMX: there greedy decoding and beam search of one text take 1.3 times as long with panels, and
  those of 16 texts as long as without.
  """
  is_on_cpu = jax.default_backend() == 'cpu' and mesh_of(params) is None
  if not (is_on_cpu and getattr(module, 'products', ())) or is_quantized(params):
    return module, params
  if 'amx_int8' in forms.cpu_flags():
    return module, params

  width = getattr(module, 'd_target', None) or module.d_model  # a draft network reads the target
  cores = os.cpu_count()
  if hasattr(os, 'sched_getaffinity'):
    cores = len(os.sched_getaffinity(0))
  if width >= NARROW and (cores == 1 or width < WIDE):
    params = pack(module, params)
  return module, params
