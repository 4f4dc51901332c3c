"""The layers of draft networks: a language model's, or a decoder's that reads an encoder's states.

Both are the layers of our models (`models.lm`, `models.stacks`), so a draft may start as a copy of
its target's last layers. They read their own cache. A draft for an encoder-decoder also has its own
keys and values of the source, computed once. Both kinds of tower have the same call:

  tower(x, view, read, train) -> (hidden states [b, n, d], each layer's keys and values)

  x      [b, n, d], the input, without positions
  view   the positions of its rows, and what they see (`View`)
  read   input of the first attention instead of the norm of x (EAGLE; language models' layers only)
"""

import dataclasses
import functools
from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec.cache.kv import KVCache, LayerKV
from fastdec.cache.memory import Memory, WithMemory
from fastdec.kernels.sharding import Table
from fastdec.models.api import Capacity
from fastdec.models.attention import attend
from fastdec.models.layers import LayerNorm, sinusoids
from fastdec.models.lm import Layer, LMConfig, RMSNorm, layer_partition
from fastdec.models.stacks import PARTITION, Attend, DecoderLayer, Sees, StackConfig

LayersConfig = LMConfig | StackConfig
DraftCache = KVCache | WithMemory


@dataclasses.dataclass(frozen=True)
class View:
  """Positions of n rows, and the keys and values that they see.

  Attributes:
    positions: int32[b, n].
    sees: for each layer, the function by which its queries read the text so far (`stacks.Attend`).
    across: the function by which all layers read `memory`; None for layers that read no source.
    memory: each layer's keys and values of the source.
    cached: each layer's keys and values so far, to which the n new ones are added; None: no cache.
    start: int32[b], the first slot of the new ones.
  """

  positions: Int[Array, 'b n']
  sees: Sequence[Attend]
  across: Attend | None = None
  memory: Sequence[LayerKV] = ()
  cached: Sequence[LayerKV] | None = None
  start: Int[Array, ' b'] | None = None

  @classmethod
  def of(
    cls,
    cache: DraftCache,
    positions: Int[Array, 'b n'],
    masks: Sequence[Bool[Array, 'b n s']],
    start: Int[Array, ' b'],
  ) -> 'View':
    """Returns the view of rows that are written to a cache from `start` on; one mask per layer."""
    own = own_cache(cache)
    sees = [functools.partial(attend, mask=mask) for mask in masks]
    if not isinstance(cache, WithMemory):
      return cls(positions, sees, cached=own.layers, start=start)
    across = functools.partial(attend, mask=cache.memory.mask[:, None, :])
    return cls(positions, sees, across, cache.memory.layers, own.layers, start)

  @classmethod
  def of_everything(
    cls, n: int, layers: int, source: Float[Array, 'b s d'] | None, memory: Sequence[LayerKV]
  ) -> 'View':
    """Returns the view of n rows that see one another and the source, to make fresh parameters."""
    sees = [functools.partial(attend, mask=jnp.ones((1, 1, n), bool))] * layers
    across = None
    if source is not None:
      across = functools.partial(attend, mask=jnp.ones((1, 1, source.shape[1]), bool))
    return cls(jnp.zeros((1, n), jnp.int32), sees, across, memory)


class LMTower(nn.Module):
  """Layers of a language model; positions are rotations."""

  config: LMConfig

  def setup(self) -> None:
    self.layer = [Layer(self.config) for _ in range(self.config.layers)]

  def memory(self, source: Float[Array, 'b s d']) -> tuple[LayerKV, ...]:
    """Returns (): these layers read no source."""
    return ()

  def own(self, x: Float[Array, 'b n d'], positions: Int[Array, 'b n']) -> tuple[LayerKV, ...]:
    """Returns each layer's keys and values of x itself, the target's features (block drafters)."""
    turns, entries = self.config.turns(positions), []
    for i, layer in enumerate(self.layer):
      _, own = layer.queries_and_own(x, turns[i])
      entries.append(own)
    return tuple(entries)

  def __call__(
    self,
    x: Float[Array, 'b n d'],
    view: View,
    read: Float[Array, 'b n e'] | None = None,
    train: bool = False,
  ) -> tuple[Float[Array, 'b n d'], tuple[LayerKV, ...]]:
    """See the top of this file."""
    turns, entries = self.config.turns(view.positions), []
    cached = view.cached or (None,) * len(self.layer)
    for i, layer in enumerate(self.layer):
      x, kv = layer(x, turns[i], view.sees[i], cached[i], view.start, train, read)
      entries.append(kv)
      read = None  # later layers read the norm of x
    return x, tuple(entries)


