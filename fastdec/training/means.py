"""Means over a batch, which is computed whole or in parts, on one device or several.

A part is some rows of a batch: each device along 'data' has its own, and may compute them in parts
that follow one another. A part has the fields 'row', the numbers of its rows in the whole batch,
and 'whole', that batch: means divide sums over a part's rows by counts over all rows, and what a
key draws is drawn for all rows. So the losses, gradients and metrics of the parts add up to those
of the whole batch, whatever a loss counts. A mean that nothing exists for is NaN in metrics.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

T = TypeVar('T')
Fields = Mapping[str, Any]  # a batch


def whole_of(batch: Fields) -> Fields:
  """Returns the batch that this is a part of, or the batch itself."""
  return batch.get('whole', batch)


def own_rows(batch: Fields, whole: T) -> T:
  """Returns the rows of `batch` from arrays that have a row for each row of the whole batch."""
  if 'row' not in batch:
    return whole
  return jax.tree.map(lambda x: x[batch['row']], whole)


def mean_over(x: Array, mask: Bool[Array, '*n b a'], count: Int[Array, '*n']) -> Float[Array, '*n']:
  """Sums x over a mask of the last two axes, and divides by a count; 0 where the count is 0."""
  total = jnp.where(mask, x, 0).sum((-2, -1))
  if not jnp.issubdtype(total.dtype, jnp.floating):
    total = total.astype(float)
  return total / jnp.maximum(count, 1).astype(total.dtype)


def weigh(
  means: Float[Array, ' n'], weights: Float[Array, ' n'], counts: Int[Array, ' n']
) -> Float[Array, '']:
  """Averages means by weights, without those whose count is 0; 0 if none is left."""
  weights = jnp.where(counts > 0, weights, 0).astype(means.dtype)
  total = weights.sum()
  return (means * weights).sum() / jnp.where(total > 0, total, 1)


def or_nan(mean: Float[Array, '*n'], count: Int[Array, '*n']) -> Float[Array, '*n']:
  """Returns a mean for the metrics: NaN where its count is 0."""
  return jnp.where(count > 0, mean, jnp.nan)
