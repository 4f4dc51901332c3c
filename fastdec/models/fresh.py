"""Fresh parameters without running their network."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jaxtyping import Array


def unrun(init: Callable[[Any, Array], Any]) -> Callable[[Any, Array], Any]:
  """Decorates a method `init(self, key)` that calls linen's: the same parameters, bit for bit.

  linen makes parameters by running the network, and compiles each operation at its first run: over
  a hundred small programs. Here the network is traced, and only the operations that make
  parameters run. They run one by one, so each shape has a program. One program of all would take
  longer to compile with every layer, and XLA would round some of them differently.
  """

  @functools.wraps(init)
  def initialised(self: Any, key: Array) -> Any:
    traced, shapes = jax.make_jaxpr(functools.partial(init, self), return_shape=True)(key)
    needed = traced.replace(jaxpr=traced.jaxpr.replace(eqns=_needed(traced.jaxpr)))
    # the trace may hold NumPy arrays
    leaves = map(jnp.asarray, jaxpr_as_fun(needed)(key))
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

  return initialised


def shapes_of(module: Any) -> Any:
  """Returns the shapes of the parameters that a module's `init` makes: its own `shapes`, if any."""
  shapes = getattr(module, 'shapes', None)
  return traced_shapes(module) if shapes is None else shapes


def traced_shapes(module: Any) -> Any:
  """Returns the shapes of the parameters that a module's `init` makes, by tracing it."""
  return jax.eval_shape(lambda: module.init(jax.random.key(0)))


def _needed(jaxpr: Jaxpr) -> list[JaxprEqn]:
  """Returns the operations that the outputs depend on, in their order."""
  wanted, kept = set(_variables(jaxpr.outvars)), []
  for operation in reversed(jaxpr.eqns):
    if not wanted.isdisjoint(operation.outvars):
      kept.append(operation)
      wanted.update(_variables(operation.invars))
  return kept[::-1]


def _variables(values: list[Any]) -> list[Any]:
  return [value for value in values if not isinstance(value, Literal)]
