"""Compilation of decoding programs, so that a row's numbers do not depend on a call's width.

XLA's CPU backend sums up to 4,096 entries by loops of its own, and more by a library (YNNPACK),
which adds in another order and has another exponential. So the norms and the softmaxes of a call on
eight tokens would differ in the last bit from those of a call on one. Rounding to int8 enlarges
that: texts in int8 would part. With `OPTIONS` the library computes products alone.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

OPTIONS = {'xla_cpu_experimental_ynn_fusion_type': 'LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT'}


class Program:
  """A function that is compiled by `jax.jit` with `OPTIONS`, at its first call."""

  def __init__(self, function: Callable[..., Any], settings: dict[str, Any]):
    functools.update_wrapper(self, function)
    self._function, self._settings = function, settings

  @functools.cached_property
  def program(self) -> Any:
    return jax.jit(self._function, compiler_options=options(), **self._settings)

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    try:
      return self.program(*args, **kwargs)
    except ValueError as error:
      if 'top-level' not in str(error):
        raise
    # It is called inside another program, which has options of its own.
    return self._function(*args, **kwargs)

  def __getattr__(self, name: str) -> Any:
    return getattr(self.program, name)


def jit(**settings: Any) -> Callable[[Callable[..., Any]], Program]:
  """Decorates a decoding program; `settings` as for `jax.jit`."""
  return lambda function: Program(function, settings)


@functools.cache
def options() -> dict[str, str]:
  """Returns `OPTIONS` where a CPU decodes, and XLA knows them."""
  if jax.default_backend() != 'cpu':
    return {}
  try:
    jax.jit(lambda: 0, compiler_options=OPTIONS).lower().compile()
  except Exception:  # of a kind that XLA does not document
    return {}
  return OPTIONS
