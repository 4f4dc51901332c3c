"""What beams remember: paths in one cache for each row, or a cache row for each beam.

    PathCache   the w beams of a row share its slots; a step reorders masks
    RowCache    every beam has slots of its own; a step copies caches (`models.api.Cache.gather`)

The model decides which of them serves it (`models.api`, `reads_paths`).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.prefill import capacity_of, memory_of, read_text
from fastdec.decoding.protocol import Prompt
from fastdec.kernels.sharding import by_rows
from fastdec.models.api import NO_PARENT, Nodes, Paths, causal
from fastdec.struct import Bound


@struct.pytree
class PathCache:
  """The beams of a row are paths in one tree. Its slots: the prompt, then w tokens for each step.

  A prompt of 2 tokens, and 2 steps of 2 beams: a, b, then c after b, and d after a.

      slot       0 1 2=a 3=b 4=c 5=d
      position   0 1  2   2   3   3
      c sees   [ 1 1  0   1   1   0 ]
      d sees   [ 1 1  1   0   0   1 ]
  """

  cache: Any
  sees: Bool[Array, 'b w s']  # slots that the newest token of each beam sees in the next call

  @classmethod
  def begin(
    cls, target: Bound, prompt: Prompt, max_len: int, size: int
  ) -> tuple[Float[Array, 'b t d'], 'PathCache']:
    """Reads the prompt. Returns its hidden states, and the cache of `size` beams a row."""
    model, params = target
    capacity, rows = capacity_of(prompt, max_len, size, paths=size), len(prompt.tokens)
    cache = model.init_cache(params, memory_of(target, prompt), rows, capacity)
    hidden, _, cache = read_text(target, prompt, cache)
    return hidden, cls(cache, jnp.ones((rows, size, capacity.total), bool))

  def read(
    self,
    target: Bound,
    tokens: Int[Array, 'b w'],
    length: Int[Array, ' b'],
    runs: Bool[Array, ' b'],
  ) -> tuple[Float[Array, 'b w d'], 'PathCache']:
    """Reads the newest tokens of beams of `length` tokens; rows that do not run forget them."""
    model, params = target
    b, w, s = self.sees.shape
    steps = length - 1

    # All tokens of a step have one position, although each has a slot.
    prompt = self.cache.length - w * steps
    slots = jnp.arange(s, dtype=prompt.dtype)[None]
    ahead = slots - prompt[:, None]
    positions = jnp.where(ahead < 0, slots, prompt[:, None] + ahead // w)
    depths = jnp.broadcast_to((steps * (1 - w))[:, None], (b, w))  # position - cache.length

    # The newest tokens do not see one another.
    roots = np.full(w, NO_PARENT, np.int32)
    nodes = Nodes(roots, depths, np.eye(w, dtype=bool), paths=Paths(self.sees, positions))
    hidden, _, cache = model.apply(params, tokens, nodes, self.cache)
    return hidden, dataclasses.replace(self, cache=cache.commit(None, w * runs.astype(jnp.int32)))

  def reorder(self, origin: Int[Array, 'b w']) -> 'PathCache':
    """Returns the cache of beams that each continue beam `origin` by one token."""
    w, s = self.sees.shape[1:]
    slots, length = jnp.arange(s, dtype=origin.dtype), self.cache.length[:, None, None]
    # A beam sees what its origin saw, and the slot that its newest token will have.
    before = jnp.take_along_axis(self.sees, origin[:, :, None], axis=1)
    is_own = slots[None, None] == length + jnp.arange(w, dtype=origin.dtype)[None, :, None]
    sees = jnp.where(slots[None, None] < length, before, is_own)
    return dataclasses.replace(self, sees=sees)


@struct.pytree
class RowCache:
  """A cache with w adjacent rows for each row of the batch."""

  cache: Any

  @classmethod
  def begin(
    cls, target: Bound, prompt: Prompt, max_len: int, size: int
  ) -> tuple[Float[Array, 'b t d'], 'RowCache']:
    """See `PathCache.begin`. The prompt is read once a row; then each beam gets a copy."""
    model, params = target
    capacity, rows = capacity_of(prompt, max_len, nodes=1), len(prompt.tokens)
    cache = model.init_cache(params, memory_of(target, prompt), rows, capacity)
    hidden, _, cache = read_text(target, prompt, cache)

    def spread(cache: Any) -> Any:
      return cache.gather(jnp.repeat(jnp.arange(len(cache.length)), size))

    return hidden, cls(by_rows(spread)(cache))

  def read(
    self,
    target: Bound,
    tokens: Int[Array, 'b w'],
    length: Int[Array, ' b'],
    runs: Bool[Array, ' b'],
  ) -> tuple[Float[Array, 'b w d'], 'RowCache']:
    """See `PathCache.read`."""
    model, params = target
    b, w = tokens.shape
    hidden, _, cache = model.apply(params, tokens.reshape(-1, 1), causal(1), self.cache)
    cache = cache.commit(None, jnp.repeat(runs.astype(jnp.int32), w))
    return hidden.reshape(b, w, -1), RowCache(cache)

  def reorder(self, origin: Int[Array, 'b w']) -> 'RowCache':
    """See `PathCache.reorder`."""
    b, w = origin.shape
    rows = jnp.arange(b, dtype=origin.dtype)[:, None] * w + origin
    return RowCache(self.cache.gather(rows.reshape(-1)))
