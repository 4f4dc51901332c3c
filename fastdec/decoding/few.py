"""Texts of any length and limit by few programs: two for each size that a text grows to.

`decode` and `stream` of this module write what those of `fastdec.decoding.decode` write. The latter
compile a program for each width of a prompt and each bucket of `max_len`, which suit timings and
data sets. Whoever asks a model one question after another waits for a compiler each time. Here one
program reads a prompt, and another continues its text by any number of calls: so it serves a stream
and a whole text alike.

    width of the prompt                   256   1,024   4,096   8,192   ...
    slots for prompt and output, at first 320   1,280   5,120  10,240   ...

A prompt is read in chunks, as far as it reaches. A text that fills its slots continues with those
of the next width. The host copies its state over then, which compiles nothing, and takes as long as
a few calls. The rows of a list read all slots at every call, so it has more sizes: `pool`.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fastdec.cache.loops import while_loop
from fastdec.decoding import decode as by_shapes
from fastdec.decoding.pool import Finished, decode_request
from fastdec.decoding.prefill import few_width, has_slots, in_few_sizes, room_of
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.request import Request, prepare, prepare_each
from fastdec.decoding.settings import MOST_TOKENS
from fastdec.decoding.strategy import LoopStrategy, Strategy, check_streams, nodes_of
from fastdec.models.api import Model, Params
from fastdec.struct import Bound

ROWS_FREE = ('max_len', 'key', 'processors', 'constraint')  # arguments that may be left out
FREE = (*ROWS_FREE, 'prompt_lengths', 'prefix')


def decode(
  model: Model, params: Params, inputs: Any, strategy: Strategy, logprobs: int = 0, **arguments: Any
) -> Decoded:
  """Decodes as `fd.decode`, and returns NumPy arrays.

  Args:
    model, params, inputs, strategy, logprobs: as in `fd.decode`.
    **arguments: `max_len`, `key`, `processors` and `constraint`, as there.
  """
  request, prompt = _prepared(model, params, inputs, strategy, logprobs, arguments)
  if prompt.most is None:  # a search, a source, a mesh
    arguments['logprobs'] = logprobs
    return jax.device_get(by_shapes.decode(model, params, inputs, strategy, **arguments))
  text = _Text.begun(request, prompt)
  while not text.is_over:
    text = text.continued(MOST_TOKENS)
  state = text.state
  if isinstance(strategy, LoopStrategy):
    state = jax.device_get(state)  # so that its result compiles nothing
  decoded = jax.device_get(strategy.result(state))
  decoded = decoded.resized(request.max_len, request.target.module.pad_id)
  return dataclasses.replace(decoded, ruled_by=request.ruled_by)


def stream(
  model: Model, params: Params, inputs: Any, strategy: Strategy, logprobs: int = 0, **arguments: Any
) -> Iterator[list[list[int]]]:
  """Yields the blocks of each row as `fd.stream`, whose arguments are those of `decode`."""
  check_streams(strategy)
  request, prompt = _prepared(model, params, inputs, strategy, logprobs, arguments)
  return by_shapes.blocks_of(request, _states(request, prompt))


def states(
  model: Model, params: Params, inputs: Any, strategy: LoopStrategy, **arguments: Any
) -> Iterator[Any]:
  """Yields the loop's state after the prompt and after each call, which overwrites the last one.

  Arguments are those of `decode`."""
  return _states(*_prepared(model, params, inputs, strategy, 0, arguments))


def decode_each(
  model: Model, params: Params, inputs: Any, strategy: Strategy, rows: int, **arguments: Any
) -> Iterator[Finished]:
  """Decodes as `fd.decode_each`, prompts of a decoder-only model by few programs (`pool`)."""
  given = dict.fromkeys(ROWS_FREE) | {'logprobs': 0} | arguments
  request, sources = prepare_each(model, params, inputs, strategy, **given)
  return decode_request(dataclasses.replace(request, few=True), sources, rows)


def _prepared(
  model: Model, params: Params, inputs: Any, strategy: Any, logprobs: int, arguments: dict[str, Any]
) -> tuple[Request, Prompt]:
  given = dict.fromkeys(FREE) | arguments
  return prepare(model, params, inputs, strategy, logprobs=logprobs, few=True, **given)


def _states(request: Request, prompt: Prompt) -> Iterator[Any]:
  if prompt.most is None:  # a source, a mesh
    yield from by_shapes.states_of(request, prompt)
    return
  text = _Text.begun(request, prompt)
  yield text.state
  while not text.is_over:
    text = text.continued(1)
    yield text.state


@dataclasses.dataclass(frozen=True)
class _Text:
  """Texts of some rows, with the state that continues them."""

  request: Request
  prompt: Prompt  # of the size that the state has
  state: Any
  is_over: bool

  @classmethod
  def begun(cls, request: Request, prompt: Prompt) -> '_Text':
    """Reads the prompt."""
    state, is_over = by_shapes.start(*_begins(request, prompt))
    return cls(request, prompt, state, bool(is_over))

  def continued(self, calls: int) -> '_Text':
    """Makes up to this many calls more, fewer if a row ends or has no room left.

    Such a row gets it with the next ones."""
    request, prompt, state = self.request, self.prompt, self.state
    strategy: Any = request.strategy
    length = prompt.length + np.asarray(strategy.emitted(state))
    is_full = ~np.asarray(strategy.done(state)) & (length >= room_of(prompt))
    if is_full.any():
      prompt, state = _grown(request, prompt, state, int(length.max()))
    room = (room_of(prompt) - prompt.length).astype(np.int32)
    state, is_over = proceed(request.target, strategy, state, room, np.int32(calls))
    return dataclasses.replace(self, prompt=prompt, state=state, is_over=bool(is_over))


def _begins(request: Request, prompt: Prompt) -> tuple[Any, ...]:
  """Returns the arguments of `start` for a prompt in few sizes.

  All arrays of a state have the size of its room: even the most tokens that a row may emit.
  """
  bucket = room_of(prompt) + nodes_of(request.strategy)
  return request.target, request.strategy, prompt, request.keys, bucket


def _grown(request: Request, prompt: Prompt, state: Any, length: int) -> tuple[Prompt, Any]:
  """Returns the prompt and the state of the next size, which the host copies."""
  model = request.target.module
  limit = model.max_positions
  wider = few_width(max(prompt.tokens.shape[1] + 1, length), limit)
  wide = np.pad(prompt.tokens, ((0, 0), (0, wider - prompt.tokens.shape[1])))
  longest = int(prompt.length.max()) + request.max_len
  grown = in_few_sizes(model, dataclasses.replace(prompt, tokens=wide), longest)
  return grown, jax.tree.map(
    _widened, state, by_shapes.start.eval_shape(*_begins(request, grown))[0]
  )


def _widened(x: Array, like: jax.ShapeDtypeStruct) -> Array:
  """Returns x with more entries at the end of its axes: copies of the last, which is unused yet."""
  if x.shape == like.shape:
    return x
  more = [(0, new - old) for old, new in zip(x.shape, like.shape, strict=True)]
  return jax.device_put(np.pad(np.asarray(x), more, mode='edge'))


@functools.partial(jax.jit, donate_argnames='state')
def proceed(
  target: Bound, strategy: Any, state: Any, room: Int[Array, ' b'], calls: Int[Array, '']
) -> tuple[Any, Bool[Array, '']]:
  """Makes up to `calls` calls, overwriting `state`; returns the new one, and true if all are done.

  It stops early where a running row has emitted `room` tokens."""

  def is_wanted(carry: tuple[Any, Array]) -> Bool[Array, '']:
    state, made = carry
    return ~strategy.done(state).all() & has_slots(strategy, state, room) & (made < calls)

  state, _ = while_loop(
    is_wanted,
    lambda carry: (strategy.step(target, carry[0]), carry[1] + 1),
    (state, jnp.zeros((), jnp.int32)),
    nodes_of(strategy),
  )
  return state, strategy.done(state).all()
