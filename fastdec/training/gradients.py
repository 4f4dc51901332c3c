"""The gradient of a batch, computed in parts to save memory."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fastdec.errors import UserError
from fastdec.kernels.packed import is_packed
from fastdec.kernels.quantized import is_quantized
from fastdec.models.api import Params
from fastdec.training.losses import Batch, Metrics
from fastdec.training.state import Task


def compute_gradients(
  task: Task, params: Params, frozen: Params, batch: Batch, key: Array, parts: int = 1
) -> tuple[Params, Metrics]:
  """Computes gradients and metrics of a batch: means over its tokens, however many parts it has.

  Part i has the rows i, i + parts, ..., so that each device along 'data' has rows of every part.
  All parts draw from the same key, so they train the same head. When all heads are trained at once,
  the first head's tokens are a part's weight.

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

  def sums(part: Batch) -> tuple[Params, Metrics]:
    """Sums over the tokens of a part."""
    gradients, metrics = gradient(params, frozen, part, key)
    return _floats(lambda x: x * metrics['tokens'].astype(x.dtype), (gradients, metrics))

  def add(total: Any, part: Batch) -> tuple[Any, None]:
    return jax.tree.map(jnp.add, total, sums(part)), None

  # Add the parts' sums one after the other, then divide by all tokens.
  split = {}
  for name, x in batch.items():
    split[name] = jnp.reshape(x, (-1, parts, *x.shape[1:])).swapaxes(0, 1)
  like = jax.eval_shape(sums, {name: x[0] for name, x in split.items()})
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
  total = jax.lax.scan(add, zeros, split)[0]
  tokens = jnp.maximum(total[1]['tokens'], 1)
  gradients, metrics = _floats(lambda x: x / tokens.astype(x.dtype), total)
  if 'head' in metrics:  # a number, which the sum has counted in every part
    metrics |= {'head': metrics['head'] // parts}
  return gradients, metrics


def _floats(f: Any, tree: Any) -> Any:
  """Applies f to the means, which are floats, and leaves counts as they are."""
  return jax.tree.map(lambda x: f(x) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)
