"""Decoding call by call, for whoever times it: a strategy goes on from the state after the prompt.

`repeated` makes any number of calls in one program; everything else here prepares its arguments.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fastdec import struct
from fastdec.cache.loops import fori_loop, while_loop
from fastdec.decoding.decode import start
from fastdec.decoding.inputs import checked, padded, room_of
from fastdec.decoding.loop import DecodeState
from fastdec.decoding.protocol import Accepted, Draft, Step
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.rejection import Warped
from fastdec.decoding.strategy import LoopStrategy, nodes_of
from fastdec.decoding.topology import Topology
from fastdec.packed import unpacked
from fastdec.quantized import quantize
from fastdec.struct import Bound

DECODER = ('decoder', 'layer', 'norm')  # how the parameters begin that every call reads


@struct.pytree
class FreeDraft:
  """A drafter whose guesses cost nothing and are never right.

  With `has_law` it claims the uniform law for them.
  """

  topology: Topology = struct.static()
  has_law: bool = struct.static(default=False)

  @property
  def nodes(self) -> int:
    return self.topology.n

  def init(self, target: Bound, prefill: Any) -> tuple[()]:
    return ()

  def propose(
    self, target: Bound, state: tuple[()], root: Any, keys: Any
  ) -> tuple[Draft, tuple[()]]:
    words = target.module.vocab_size
    guesses = (root[:, None] + 17 * jnp.arange(self.nodes, dtype=root.dtype)[None]) % words
    law = jnp.full((*guesses.shape, words), 1 / words) if self.has_law else None
    return Draft(guesses, self.topology, law), state

  def observe(self, target: Bound, state: tuple[()], step: Any) -> tuple[()]:
    return state


@struct.pytree
class Drafted(LoopStrategy):
  """A strategy of any drafter and any rule."""

  drafter: Any = None  # the default, a plain attribute, takes the place of the base's property
  rule: Any = Exact()


@dataclasses.dataclass
class Calls:
  """Decoding that goes on for `calls` calls each time that it is called.

  A call takes as long when a row has finished, so there is no end to heed. The state is overwritten
  in place: a long cache is not copied.
  """

  target: Bound
  strategy: Any
  state: Any
  calls: int

  @classmethod
  def after_prompt(
    cls, target: Bound, drafter: Any, inputs: Any, max_len: int, calls: int
  ) -> 'Calls':
    """Runs the prompt; then `drafter` proposes and `Exact` judges. Arguments as of `fd.decode`."""
    strategy = Drafted(drafter)
    _, prompt, _ = checked(target.module, inputs, None, None, max_len, None)
    state, _ = start(target, strategy, prompt, None, max_len)
    return cls(target, strategy, state, calls)

  def __call__(self) -> Any:
    self.state = _go_on(self.target, self.strategy, self.state, self.calls)
    return self.state

  def bytes(self, projection: str) -> int:
    """The bytes that one call must read.

    These are the decoder's weights without those that project the memory once, the vocabulary
    projection (named as in the parameters), the heads, and the cache.
    """
    params = self.target.params
    decoder = [value for name, value in params.items() if name.startswith(DECODER)]
    once = _size(layer['cross']['kv'] for layer in decoder if 'cross' in layer)
    return (
      _size(decoder) - once + _size((params[projection], self.strategy.drafter, self.state.cache))
    )


def _calls(target: Bound, strategy: Any, state: Any, calls: int | Array) -> Any:
  return fori_loop(0, calls, lambda _, s: strategy.step(target, s), state, nodes_of(strategy))


# the state after `calls` more calls; `calls` is data, so one program serves every number
repeated = jax.jit(_calls)
_go_on = jax.jit(_calls, static_argnames='calls', donate_argnames='state')


def wide_calls(
  target: Bound, strategy: LoopStrategy, state: DecodeState, nodes: int
) -> Callable[[int], Any]:
  """Returns a function of a number of calls on `nodes` tokens, judged by the strategy's rule."""
  drafter = FreeDraft(Topology.chain(nodes), has_law=isinstance(strategy.effective_rule, Warped))
  without_draft = dataclasses.replace(state, drafter=())
  return lambda calls: repeated(
    target, Drafted(drafter, strategy.effective_rule), without_draft, calls
  )


def whole_calls(target: Bound, strategy: LoopStrategy, state: DecodeState) -> Callable[[int], Any]:
  """Returns a function of a number of the strategy's steps: draft, call the target, judge."""
  return lambda calls: repeated(target, strategy, state, calls)


