"""Loops on the device that carry caches and write them in place.

In a call on one token, XLA's CPU backend reads the cache of one row as [g, s, p]. If the loop
carries [1, g, s, p], XLA writes both shapes, each from its own copy, and copies both once more:
four copies of every cache a step. So such loops carry [g, s, p]. Calls on more tokens read
[1, g, s, p], and are left alone.
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
  bare, dressed = _without_rows(state)
  return dressed(
    jax.lax.while_loop(lambda x: condition(dressed(x)), lambda x: _bare(step(dressed(x))), bare)
  )


def fori_loop(
  first: int | Array, end: int | Array, step: Callable[[Any, T], T], state: T, nodes: int
) -> T:
  """Runs `jax.lax.fori_loop`; its step calls a model on `nodes` tokens of each row."""
  if nodes > 1:
    return jax.lax.fori_loop(first, end, step, state)
  bare, dressed = _without_rows(state)
  return dressed(jax.lax.fori_loop(first, end, lambda i, x: _bare(step(i, dressed(x))), bare))


def _without_rows(state: T) -> tuple[list[Array], Callable[[list[Array]], T]]:
  """Returns a state's arrays without the axis of a single row, and the function that restores it.

  Only arrays that may be caches of one row lose the axis."""
  arrays, shape = jax.tree.flatten(state)
  had = [_is_one_row(x) for x in arrays]

  def dressed(bare: list[Array]) -> T:
    return jax.tree.unflatten(
      shape, [x[None] if axis else x for x, axis in zip(bare, had, strict=True)]
    )

  return _bare(state), dressed


def _bare(state: Any) -> list[Array]:
  return [x[0] if _is_one_row(x) else x for x in jax.tree.leaves(state)]


def _is_one_row(x: Array) -> bool:
  return x.ndim >= AXES and x.shape[0] == 1
