"""Three ways to write the same text: without a cache, with one step by step from the host, the whole loop on device.

The third is `fd.decode`. fairseq and FasterTransformer's Decoder op have the loop on the host, as the second way.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fastdec.decoding.inputs import checked
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.sampling import argmax
from fastdec.decoding.strategy import Strategy
from fastdec.models.api import suppress
from fastdec.struct import Bound


@jax.jit
def rewritten(
  target: Bound, source: Int[Array, 'b s'], tokens: Int[Array, 'b t'], steps: int | Array
) -> Int[Array, 'b t']:
  """Greedy decoding without a cache: for each token all t positions run again, as in training, and one is read.

  Args:
    target: an encoder-decoder.
    source: without padding.
    tokens: what is there before. With steps=t nothing of it is left; with fewer, tokens at so many places, evenly
      spread, are written anew, each after all before it. A step takes as long wherever it is.
    steps: data, so that one program serves all.
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
  """As `fd.decode`, but the loop is the host's, which looks after each step whether all rows are done."""
  _, prompt, _ = checked(target.module, inputs, None, None, max_len, None)
  state, is_over = begin(target, strategy, prompt, max_len)
  while not is_over:
    state, is_over = go_on(target, strategy, state)
  return _result(strategy, state)


@functools.partial(jax.jit, static_argnames='max_len')
def begin(target: Bound, strategy: Strategy, prompt: Prompt, max_len: int) -> tuple[Any, Bool[Array, '']]:
  """The state after the prompt, and whether all rows are done."""
  state = strategy.init(target, prompt, max_len, None)
  return state, strategy.done(state).all()


@functools.partial(jax.jit, donate_argnames='state')
def go_on(target: Bound, strategy: Strategy, state: Any) -> tuple[Any, Bool[Array, '']]:
  """The state after one more call, and whether all rows are done."""
  state = strategy.step(target, state)
  return state, strategy.done(state).all()


@jax.jit
def _result(strategy: Strategy, state: Any) -> Decoded:
  return strategy.result(state)


def _packed(side: str, tokens: Int[Array, 'b t']) -> dict[str, Int[Array, 'b t']]:
  """Rows of one sentence each, without padding, as `EncoderDecoder.hidden` takes them."""
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  return {side: tokens, f'{side}_segment': jnp.ones_like(tokens), f'{side}_position': positions}
