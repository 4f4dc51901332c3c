"""Loops on the device that carry caches and write them in place.

In a call on one token, XLA's CPU backend reads the cache of one row as [g, s, p]. If the loop
carries [1, g, s, p], XLA writes both shapes, each from its own copy, and copies both once more:
four copies of every cache per step. So these loops carry [g, s, p]. Calls on more tokens read
[1, g, s, p], and their loops carry that.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jaxtyping import Array, Bool

T = TypeVar('T')
AXES = 4  # of a cache's entries


def while_loop(
  condition: Callable[[T], Bool[Array, '']], step: Callable[[T], T], state: T, nodes: int
) -> T:
  """Runs `jax.lax.while_loop`; its step calls a model on `nodes` tokens of each row."""
  if nodes > 1:
    return jax.lax.while_loop(condition, step, state)
  restore = _remember_rows(state)
  arrays = jax.lax.while_loop(
    lambda arrays: condition(restore(arrays)),
    lambda arrays: _drop_rows(step(restore(arrays))),
    _drop_rows(state),
  )
  return restore(arrays)


def fori_loop(
  first: int | Array, end: int | Array, step: Callable[[Any, T], T], state: T, nodes: int
) -> T:
  """Runs `jax.lax.fori_loop`; its step calls a model on `nodes` tokens of each row."""
  if nodes > 1:
    return jax.lax.fori_loop(first, end, step, state)
  restore = _remember_rows(state)
  arrays = jax.lax.fori_loop(
    first, end, lambda i, arrays: _drop_rows(step(i, restore(arrays))), _drop_rows(state)
  )
  return restore(arrays)


def _drop_rows(state: Any) -> list[Array]:
  """Returns a state's arrays; those that may be caches of one row lose the axis of rows."""
  arrays = jax.tree.leaves(state)
  for i, x in enumerate(arrays):
    if x.ndim >= AXES and x.shape[0] == 1:
      arrays[i] = x[0]
  return arrays


def _remember_rows(state: T) -> Callable[[list[Array]], T]:
  """Returns the inverse of `_drop_rows` for states of this structure and these shapes."""
  before, structure = jax.tree.flatten(state)

  def restore(arrays: list[Array]) -> T:
    whole = []
    for x, old in zip(arrays, before, strict=True):
      whole.append(x[None] if x.ndim < old.ndim else x)
    return jax.tree.unflatten(structure, whole)

  return restore
