"""Which of a module's parameters are kernels, that products are made with: it says so itself.

A module (a model, heads, a draft network) has `products`, regexes of their paths, beside its
`partition`. All that they name is multiplied by `project` or `project_each` of `models.layers`, or
looked up by `look_up`, and so may lie in int8 (`fastdec.quantized`) or in panels too
(`fastdec.packed`). What takes kernels apart, as heads do, knows both forms.
"""

import re
from collections.abc import Callable
from typing import Any

import jax

from fastdec.errors import UserError

KERNELS = r'(^|/)kernel$'  # what a linear layer multiplies with, in the house's modules


def with_kernels(module: Any, params: Any, convert: Callable[[Any], Any]) -> Any:
  """The parameters, with what `convert` makes of each kernel in its place: of one in int8, of its
  whole numbers. What stands in the tree twice stays one array.

  Raises:
    UserError: the module does not say which are kernels, or none of these parameters is one of
      them.
  """
  is_kernel, done = kernels_of(module), {}

  def converted(path: Any, leaf: Any) -> Any:
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    if not is_kernel(name.removesuffix('/values')):  # of a kernel in int8
      return leaf
    if id(leaf) not in done:
      done[id(leaf)] = convert(leaf)
    return done[id(leaf)]

  made = jax.tree.map_with_path(converted, params)
  if not done:
    name = type(module).__name__
    raise UserError(
      f'none of these parameters is a kernel of {name}: give a module together with'
      ' its own parameters'
    )
  return made


def kernels_of(module: Any) -> Callable[[str], bool]:
  """A function of a parameter's path: whether it is a kernel.

  Raises:
    UserError: the module does not say which are.
  """
  regexes = products_of(module)
  return lambda name: any(re.search(regex, name) for regex in regexes)


def products_of(module: Any) -> tuple[str, ...]:
  """The regexes of a module's kernels.

  Raises:
    UserError: it has none.
  """
  regexes = getattr(module, 'products', ())
  if not regexes:
    raise UserError(
      f'{type(module).__name__} names no products, so its parameters are neither packed nor put'
      ' into int8: decode with'
      ' it as it is, or, if its kernels are multiplied by layers.project, give it `products`,'
      ' regexes of their paths'
    )
  return regexes
