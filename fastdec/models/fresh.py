"""Fresh parameters, without running the network that has them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jaxtyping import Array


def init_by_trace(init: Callable[[Any, Array], Any]) -> Callable[[Any, Array], Any]:
  """Decorates a method `init(self, key)` that calls linen's; the parameters are the same bits.

  linen makes parameters by running the network, and compiles each operation at its first run: over
  a hundred small programs. Here the network is traced, and only the operations that make
  parameters run. They run one by one, so there is a program for each shape. One program for all
  would take longer to compile with every layer, and XLA would round some parameters differently.
  """

  @functools.wraps(init)
  def init_parameters(self: Any, key: Array) -> Any:
    traced, shapes = jax.make_jaxpr(functools.partial(init, self), return_shape=True)(key)
    kept = _find_needed(traced.jaxpr)
    needed = traced.replace(jaxpr=traced.jaxpr.replace(eqns=kept))
    leaves = map(jnp.asarray, jaxpr_as_fun(needed)(key))  # some constants are NumPy arrays
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

  return init_parameters


def shapes_of(module: Any) -> Any:
  """Returns the shapes of a module's parameters: its own `shapes` if any, else by a trace."""
  shapes = getattr(module, 'shapes', None)
  return trace_shapes(module) if shapes is None else shapes


def trace_shapes(module: Any) -> Any:
  """Returns the shapes of the parameters that a module's `init` makes, by tracing it."""
  return jax.eval_shape(lambda: module.init(jax.random.key(0)))


def _find_needed(jaxpr: Jaxpr) -> list[JaxprEqn]:
  """Returns the operations that the outputs depend on, in their order."""
  needed = []
  wanted = {value for value in jaxpr.outvars if not isinstance(value, Literal)}
  for operation in reversed(jaxpr.eqns):
    if not wanted.isdisjoint(operation.outvars):
      needed.append(operation)
      wanted.update(value for value in operation.invars if not isinstance(value, Literal))
  return needed[::-1]
