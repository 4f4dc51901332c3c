"""Packs parameters if that makes decoding faster."""

import os
from typing import Any

import jax

from fastdec.kernels.packed import pack
from fastdec.kernels.quantized import is_quantized
from fastdec.kernels.sharding import mesh_of

NARROW = 256  # the kernels of a narrower model stay in the cache: packed ones are no faster there
# In models of this width or wider XLA's own form is as fast on several cores.
WIDE = 512


def pack_if_faster(module: Any, params: Any) -> tuple[Any, Any]:
  """Returns (module, params), the parameters packed (`fd.pack`) if that makes decoding faster.

  It does on a CPU, at widths that gain on the cores of this process, for modules that name their
  kernels. On a mesh and in int8 the parameters stay as they are.
  """
  is_on_cpu = jax.default_backend() == 'cpu' and mesh_of(params) is None
  if not (is_on_cpu and getattr(module, 'products', ())) or is_quantized(params):
    return module, params
  width = getattr(module, 'd_target', None) or module.d_model  # a draft network reads the target
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
  gains = width >= NARROW and (cores == 1 or width < WIDE)
  return module, pack(module, params) if gains else params