def draft_calls(target: Bound, strategy: LoopStrategy, state: DecodeState) -> Callable[[int], Any]:
  """Returns a function of the number of whole drafts that the strategy's drafter proposes."""
  return lambda drafts: _propose(target, strategy.drafter, state, drafts)


@jax.jit
def _propose(target: Bound, drafter: Any, state: DecodeState, drafts: int | Array) -> Any:
  def propose(_: Array, carry: tuple[Any, Array, Any]) -> tuple[Any, Array, Any]:
    # Without the barrier XLA computes only once what one draft does not change for the next.
    inner, root, keys = jax.lax.optimization_barrier(carry)
    draft, inner = drafter.propose(target, inner, root, keys)
    return inner, draft.tokens[:, -1], keys

  return jax.lax.fori_loop(0, drafts, propose, (state.drafter, state.root, state.keys))


def draft_rounds(target: Bound, drafter: Any, state: DecodeState) -> Callable[[int], Any]:
  """Returns a function of a number of rounds in which the drafter proposes and observes.

  That is its whole share of a call. It sees hidden states of zeros, and one token is kept each
  time.
  """
  return lambda rounds: _rounds(target, drafter, state, rounds)


@jax.jit
def _rounds(target: Bound, drafter: Any, state: DecodeState, rounds: int | Array) -> Any:
  taps = getattr(drafter, 'taps', ())
  shape = (*state.root.shape, drafter.nodes)
  hidden = jnp.zeros((*shape, target.module.d_model), target.module.config.dtype)
  path = jnp.broadcast_to(jnp.arange(drafter.nodes, dtype=jnp.int32), shape)

  def one(_: Array, carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
    inner, root, seen = jax.lax.optimization_barrier(carry)
    draft, inner = drafter.propose(target, inner, root, state.keys)
    newest, count = draft.tokens[:, -1], jnp.ones_like(root)
    judged = Accepted(jnp.zeros_like(root), newest)
    features = (seen,) * len(taps)
    emitted = state.tokens, state.length
    step = Step(draft, seen, features, seen, judged, path, count, newest, *emitted)
    return drafter.observe(target, inner, step), newest, seen

  return jax.lax.fori_loop(0, rounds, one, (state.drafter, state.root, hidden))


def texts(
  target: Bound, strategy: LoopStrategy, inputs: Any, max_len: int, key: Array | None, times: int
) -> Any:
  """Runs the prompt once and decodes the same text `times` times; with 0, returns the first state.

  Arguments as of `fd.decode`; `times` is data, so one program serves every number.

  Raises:
    UserError: as `fd.decode`.
  """
  model = target.module
  max_len, prompt, keys = checked(model, inputs, None, None, max_len, key)
  strategy.check(model, prompt, max_len)
  return _texts(target, strategy, padded(model, prompt), keys, room_of(model, max_len), times)


@functools.partial(jax.jit, static_argnames='room')
def _texts(
  target: Bound, strategy: LoopStrategy, prompt: Any, keys: Any, room: int, times: int | Array
) -> DecodeState:
  def again(_: Array, last: DecodeState) -> DecodeState:
    # No length is below 0, but XLA does not know that, and so decodes each time anew.
    begun = dataclasses.replace(state, root=state.root + (last.length < 0))
    return while_loop(
      lambda s: ~strategy.done(s).all(), lambda s: strategy.step(target, s), begun, nodes
    )

  state, nodes = strategy.init(target, prompt, room, keys), nodes_of(strategy)
  return jax.lax.fori_loop(0, times, again, state)


def computing_in(dtype: str) -> str:
  """Returns the type between products for a type that `random_params` takes: float32 for int8."""
  return 'float32' if dtype == 'int8' else dtype


def random_params(module: Any, seed: int, dtype: str) -> Any:
  """Draws parameters of a model, heads or a draft network, all in `dtype`.

  For int8 they are those of float32, quantized.
  """
  params = jax.tree.map(
    lambda x: x.astype(computing_in(dtype)), jax.jit(module.init)(jax.random.key(seed))
  )
  return quantize(module, params) if dtype == 'int8' else params


def _size(trees: Iterable[Any]) -> int:
  """Returns the bytes; a packed kernel is read once, in one of its two forms."""
  return sum(leaf.nbytes for leaf in jax.tree.leaves(unpacked(tuple(trees))))
