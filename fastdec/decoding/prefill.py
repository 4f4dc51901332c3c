"""The prompt, scored once and in chunks; the caches that it fills, which grow with the text.

A long prompt takes memory for the attention of one chunk. All chunks have one width, and one
compiled program reads them in turn. A prompt of up to `CHUNK` tokens is a single call.

A call reads all slots of a cache, so there are few at first (`Prompt.slots`). The loop ends early
when a running row has filled them. Then the host lets the state grow to about twice the slots, and
the loop continues. Each size is another program, compiled only if it is reached.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec.decoding.protocol import Prompt
from fastdec.models.api import Capacity, Model, causal
from fastdec.models.taps import Taps, apply_with
from fastdec.struct import Bound

CHUNK = 256  # tokens, at most
FIRST = 64  # tokens after a prompt that there are slots for at first
SHARE = 8  # after a long prompt: an eighth of its length

T = TypeVar('T')


def chunks_of(t: int) -> tuple[int, int]:
  """Returns the number of chunks of t tokens, and their width.

  >>> chunks_of(256), chunks_of(640)
  ((1, 256), (3, 214))
  """
  chunks = max(-(-t // CHUNK), 1)
  return chunks, -(-t // chunks)


def capacity_of(prompt: Prompt, max_len: int, nodes: int) -> Capacity:
  """Returns the slots for a prompt, its output up to `Prompt.slots`, and calls on nodes."""
  parts = [chunks_of(n) for n in (prompt.shared, prompt.tokens.shape[1] - prompt.shared)]
  total = sum(chunks * width for chunks, width in parts) + max_len + nodes
  more = 0 if prompt.slots is None else max(max_len - prompt.slots, 0)
  return Capacity(total - more, nodes=max(nodes, *(width for _, width in parts)), more=more)


def memory_of(target: Bound, prompt: Prompt) -> Any:
  """Encodes the prompt's inputs; once, if they are the same for all rows."""
  model, params = target
  if not prompt.one_source or prompt.inputs is None:
    return model.encode(params, prompt.inputs)
  b = len(prompt.tokens)
  return jax.tree.map(lambda x: jnp.repeat(x, b, axis=0), model.encode(params, prompt.inputs[:1]))


def in_chunks(
  read: Callable[[T, Any, Int[Array, ' b']], tuple[T, Any]],
  state: T,
  texts: Any,
  length: Int[Array, ' b'],
) -> tuple[T, Any]:
  """Reads arrays [b, t, ...] chunk by chunk.

  Args:
    read: (state, the chunk of each array, tokens of each row in it) -> (state, arrays [b, n, ...]).
    state: before the first chunk.
    texts: arrays [b, t, ...].
    length: tokens of each row; padding stands behind them.

  Returns:
    The state after the last chunk, and the arrays of all chunks joined, cut to t entries.
  """
  t = jax.tree.leaves(texts)[0].shape[1]
  chunks, width = chunks_of(t)
  if chunks == 1:
    return read(state, texts, length)

  def cut(x: Array) -> Array:
    x = jnp.pad(x, ((0, 0), (0, chunks * width - t), *[(0, 0)] * (x.ndim - 2)))
    return jnp.moveaxis(x.reshape(len(x), chunks, width, *x.shape[2:]), 1, 0)

  def one(state: T, chunk: tuple[Int[Array, ''], Any]) -> tuple[T, Any]:
    number, texts = chunk
    return read(state, texts, (length - number * width).clip(0, width))

  def join(x: Array) -> Array:
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(len(x), -1, *x.shape[3:])[:, :t]

  numbers = jnp.arange(chunks, dtype=length.dtype)
  state, made = jax.lax.scan(one, state, (numbers, jax.tree.map(cut, texts)))
  return state, jax.tree.map(join, made)


def read_text(
  target: Bound, prompt: Prompt, cache: Any, taps: Taps = (), known: Int[Array, ' b'] | None = None
) -> tuple[Float[Array, 'b t d'], tuple[Float[Array, 'b t _'], ...], Any]:
  """Reads the prompt's tokens into an empty cache. The beginning that all rows share is read once.

  The compiler drops states that nobody reads.

  Args:
    target: the model and its parameters.
    prompt: its tokens and lengths.
    cache: empty, with slots for all chunks (`capacity_of`).
    taps: layers whose states are wanted too.
    known: length of the prompt that each row begins with (`Nodes.text`); None: all of it.

  Returns:
    The hidden states of all positions, the states of the taps, and the cache.
  """
  model, params = target
  apply, b, n, tokens = apply_with(model, taps), len(prompt.tokens), prompt.shared, prompt.tokens
  text_length = prompt.length if known is None else known

  def read(text_length: Array, cache: Any, tokens: Array, count: Array) -> tuple[Any, Any]:
    nodes = causal(tokens.shape[1], count, text_length)
    hidden, states, cache = apply(params, tokens, nodes, cache)
    return cache.commit(None, count), (hidden, states)

  read_rows = functools.partial(read, text_length)
  if not n:
    cache, (hidden, states) = in_chunks(read_rows, cache, tokens, prompt.length)
    return hidden, states, cache

  # Read the shared beginning in one row, copy its cache to all rows, and read what follows.
  read_one, count = functools.partial(read, text_length[:1]), jnp.full(1, n, jnp.int32)
  one, first = in_chunks(read_one, cache.gather(jnp.zeros(1, jnp.int32)), tokens[:1, :n], count)
  cache = one.gather(jnp.zeros(b, jnp.int32))
  cache, rest = in_chunks(read_rows, cache, tokens[:, n:], prompt.length - n)
  hidden, states = jax.tree.map(
    lambda x, y: jnp.concatenate([jnp.repeat(x, b, axis=0), y], axis=1), first, rest
  )
  return hidden, states, cache


def with_first_slots(model: Model, strategy: Any, prompt: Prompt, max_len: int) -> Prompt:
  """Returns the prompt with the slots to begin with, if these are fewer than all."""
  slots = max(FIRST, prompt.tokens.shape[1] // SHARE)
  grows = hasattr(strategy, 'emitted') and model.fixed_length is None
  return dataclasses.replace(prompt, slots=slots) if grows and slots < max_len else prompt


def with_more_slots(prompt: Prompt, max_len: int) -> Prompt:
  """Returns the prompt with more slots: the cache gets about twice as long, or has all (None)."""
  assert prompt.slots is not None  # there are more
  slots = 2 * prompt.slots + prompt.tokens.shape[1]
  return dataclasses.replace(prompt, slots=slots if slots < max_len else None)


def has_slots(strategy: Any, state: Any, prompt: Prompt) -> Bool[Array, '']:
  """True if all running rows have slots for one more call."""
  if prompt.slots is None:
    return jnp.array(True)
  return (strategy.done(state) | (strategy.emitted(state) < prompt.slots)).all()


def with_slots(
  target: Bound, strategy: Any, prompt: Prompt, keys: Array | None, max_len: int, state: Any
) -> Any:
  """Returns the state with as many slots as the prompt has now (inside jit).

  Slots after a row's length are garbage, so more can be added at the end of each axis. Axes of rows
  stay.
  """

  def init(prompt: Prompt, keys: Array | None) -> Any:
    return strategy.init(target, prompt, max_len, keys)

  def padded(x: Array, like: jax.ShapeDtypeStruct) -> Array:
    more = [(0, new - old) for old, new in zip(x.shape[1:], like.shape[1:], strict=True)]
    return jnp.pad(x, [(0, 0), *more]) if any(end for _, end in more) else x

  return jax.tree.map(padded, state, jax.eval_shape(init, prompt, keys))
