"""Encoder memory: the keys and values of cross-attention, computed once per source."""

from typing import Any

import jax
from jaxtyping import Array, Bool, Int

from fastdec import struct
from fastdec.cache.kv import LayerKV


@struct.pytree
class Memory:
  """Keys and values of the source for every decoder layer."""

  layers: tuple[LayerKV, ...]
  mask: Bool[Array, 'b s']  # true on real source tokens


@struct.pytree
class WithMemory:
  """A decoder's own cache beside the memory it reads.

  For each row of memory the own cache may have several rows, which lie together: the beams of a
  source. `commit` and `gather` act on the own cache and leave the memory alone.
  """

  own: Any
  memory: Memory

  @property
  def length(self) -> Int[Array, ' b']:
    return self.own.length

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'WithMemory':
    """See `KVCache.commit`."""
    return WithMemory(self.own.commit(path, count), self.memory)

  def gather(self, rows: Int[Array, ' w']) -> 'WithMemory':
    """Reorders or multiplies rows among those of the same source."""
    return WithMemory(self.own.gather(rows), self.memory)

  def take(self, rows: Int[Array, ' r'], beams: int) -> 'WithMemory':
    """See `KVCache.take`."""
    return WithMemory(self.own.take(rows, beams), jax.tree.map(lambda x: x[rows], self.memory))
