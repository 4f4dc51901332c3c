"""Which of a module's parameters are kernels, that products are made with: it says so itself.

A module (a model, heads, a draft network) has `products`, regexes of their paths, beside its `partition`. All that they
name is multiplied by `models.layers.project` or looked up by `models.layers.look_up`, and so may lie in int8
(`fastdec.quantized`) or in panels too (`fastdec.packed`).
"""

import re
from typing import Any

from fastdec.errors import UserError

KERNELS = r'(^|/)kernel$'  # what a linear layer multiplies with, in the house's modules


def kernels_of(module: Any) -> Any:
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
      f'{type(module).__name__} names no products, so its parameters are neither packed nor put into int8: decode with'
      ' it as it is, or, if its kernels are multiplied by layers.project, give it `products`, regexes of their paths'
    )
  return regexes
