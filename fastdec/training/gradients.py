"""The gradient of a batch, computed in parts to save memory."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fastdec.errors import UserError
from fastdec.kernels.packed import is_packed
from fastdec.kernels.quantized import is_quantized
from fastdec.models.api import Params
from fastdec.models.layers import numbering_rows
from fastdec.training.losses import Batch, Metrics
from fastdec.training.means import take_part
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
  gradient = jax.grad(task.loss, has_aux=True)
  if parts == 1:
    return gradient(params, frozen, batch, key)

  def of_part(number: Array) -> tuple[Params, Metrics]:
    part = take_part(batch, number, parts)
    with numbering_rows(number, parts, len(part['target'])):
      return gradient(params, frozen, part, key)

  def add(total: Any, number: Array) -> tuple[Any, None]:
    return jax.tree.map(_add, total, of_part(number)), None

  # Add the parts one after the other.
  numbers = jnp.arange(parts, dtype=jnp.int32)
  like = jax.eval_shape(of_part, numbers[0])
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
  return jax.lax.scan(add, zeros, numbers)[0]


def _add(total: Array, part: Array) -> Array:
  """Adds the shares of means, which are floats. Counts are of the whole batch in every part."""
  return total + part if jnp.issubdtype(part.dtype, jnp.floating) else part
