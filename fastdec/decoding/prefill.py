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
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec.decoding.protocol import Prompt
from fastdec.models.api import Capacity, Model, causal
from fastdec.models.taps import Taps, apply_with
from fastdec.struct import Bound

CHUNK = 256  # tokens, at most
FIRST = 64  # tokens after a prompt that there are slots for at first
SUMMED = 32  # entries that XLA's CPU backend sums first, and then their sums
SHARE = 8  # after a long prompt: an eighth of its length

# Widths of prompts that programs are few for (`in_few_sizes`): the least one, and the one that they
# quadruple up to; then they double. In a list each row reads all slots at each call.
ALONE = (256, 4096)  # 256, 1,024, 4,096, 8,192, ...
LISTED = (64, 256)  # 64, 256, 512, 1,024, 2,048, 4,096, ...
SHORT = 256  # a CPU reads prompts of this width or less ...
SHORT_CHUNK = 32  # ... in chunks of so many tokens, and longer ones ...
LONG_CHUNK = 128  # ... in longer chunks
ROOM = 4  # a quarter of a width comes behind it, or `FIRST`
ANY = 2**30  # slots, of a cache whose kind does not depend on their number

T = TypeVar('T')


def chunks_of(t: int, most: int = CHUNK) -> tuple[int, int]:
  """Returns the number of chunks of t tokens, and their width, `most` or less.

  >>> chunks_of(256), chunks_of(640), chunks_of(256, 64)
  ((1, 256), (3, 214), (4, 64))
  """
  chunks = max(-(-t // most), 1)
  return chunks, -(-t // chunks)


def capacity_of(prompt: Prompt, max_len: int, nodes: int) -> Capacity:
  """Returns the slots for a prompt, its output up to `Prompt.slots`, and calls on nodes.

  They are a multiple of `SUMMED`, so that sums over slots do not depend on the number of nodes."""
  lengths = (prompt.shared, prompt.tokens.shape[1] - prompt.shared)
  parts = [chunks_of(n, prompt.chunk) for n in lengths]
  widest = max(nodes, *(width for _, width in parts))
  total = sum(chunks * width for chunks, width in parts) + max_len + nodes
  more = 0 if prompt.slots is None else max(max_len - prompt.slots, 0)
  total = -(-(total - more) // SUMMED) * SUMMED
  if prompt.most is None:
    return Capacity(total, nodes=widest, more=more)
  # A cache of any size continues as one of the next: a ring has the same size in all of them.
  return Capacity(total, nodes=max(widest, CHUNK), more=max(prompt.most - total, 0))


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
    length: tokens of each row; padding stands behind them.
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


def has_slots(strategy: Any, state: Any, slots: Any) -> Bool[Array, '']:
  """True if all running rows have slots for one more call.

  slots: for the tokens of all rows, or of each [b]; None: for all that they may emit."""
  if slots is None:
    return jnp.array(True)
  return (strategy.done(state) | (strategy.emitted(state) < slots)).all()


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


def has_few_sizes(model: Model, strategy: Any) -> bool:
  """True if the strategy's prompts by this model may have the sizes of `in_few_sizes`."""
  is_text = model.start_id is None and model.fixed_length is None
  return is_text and hasattr(strategy, 'emitted')


def in_few_sizes(
  model: Model, prompt: Prompt, longest: int, sizes: tuple[int, int] = ALONE
) -> Prompt:
  """Pads prompts to one of few widths, so that there are few programs for any lengths and limits.

  They are read in chunks as far as they reach. Caches have slots for the width and a quarter more,
  for prompt and output together: `room_of`.

  longest: most tokens of a prompt and its output together. sizes: see `few_width`.
  """
  t = prompt.tokens.shape[1]
  width = few_width(t, model.max_positions, sizes)
  chunk, most = CHUNK, ANY
  if jax.default_backend() == 'cpu':  # whose time grows with the tokens, padding included
    chunk = SHORT_CHUNK if width <= SHORT else LONG_CHUNK
  if getattr(model, 'reads_length', True):  # its caches may depend on the longest text
    last = few_width(longest, model.max_positions, sizes)
    most = last + max(last // ROOM, FIRST)
  tokens = np.pad(prompt.tokens, ((0, 0), (0, width - t)), constant_values=model.pad_id)
  return dataclasses.replace(
    prompt, tokens=tokens, slots=max(width // ROOM, FIRST), chunk=chunk, most=most
  )


def few_width(length: int, limit: int | None, sizes: tuple[int, int] = ALONE) -> int:
  """Returns the smallest of `sizes`, `ALONE` or `LISTED`, and the limit, that holds the length.

  >>> [few_width(length, None) for length in (3, 256, 257, 4096, 4097)]
  [256, 256, 1024, 4096, 8192]
  >>> [few_width(length, None, LISTED) for length in (3, 64, 65, 257)]
  [64, 64, 256, 512]
  """
  width, quadrupled_to = sizes
  while width < length:
    width *= 4 if width < quadrupled_to else 2
  return width if limit is None else max(min(width, limit), length)


def room_of(prompt: Prompt) -> int:
  """Returns the tokens of prompt and output that a prompt `in_few_sizes` has slots for."""
  assert prompt.slots is not None
  return prompt.tokens.shape[1] + prompt.slots
