"""What single calls cost in the decoding loop: the target's on so many tokens, and a drafter's, everything included."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from experiments.calls import FreeDraft
from fastdec.decoding import loop
from fastdec.decoding.inputs import checked
from fastdec.decoding.rejection import Warped
from fastdec.decoding.strategies import LoopStrategy
from fastdec.struct import Bound


def start(
  target: Bound, strategy: LoopStrategy, inputs: Any, max_len: int, key: Array | None
) -> loop.DecodeState:
  """What `fd.decode` has after the prompt; arguments as there."""
  _, prompt, keys = checked(target.module, inputs, None, None, max_len, key)
  return _start(target, strategy, prompt, keys, max_len)


def wide_calls(
  target: Bound, strategy: LoopStrategy, state: loop.DecodeState, nodes: int, calls: int
) -> Callable[[], Any]:
  """A function that calls the target so many times, on so many tokens each, and judges them by the strategy's rule."""
  drafter = FreeDraft(nodes, has_law=isinstance(strategy.whole_rule, Warped))
  state = dataclasses.replace(state, drafter=())
  return lambda: _turn(target, drafter, strategy.whole_rule, state, calls)


def plain_calls(target: Bound, plain: LoopStrategy, state: loop.DecodeState, calls: int) -> Callable[[], Any]:
  """A function that calls the target so many times, on one token each."""
  return lambda: _turn(target, plain.drafter, plain.whole_rule, state, calls)


def draft_calls(target: Bound, strategy: LoopStrategy, state: loop.DecodeState, calls: int) -> Callable[[], Any]:
  """A function that has the strategy's drafter propose so many drafts, each of all its tokens."""
  return lambda: _propose(target, strategy.drafter, state, calls)


@functools.partial(jax.jit, static_argnames='max_len')
def _start(target: Bound, strategy: LoopStrategy, prompt: Any, keys: Any, max_len: int) -> loop.DecodeState:
  return strategy.init(target, prompt, max_len, keys)


@functools.partial(jax.jit, static_argnames='calls')
def _turn(target: Bound, drafter: Any, rule: Any, state: loop.DecodeState, calls: int) -> loop.DecodeState:
  return jax.lax.fori_loop(0, calls, lambda _, s: loop.step(target, drafter, rule, s), state)


@functools.partial(jax.jit, static_argnames='calls')
def _propose(target: Bound, drafter: Any, state: loop.DecodeState, calls: int) -> Any:
  def propose(_: Array, carry: tuple[Any, Array, Any]) -> tuple[Any, Array, Any]:
    # Without the barrier XLA computes once and for all what one draft does not change for the next.
    inner, root, keys = jax.lax.optimization_barrier(carry)
    draft, inner = drafter.propose(target, inner, root, keys)
    return inner, draft.tokens[:, -1], keys

  return jax.lax.fori_loop(0, calls, propose, (state.drafter, state.root, state.keys))
