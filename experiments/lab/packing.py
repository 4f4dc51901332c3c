"""How launchers lay parameters out before they decode with them."""

import os
from typing import Any

import jax
from jax.typing import DTypeLike

import fastdec as fd
from fastdec.heads.draft import DraftNetwork
from fastdec.packed import most_rows
from fastdec.quantized import is_quantized

NARROW = 256  # the kernels of a narrower model stay in the cache: packed ones are no faster there
# of models as wide and wider, and of all in int8, XLA's own form is as fast where it has several
# cores
WIDE = 512


def rows_by_panels(dtype: DTypeLike) -> int:
  """How many rows a product in this type has at most that reads panels here; 0: none does, as on a
  GPU."""
  return most_rows(dtype) if jax.default_backend() == 'cpu' else 0


def packed(module: Any, params: Any) -> tuple[Any, Any]:
  """(module, params), the parameters packed (`fd.pack`) where that makes decoding faster: on a CPU,
  at widths that gain by it on the cores that this process has, and if the module says which
  parameters are kernels."""
  if jax.default_backend() != 'cpu' or not getattr(module, 'products', ()):
    return module, params
  width = module.d_target if isinstance(module, DraftNetwork) else module.d_model
  has_one_core = len(os.sched_getaffinity(0)) == 1
  gains = width >= NARROW and (has_one_core or (width < WIDE and not is_quantized(params)))
  return module, fd.pack(module, params) if gains else params