class DecoderTower(nn.Module):
  """Layers of an encoder-decoder's decoder; positions are a signal added to the input."""

  config: StackConfig

  def setup(self) -> None:
    self.layer = [DecoderLayer(self.config) for _ in range(self.config.decoder_layers)]

  def memory(self, source: Float[Array, 'b s d']) -> tuple[LayerKV, ...]:
    """Returns each layer's keys and values of the source."""
    return tuple(layer.cross.keys_values(source) for layer in self.layer)

  def own(self, x: Float[Array, 'b n d'], positions: Int[Array, 'b n']) -> tuple[LayerKV, ...]:
    """See `LMTower.own`."""
    x, entries = x + sinusoids(positions, x.shape[-1]).astype(x.dtype), []
    for layer in self.layer:
      _, own = layer.attention.queries_and_own(x)
      entries.append(own)
    return tuple(entries)

  def __call__(
    self,
    x: Float[Array, 'b n d'],
    view: View,
    read: Float[Array, 'b n e'] | None = None,
    train: bool = False,
  ) -> tuple[Float[Array, 'b n d'], tuple[LayerKV, ...]]:
    """See the top of this file."""
    assert view.across is not None and read is None, 'these layers read a source, and the norm of x'
    x, entries = x + sinusoids(view.positions, x.shape[-1]).astype(x.dtype), []
    cached = view.cached or (None,) * len(self.layer)
    for i, layer in enumerate(self.layer):
      sees = Sees(view.sees[i], view.across)
      x, kv = layer(x, sees, view.memory[i], cached[i], view.start, train)
      entries.append(kv)
    return x, tuple(entries)


Tower = LMTower | DecoderTower


def windows_of(config: LayersConfig) -> tuple[int, ...]:
  """Returns each layer's window; 0: it sees everything."""
  if isinstance(config, StackConfig):
    return (0,) * config.decoder_layers
  return config.layer_windows


def depth_of(config: LayersConfig) -> int:
  """Number of layers."""
  return config.decoder_layers if isinstance(config, StackConfig) else config.layers


def tower(config: LayersConfig) -> Tower:
  """Returns fresh linen layers, for the `setup` of a network."""
  return DecoderTower(config) if isinstance(config, StackConfig) else LMTower(config)


def norm(config: LayersConfig, name: str | None = None) -> nn.Module:
  """Returns a norm of the layers' kind."""
  if isinstance(config, StackConfig):
    return LayerNorm(epsilon=config.norm_epsilon, dtype=config.dtype, name=name)
  return RMSNorm(config, name=name)


def empty_cache(
  config: LayersConfig, rows: int, slots: int | Capacity, memory: Memory | None
) -> DraftCache:
  """Returns an empty cache, over the source's keys and values if the layers read them."""
  if isinstance(config, StackConfig):
    heads, width = config.heads, config.head_width
  else:
    heads, width = config.kv_heads, config.width
  own = KVCache.empty(depth_of(config), rows, heads, slots, width, config.dtype)
  if memory is None:
    return own
  return WithMemory(own, memory)


def own_cache(cache: DraftCache) -> KVCache:
  """Returns the part of the cache that holds the text."""
  return cache.own if isinstance(cache, WithMemory) else cache


def with_layers(cache: DraftCache, layers: tuple[LayerKV, ...]) -> DraftCache:
  """Returns the cache with these entries."""
  if isinstance(cache, WithMemory):
    return WithMemory(dataclasses.replace(cache.own, layers=layers), cache.memory)
  return dataclasses.replace(cache, layers=layers)


def partition(config: LayersConfig, devices: int) -> Table:
  """Returns the table of the layers' parameters; see `kernels.sharding`."""
  if isinstance(config, StackConfig):
    return PARTITION
  return layer_partition(config, devices)
