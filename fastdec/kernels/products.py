"""Kernels of a module: the parameters that products multiply with.

A module (a model, heads, a draft network) names them by `products`, regexes of their paths, beside
its `partition`. Only `project`, `project_each` and `look_up` of `models.layers` read them, so they
may lie in int8 (`kernels.quantized`) or in panels (`kernels.packed`). Code that cuts kernels, as in
heads, knows both forms.
"""

import re
from collections.abc import Callable
from typing import Any

import jax

from fastdec.errors import UserError

KERNELS = r'(^|/)kernel$'  # the kernel of a linear layer, in our modules


def with_kernels(module: Any, params: Any, convert: Callable[[Any], Any]) -> Any:
  """Returns the parameters with each kernel replaced by `convert` of it.

  In int8 it converts the integers. An array that stands in the tree twice stays one array.

  Raises:
    UserError: the module does not name its kernels, or none of these parameters is one of them.
  """
  if hasattr(params, 'products'):
    raise UserError('the module stands in the place of its parameters: give module, params')
  is_kernel, done = kernels_of(module), {}

  def converted(path: Any, leaf: Any) -> Any:
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    if not is_kernel(name.removesuffix('/values')):  # of a kernel in int8
      return leaf
    if id(leaf) not in done:
      done[id(leaf)] = convert(leaf)
    return done[id(leaf)]

  result = jax.tree.map_with_path(converted, params)
  if not done:
    name = type(module).__name__
    raise UserError(
      f'none of these parameters is a kernel of {name}: give a module together with'
      ' its own parameters'
    )
  return result


def kernels_of(module: Any) -> Callable[[str], bool]:
  """Returns a predicate of a parameter's path: true for kernels.

  Raises:
    UserError: the module does not name its kernels.
  """
  regexes = products_of(module)
  return lambda name: any(re.search(regex, name) for regex in regexes)


def products_of(module: Any) -> tuple[str, ...]:
  """Returns the regexes of a module's kernels.

  Raises:
    UserError: it has none.
  """
  regexes = getattr(module, 'products', ())
  if not regexes:
    raise UserError(
      f'{type(module).__name__} names no products, so its parameters are neither packed nor put'
      ' into int8: decode with it as it is, or, if its kernels are multiplied by layers.project,'
      ' give it `products`, regexes of their paths'
    )
  return regexes
