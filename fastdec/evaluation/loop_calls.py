"""What single calls cost in the decoding loop: the target's on so many tokens, and a drafter's, everything included."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from fastdec.decoding import loop
from fastdec.decoding.inputs import checked
from fastdec.decoding.rules.rejection import Warped
from fastdec.decoding.strategy import LoopStrategy
from fastdec.decoding.topology import Topology
from fastdec.evaluation.calls import FreeDraft
from fastdec.struct import Bound


def start(target: Bound, strategy: LoopStrategy, inputs: Any, max_len: int, key: Array | None) -> loop.DecodeState:
  """What `fd.decode` has after the prompt; arguments as there."""
  return texts(target, strategy, inputs, max_len, key, 0)


def texts(
  target: Bound, strategy: LoopStrategy, inputs: Any, max_len: int, key: Array | None, times: int
) -> loop.DecodeState:
  """Decodes the same text so many times, the prompt but once; arguments as of `fd.decode`."""
  _, prompt, keys = checked(target.module, inputs, None, None, max_len, key)
  return _texts(target, strategy, prompt, keys, max_len, times)


def wide_calls(target: Bound, strategy: LoopStrategy, state: loop.DecodeState, nodes: int) -> Callable[[int], Any]:
  """A function of how often to call the target, on so many tokens each, judged by the strategy's rule."""
  drafter = FreeDraft(Topology.chain(nodes), has_law=isinstance(strategy.whole_rule, Warped))
  state = dataclasses.replace(state, drafter=())
  return lambda calls: _turn(target, drafter, strategy.whole_rule, state, calls)


def whole_calls(target: Bound, strategy: LoopStrategy, state: loop.DecodeState) -> Callable[[int], Any]:
  """A function of how often to do as the strategy does: draft, call the target, judge."""
  return lambda calls: _turn(target, strategy.drafter, strategy.whole_rule, state, calls)


def draft_calls(target: Bound, strategy: LoopStrategy, state: loop.DecodeState) -> Callable[[int], Any]:
  """A function of how many drafts, each of all its tokens, the strategy's drafter is to propose."""
  return lambda drafts: _propose(target, strategy.drafter, state, drafts)


@functools.partial(jax.jit, static_argnames='max_len')
def _texts(
  target: Bound, strategy: LoopStrategy, prompt: Any, keys: Any, max_len: int, times: int | Array
) -> loop.DecodeState:
  def again(_: Array, last: loop.DecodeState) -> loop.DecodeState:
    root = state.root + (last.length < 0)  # no length is: but XLA, which does not know, decodes each time anew
    begun = dataclasses.replace(state, root=root)
    return jax.lax.while_loop(lambda s: ~strategy.done(s).all(), lambda s: strategy.step(target, s), begun)

  state = strategy.init(target, prompt, max_len, keys)
  return jax.lax.fori_loop(0, times, again, state)


@jax.jit
def _turn(target: Bound, drafter: Any, rule: Any, state: loop.DecodeState, calls: int | Array) -> loop.DecodeState:
  return jax.lax.fori_loop(0, calls, lambda _, s: loop.step(target, drafter, rule, s), state)


@jax.jit
def _propose(target: Bound, drafter: Any, state: loop.DecodeState, drafts: int | Array) -> Any:
  def propose(_: Array, carry: tuple[Any, Array, Any]) -> tuple[Any, Array, Any]:
    # Without the barrier XLA computes once and for all what one draft does not change for the next.
    inner, root, keys = jax.lax.optimization_barrier(carry)
    draft, inner = drafter.propose(target, inner, root, keys)
    return inner, draft.tokens[:, -1], keys

  return jax.lax.fori_loop(0, drafts, propose, (state.drafter, state.root, state.keys))
