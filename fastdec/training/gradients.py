"""The gradient of a batch: devices add up those of their rows, computed in parts to save memory."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from fastdec.errors import UserError
from fastdec.kernels.mesh import axes_in_use
from fastdec.kernels.packed import is_packed
from fastdec.kernels.quantized import is_quantized
from fastdec.models.api import Params
from fastdec.models.layers import numbering_rows
from fastdec.training.losses import Batch, Metrics
from fastdec.training.state import Task


def compute_gradients(
  task: Task, params: Params, frozen: Params, batch: Batch, key: Array, parts: int = 1
) -> tuple[Params, Metrics]:
  """Computes gradients and metrics of a batch: means over all of it, whatever its parts.

  Each row draws from the key what it draws in the whole batch; see `training.means`. Only the
  dropout of a model that does not use `models.layers.dropout` differs, but is independent too.

  Args:
    parts: number of parts, computed one after the other; a divisor of the batch's rows.

  Raises:
    UserError: some parameters are in int8, which has no gradient, or packed.
  """
  if is_quantized((params, frozen)):
    raise UserError(
      'parameters in int8 cannot be trained, nor trained on: load the model without dtype=int8'
    )
  if is_packed((params, frozen)):
    raise UserError(
      'packed parameters are not trained, nor trained on: give those that they were packed from'
    )
  gradient, devices = jax.grad(task.loss, has_aux=True), axes_in_use().get('data', 1)
  if parts == devices == 1:
    return gradient(params, frozen, batch, key)

  def of_rows(
    params: Params, frozen: Params, key: Array, whole: Batch, own: Batch
  ) -> tuple[Params, Metrics]:
    def of_part(number: Array) -> tuple[Params, Metrics]:
      part = jax.tree.map(lambda x: _take_part(x, number, parts), own)
      with numbering_rows(part['row']):
        return gradient(params, frozen, part | {'whole': whole}, key)

    def add(total: Any, number: Array) -> tuple[Any, None]:
      return jax.tree.map(_add, total, of_part(number)), None

    # Add the parts one after the other.
    numbers = jnp.arange(parts, dtype=jnp.int32)
    if parts == 1:
      return of_part(numbers[0])
    like = jax.eval_shape(of_part, numbers[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return jax.lax.scan(add, zeros, numbers)[0]

  def of_device(*its: Any) -> tuple[Params, Metrics]:
    return jax.tree.map(_add_devices, of_rows(*its))

  row = jnp.arange(len(batch['target']), dtype=jnp.int32)
  arguments = params, frozen, key, dict(batch), dict(batch) | {'row': row}
  if devices == 1:
    return of_rows(*arguments)
  # By itself, the compiler exchanges a gradient as often as the loss reads the parameter.
  by_rows = jax.shard_map(
    of_device,
    in_specs=(P(), P(), P(), P(), P('data')),
    out_specs=P(),
    axis_names={'data'},
    check_vma=False,  # else JAX does so too
  )
  return by_rows(*arguments)


def _take_part(x: Array, number: Array, parts: int) -> Array:
  """Returns the rows number, number + parts, ..."""
  split = jnp.asarray(x).reshape(-1, parts, *x.shape[1:])
  return jax.lax.dynamic_index_in_dim(split, number, axis=1, keepdims=False)


def _add(total: Array, part: Array) -> Array:
  """Adds the shares of means, which are floats. Counts are of the whole batch in every part."""
  return total + part if jnp.issubdtype(part.dtype, jnp.floating) else part


def _add_devices(share: Array) -> Array:
  """Returns `_add` of all devices."""
  return jax.lax.psum(share, 'data') if jnp.issubdtype(share.dtype, jnp.floating) else share
