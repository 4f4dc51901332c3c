"""How launchers lay parameters out before they decode with them."""

from typing import Any

import jax

import fastdec as fd
from fastdec.heads.draft import DraftNetwork
from fastdec.quantized import is_quantized

NARROW = 256  # the kernels of a narrower model stay in the cache: packed ones are no faster there


def packed(module: Any, params: Any) -> tuple[Any, Any]:
  """(module, params), the parameters packed (`fd.pack`) where that makes decoding faster: on a CPU, not in int8, and
  if the module says which of them are kernels."""
  if jax.default_backend() != 'cpu' or is_quantized(params) or not getattr(module, 'products', ()):
    return module, params
  width = module.d_target if isinstance(module, DraftNetwork) else module.d_model
  if width < NARROW:
    return module, params
  return module, fd.pack(module, params)
