"""Weight normalisation (Salimans and Kingma 2016) as an optimizer of directions and lengths.

Each output's row of a kernel is w = g v / |v|. The inner optimizer's parameters are v and g. Its
gradients come by the chain rule; the model gets the new w less the old one. So models, caches and
checkpoints of models have plain kernels, and decoding multiplies by w as it is. A training starts
with v = w, g = |w|.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fastdec import extras

with extras.explained():
  import optax

TINY = 1e-20
Flat = dict[str, Array]  # by path
Parts = dict[str, Flat]  # 'direction' and 'length' of normalised kernels, 'plain' parameters


class WeightNormState(NamedTuple):
  direction: Flat  # v [*outputs, inputs]
  # g [*outputs], by '<path>/length': tables of shardings (`kernels.sharding`) are for kernels
  length: Flat
  inner: Any


def normalise_weights(
  inner: optax.GradientTransformation, is_normalised: Callable[[str], bool]
) -> optax.GradientTransformation:
  """Runs `inner` over the directions and lengths of kernels [*outputs, inputs].

  All other parameters go to it as they are.

  Args:
    inner: any optimizer; clipping within it sees the gradients of directions and lengths.
    is_normalised: chooses the kernels by their path, such as 'decoder_0/conv/kernel'.
  """

  def parts_of(flat: Flat, direction: Flat, length: Flat) -> Parts:
    plain = {name: value for name, value in flat.items() if name not in direction}
    return {'direction': direction, 'length': length, 'plain': plain}

  def init(params: Any) -> WeightNormState:
    flat = _flat(params)
    direction, length = {}, {}
    for name, value in flat.items():
      if is_normalised(name):
        direction[name] = jnp.array(value)
        length[f'{name}/length'] = jnp.linalg.norm(direction[name], axis=-1)
    return WeightNormState(direction, length, inner.init(parts_of(flat, direction, length)))

  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, WeightNormState]:
    # The gradients of directions and lengths, by the chain rule.
    flat, gradients = _flat(params), _flat(updates)
    _, back = jax.vjp(_kernels, state.direction, state.length)
    of_kernels = {name: gradients[name] for name in state.direction}
    of_parts = parts_of(gradients, *back(of_kernels))

    # The inner optimizer moves directions and lengths; the model's kernels move with them.
    parts: Any = parts_of(flat, state.direction, state.length)
    steps: Any
    steps, inner_state = inner.update(of_parts, state.inner, parts)
    parts = optax.apply_updates(parts, steps)
    kernels = _kernels(parts['direction'], parts['length'])
    moves = []
    for name, before in flat.items():
      if name in kernels:
        moves.append(kernels[name] - before)
      else:
        moves.append(steps['plain'][name])
    return (
      jax.tree.unflatten(jax.tree.structure(params), moves),
      WeightNormState(parts['direction'], parts['length'], inner_state),
    )

  return optax.GradientTransformation(init, update)


def _kernels(direction: Flat, length: Flat) -> Flat:
  """Computes g v / |v| for each kernel; a row of zeros, which has no direction, stays one."""
  kernels = {}
  for name, v in direction.items():
    g = length[f'{name}/length']
    kernels[name] = (g * jax.lax.rsqrt((v**2).sum(-1) + TINY))[..., None] * v
  return kernels


def _flat(tree: Any) -> Flat:
  leaves, _ = jax.tree.flatten_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in leaves}
