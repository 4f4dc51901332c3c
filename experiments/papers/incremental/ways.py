"""Three ways to write the same text: without a cache, with one step by step from the host, the
whole loop on device.

The third is `fd.decode`. fairseq and FasterTransformer's Decoder op have the loop on the host, as
the second way.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fastdec.decoding.decode import start, step
from fastdec.decoding.inputs import checked, padded, room_of
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.sampling import argmax
from fastdec.decoding.strategy import Strategy
from fastdec.models.api import suppress
from fastdec.struct import Bound


@jax.jit
def rewritten(
  target: Bound, source: Int[Array, 'b s'], tokens: Int[Array, 'b t'], steps: int | Array
) -> Int[Array, 'b t']:
  """Greedy decoding without a cache: for each token all t positions run again, as in training, and
  one is read.

  Args:
    target: an encoder-decoder.
    source: without padding.
    tokens: an existing output. `steps` evenly spaced positions are computed again, each from the
      tokens before it; steps=t computes all of them again. A step takes equally long at every
      position.
    steps: an array, so that one compiled program serves every number of steps.
  """
  model, params = target
  t = tokens.shape[1]

  def one_more(i: Array, tokens: Int[Array, 'b t']) -> Int[Array, 'b t']:
    place = i * t // steps
    hidden = model.hidden(params, _packed('source', source) | _packed('target', tokens))
    logits = suppress(model.unembed(params, hidden[:, place]), model.suppressed_ids)
    return tokens.at[:, place].set(argmax(logits))

  return jax.lax.fori_loop(0, steps, one_more, tokens)


def step_by_step(target: Bound, strategy: Strategy, inputs: Any, max_len: int) -> Decoded:
  """Decodes as `fd.decode`, but in a loop on the host, which reads after each step whether all rows
  are done."""
  model = target.module
  _, prompt, _ = checked(model, inputs, None, None, max_len, None)
  state, is_over = start(target, strategy, padded(model, prompt), None, room_of(model, max_len))
  while not is_over:
    state, is_over = step(target, strategy, state)
  return _result(strategy, state).resized(max_len, model.pad_id)


@jax.jit
def _result(strategy: Strategy, state: Any) -> Decoded:
  return strategy.result(state)


def _packed(side: str, tokens: Int[Array, 'b t']) -> dict[str, Int[Array, 'b t']]:
  """Rows of one sentence each, without padding, as `EncoderDecoder.hidden` takes them."""
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  return {side: tokens, f'{side}_segment': jnp.ones_like(tokens), f'{side}_position': positions}
