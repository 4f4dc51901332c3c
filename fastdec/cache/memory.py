"""Encoder memory: the keys and values of cross-attention, computed once per source."""

import dataclasses
from typing import Any

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
  """A decoder's own cache, and the memory that the decoder reads.

  The own cache may have several adjacent rows for a row of memory: the beams of a source, if the
  decoder does not read paths (`models.api`). `commit` and `gather` change the own cache only.
  """

  own: Any
  memory: Any  # a `Memory`; None: the decoder reads no source

  @property
  def length(self) -> Int[Array, ' b']:
    return self.own.length

  def commit(self, path: Int[Array, 'b m'] | None, count: Int[Array, ' b']) -> 'WithMemory':
    """See `KVCache.commit`."""
    return WithMemory(self.own.commit(path, count), self.memory)

  def gather(self, rows: Int[Array, ' w']) -> 'WithMemory':
    """Reorders or copies rows, which stay with their sources."""
    return WithMemory(self.own.gather(rows), self.memory)

  def with_layers(self, layers: tuple[Any, ...]) -> 'WithMemory':
    """Returns the cache with these layers instead of its own."""
    return WithMemory(dataclasses.replace(self.own, layers=layers), self.memory)
