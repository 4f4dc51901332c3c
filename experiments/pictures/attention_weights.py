"""Cross-attention weights with which the tokens of a translation were written."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.errors import UserError
from fastdec.models.api import Model, Params, causal
from fastdec.models.attention import mix, weights_of
from fastdec.models.stacks import Attend


def cross_attention(
  model: Model, params: Params, inputs: Int[Array, ' s'], tokens: Int[Array, ' t']
) -> Float[Array, 'layers h t s']:
  """Weights of each source token for each written token, in each layer and head of the decoder:
  rows sum to 1.

  One call over the whole output, given its beginning; row i belongs to the query that wrote token
  i.

  Args:
    model: an encoder-decoder over text.
    params: its parameters.
    inputs: the source, its end included; padding gets no weight.
    tokens: the output, its end included.

  Raises:
    UserError: the model has no encoder, or makes images.
  """
  check_translates(model)
  return _cross_attention(model, params, inputs, tokens)


def check_translates(model: Model, name: str = 'the model') -> None:
  """Raises UserError where a model has no source tokens to look at."""
  if model.start_id is None:
    raise UserError(f'{name} is decoder-only and looks at no source: give a model that translates')
  if model.fixed_length is not None:
    raise UserError(
      f'{name} makes images, and its source has no tokens to name: give a model that translates'
    )


def keeping(kept: list[Array]) -> Attend:
  """Argument `across` of a model's `apply`: `attention.attend` that also appends its weights [b,
  h, n, s] to a list.

  Weights kept under jit are to be returned from the same jit.
  """

  def attend(
    q: Array, kv: Any, mask: Array, drop: Any = lambda weights: weights, **how: Any
  ) -> Array:
    weights = weights_of(q, kv.k, mask, **how)
    b, g, r, n, s = weights.shape
    kept.append(weights.reshape(b, g * r, n, s))
    return mix(drop(weights), kv.v)

  return attend


@functools.partial(jax.jit, static_argnames='model')
def _cross_attention(
  model: Any, params: Params, inputs: Int[Array, ' s'], tokens: Int[Array, ' t']
) -> Float[Array, 'layers h t s']:
  """`model` is one whose `apply` takes `across`, as those that translate do and the protocol does
  not ask."""
  (t,), kept = tokens.shape, []
  fed = jnp.pad(tokens, (1, 0), constant_values=model.start_id)[None, :-1]
  cache = model.init_cache(params, model.encode(params, inputs[None]), 1, t)
  model.apply(params, fed, causal(t), cache, across=keeping(kept))
  return jnp.concatenate(kept)
