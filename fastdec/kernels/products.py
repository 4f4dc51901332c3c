"""Kernels of a module: the matrices among its parameters.

A module (a model, heads, a draft network) lists regexes of their paths in `products`. Kernels are
read only by `project`, `project_each` and `look_up` of `models.layers`, so they may be in int8
(`kernels.quantized`) or have panels (`kernels.packed`). Code that slices kernels, as heads do, must
handle both forms.
"""

import re
from collections.abc import Callable
from typing import Any

import jax

from fastdec.errors import UserError

KERNELS = r'(^|/)kernel$'  # the kernel of a linear layer, in our modules


def with_kernels(module: Any, params: Any, convert: Callable[[Any], Any]) -> Any:
  """Returns the parameters with `convert` applied to each kernel.

  Of a kernel in int8, the integers are converted. An array that is in the tree twice is converted
  once, and is then still one array.

  Raises:
    UserError: the module does not name its kernels, or none of these parameters is one of them.
  """
  if hasattr(params, 'products'):
    raise UserError('the module was given instead of its parameters: give module, params')
  is_kernel, done = kernels_of(module), {}

  def convert_kernel(path: Any, leaf: Any) -> Any:
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    if not is_kernel(name.removesuffix('/values')):  # the integers of a kernel in int8
      return leaf
    if id(leaf) not in done:
      done[id(leaf)] = convert(leaf)
    return done[id(leaf)]

  result = jax.tree.map_with_path(convert_kernel, params)
  if not done:
    name = type(module).__name__
    raise UserError(
      f'none of these parameters is a kernel of {name}: give a module together with'
      ' its own parameters'
    )
  return result


def kernels_of(module: Any) -> Callable[[str], bool]:
  """Returns a function that tells from a parameter's path whether it is a kernel.

  Raises:
    UserError: the module does not name its kernels.
  """
  regexes = products_of(module)
  return lambda name: any(re.search(regex, name) for regex in regexes)


def products_of(module: Any) -> tuple[str, ...]:
  """Returns the regexes of a module's kernels.

  Raises:
    UserError: the module has none.
  """
  regexes = getattr(module, 'products', ())
  if not regexes:
    raise UserError(
      f'{type(module).__name__} has no `products`, so its parameters can be neither packed nor'
      ' quantized: decode without that or, if layers.project multiplies by its kernels, list the'
      ' regexes of their paths in `products`'
    )
  return regexes
