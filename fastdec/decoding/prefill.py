"""The prompt, scored once and in chunks, and the caches that it fills.

A long prompt takes memory for the attention of one chunk. All chunks have one width, and one
compiled program reads them in turn. A prompt of up to `CHUNK` tokens is a single call.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.decoding.protocol import Prompt
from fastdec.models.api import Capacity, causal
from fastdec.models.taps import Taps, apply_with
from fastdec.struct import Bound

CHUNK = 256  # tokens, at most
SUMMED = 32  # entries that XLA's CPU backend sums first, and then their sums

T = TypeVar('T')


def chunks_of(t: int, most: int = CHUNK) -> tuple[int, int]:
  """Returns the number of chunks of t tokens, and their width, `most` or less.

  >>> chunks_of(256), chunks_of(640), chunks_of(256, 64)
  ((1, 256), (3, 214), (4, 64))
  """
  chunks = max(-(-t // most), 1)
  return chunks, -(-t // chunks)


def capacity_of(prompt: Prompt, max_len: int, nodes: int, paths: int = 1) -> Capacity:
  """Returns the slots for a prompt, its output up to `Prompt.slots`, and calls on nodes.

  They are a multiple of `SUMMED`, so that sums over slots do not depend on the number of nodes. The
  cache may hold several `paths` of equal length that continue the prompt."""
  lengths = (prompt.shared, prompt.tokens.shape[1] - prompt.shared)
  parts = [chunks_of(n, prompt.chunk) for n in lengths]
  widest = max(nodes, *(width for _, width in parts))
  text = sum(chunks * width for chunks, width in parts)
  slots = max_len if prompt.slots is None else min(prompt.slots, max_len)
  total = -(-(text + paths * slots + nodes) // SUMMED) * SUMMED

  # A cache of any size continues as one of the next: nothing but `total` may differ between them.
  if prompt.most is None:
    most = text + paths * max_len + nodes
    if paths > 1:  # their tokens leave a window out of the order of slots, which a ring needs
      widest = most
    return Capacity(total, nodes=widest, most=most)
  return Capacity(total, nodes=max(widest, CHUNK), most=prompt.most)


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
  most: int = CHUNK,
) -> tuple[T, Any]:
  """Reads arrays [b, t, ...] chunk by chunk, up to the end of the longest row.

  Args:
    read: (state, the chunk of each array, tokens of each row in it) -> (state, arrays [b, n, ...]).
    state: before the first chunk.
    texts: arrays [b, t, ...].
    length: tokens of each row; padding follows them.
    most: entries of a chunk, at most.

  Returns:
    The state after the last chunk, and the arrays of all chunks joined, cut to t entries. Those of
    chunks without a token are zeros.
  """
  t = jax.tree.leaves(texts)[0].shape[1]
  chunks, width = chunks_of(t, most)
  if chunks == 1:
    return read(state, texts, length)
  texts = jax.tree.map(
    lambda x: jnp.pad(x, ((0, 0), (0, chunks * width - t), *[(0, 0)] * (x.ndim - 2))), texts
  )

  def read_at(number: Int[Array, ''], state: T) -> tuple[T, Any]:
    chunk = jax.tree.map(
      lambda x: jax.lax.dynamic_slice_in_dim(x, number * width, width, axis=1), texts
    )
    return read(state, chunk, (length - number * width).clip(0, width))

  def one(number: Int[Array, ''], carry: tuple[T, Any]) -> tuple[T, Any]:
    def put(rows: Array, new: Array) -> Array:
      return jax.lax.dynamic_update_slice_in_dim(rows, new, number * new.shape[1], axis=1)

    state, new = read_at(number, carry[0])
    return state, jax.tree.map(put, carry[1], new)

  first = jnp.zeros((), length.dtype)
  _, shapes = jax.eval_shape(read_at, first, state)
  made = jax.tree.map(
    lambda x: jnp.zeros((x.shape[0], chunks * x.shape[1], *x.shape[2:]), x.dtype), shapes
  )
  count = (length.max() + width - 1) // width
  state, made = jax.lax.fori_loop(first, count, one, (state, made))
  return state, jax.tree.map(lambda x: x[:, :t], made)


def read_text(
  target: Bound, prompt: Prompt, cache: Any, taps: Taps = (), known: Int[Array, ' b'] | None = None
) -> tuple[Float[Array, 'b t d'], tuple[Float[Array, 'b t _'], ...], Any]:
  """Reads the prompt's tokens into an empty cache. The beginning that all rows share is read once.

  The compiler drops states that are not read.

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
    cache, (hidden, states) = in_chunks(read_rows, cache, tokens, prompt.length, prompt.chunk)
    return hidden, states, cache

  # Read the shared beginning in one row, copy its cache to all rows, and read what follows.
  read_one, count = functools.partial(read, text_length[:1]), jnp.full(1, n, jnp.int32)
  one, first = in_chunks(
    read_one, cache.gather(jnp.zeros(1, jnp.int32)), tokens[:1, :n], count, prompt.chunk
  )
  cache = one.gather(jnp.zeros(b, jnp.int32))
  cache, rest = in_chunks(read_rows, cache, tokens[:, n:], prompt.length - n, prompt.chunk)
  hidden, states = jax.tree.map(
    lambda x, y: jnp.concatenate([jnp.repeat(x, b, axis=0), y], axis=1), first, rest
  )
  return hidden, states, cache
