"""Caches that grow with the text: a call reads all of their slots, so there are few at first.

A decode begins with room for some tokens behind the prompt (`Prompt.room`). Its loop ends early
when a row that runs has filled it. Then the host lets the state grow, to about twice the slots, and
the loop goes on. Each room is another program, compiled only if it is reached.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fastdec.decoding.protocol import Prompt
from fastdec.decoding.strategy import Strategy
from fastdec.models.api import Model
from fastdec.struct import Bound

FIRST = 64  # tokens
SHARE = 8  # behind a long prompt: this part of its length


def with_room(model: Model, strategy: Strategy, prompt: Prompt, max_len: int) -> Prompt:
  """Returns the prompt with the room to begin with, if that is less than all."""
  room = max(FIRST, prompt.tokens.shape[1] // SHARE)
  grows = hasattr(strategy, 'emitted') and model.fixed_length is None
  return dataclasses.replace(prompt, room=room) if grows and room < max_len else prompt


def with_more(prompt: Prompt, max_len: int) -> Prompt:
  """Returns the prompt with the next room: twice the slots, or all (None)."""
  assert prompt.room is not None  # there is more
  room = 2 * prompt.room + prompt.tokens.shape[1]
  return dataclasses.replace(prompt, room=room if room < max_len else None)


def fits(strategy: Any, state: Any, prompt: Prompt) -> Bool[Array, '']:
  """True if all running rows have room for one more call."""
  if prompt.room is None:
    return jnp.array(True)
  return (strategy.done(state) | (strategy.emitted(state) < prompt.room)).all()


def sized(
  target: Bound, strategy: Strategy, prompt: Prompt, keys: Array | None, max_len: int, state: Any
) -> Any:
  """Returns the state behind the prompt, or `state` as large as that would be (inside jit).

  Slots behind a row's length are garbage, so that more of them may be added at the end of each
  axis. Axes of rows stay.
  """

  def init(prompt: Prompt, keys: Array | None) -> Any:
    return strategy.init(target, prompt, max_len, keys)

  if state is None:
    return init(prompt, keys)

  def grown(x: Array, like: jax.ShapeDtypeStruct) -> Array:
    more = [(0, new - old) for old, new in zip(x.shape[1:], like.shape[1:], strict=True)]
    return jnp.pad(x, [(0, 0), *more]) if any(end for _, end in more) else x

  return jax.tree.map(grown, state, jax.eval_shape(init, prompt, keys))
