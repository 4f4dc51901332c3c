"""The text of each row on the device, which grows by the block of each call."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fastdec import struct


@struct.pytree
class Text:
  """The tokens of each row so far, or other arrays with one entry for each token.

  A drafter that reads the text keeps one in its state. The arrays never grow, so they need room
  for the prompt and for `max_len` tokens more:

    def init(self, target, prefill):
      prompt = prefill.prompt
      tokens = jnp.pad(prompt.tokens, ((0, 0), (0, prefill.max_len)))
      return Text(tokens, prompt.length).append(prefill.root[:, None], jnp.ones_like(prefill.root))

    def observe(self, target, state, step):
      return state.append(step.block(step.path.shape[1]), step.count)
  """

  tokens: Any  # int32[b, t], or a pytree of arrays [b, t, ...]; valid before `length`
  length: Int[Array, ' b']

  def append(self, block: Any, count: Int[Array, ' b']) -> 'Text':
    """Returns the text with the first `count` entries of each row's block after its last token.

    It writes these entries and does not pass over the others. Entries beyond the end of the arrays
    are dropped, but `length` counts them.

    Args:
      block: int32[b, m], or a pytree like `tokens` of arrays [b, m, ...].
      count: entries of each row that are appended, 0 to m.
    """

    def put(rows: Array, new: Array) -> Array:
      index = jnp.arange(new.shape[1], dtype=jnp.int32)[None]
      place = jnp.where(index < count[:, None], self.length[:, None] + index, rows.shape[1])
      return jax.vmap(lambda row, at, values: row.at[at].set(values, mode='drop'))(rows, place, new)

    return Text(jax.tree.map(put, self.tokens, block), self.length + count)
