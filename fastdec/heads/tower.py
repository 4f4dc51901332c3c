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
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec.cache.kv import LayerKV, Own
from fastdec.cache.memory import WithMemory
from fastdec.models.attention import attend
from fastdec.models.layers import LayerNorm, sinusoids
from fastdec.models.lm import Layer, LMConfig, RMSNorm
from fastdec.models.stacks import Attend, DecoderLayer, Sees, StackConfig

LayersConfig = LMConfig | StackConfig
Around = Callable[[], nn.Module] | None  # makes what is around each sublayer


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
    cache: WithMemory,
    positions: Int[Array, 'b n'],
    masks: Sequence[Bool[Array, 'b n s']],
    start: Int[Array, ' b'],
  ) -> 'View':
    """Returns the view of rows that are written to a cache from `start` on; one mask per layer."""
    sees = [functools.partial(attend, mask=mask) for mask in masks]
    if cache.memory is None:
      return cls(positions, sees, cached=cache.own.layers, start=start)
    across = functools.partial(attend, mask=cache.memory.mask[:, None, :])
    return cls(positions, sees, across, cache.memory.layers, cache.own.layers, start)

  @classmethod
  def of_everything(
    cls,
    n: int,
    layers: LayersConfig,
    source: Float[Array, 'b s d'] | None,
    memory: Sequence[LayerKV],
  ) -> 'View':
    """Returns the view of n rows that see one another and the source, to make fresh parameters."""
    sees = [functools.partial(attend, mask=jnp.ones((1, 1, n), bool))] * len(windows_of(layers))
    across = None
    if source is not None:
      across = functools.partial(attend, mask=jnp.ones((1, 1, source.shape[1]), bool))
    return cls(jnp.zeros((1, n), jnp.int32), sees, across, memory)


class LMTower(nn.Module):
  """Layers of a language model; positions are rotations."""

  config: LMConfig
  around: Around = None

  def setup(self) -> None:
    layers = range(self.config.layers)
    self.layer = [Layer(self.config, around=self.around) for _ in layers]

  def own(self, x: Float[Array, 'b n d'], positions: Int[Array, 'b n']) -> tuple[Own, ...]:
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
  around: Around = None

  def setup(self) -> None:
    layers = range(self.config.decoder_layers)
    self.layer = [DecoderLayer(self.config, self.around) for _ in layers]

  def own(self, x: Float[Array, 'b n d'], positions: Int[Array, 'b n']) -> tuple[Own, ...]:
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


def windows_of(config: LayersConfig) -> tuple[int, ...]:
  """Returns each layer's window; 0: it sees everything."""
  if isinstance(config, StackConfig):
    return (0,) * config.decoder_layers
  return config.layer_windows


def norm(config: LayersConfig, name: str | None = None) -> nn.Module:
  """Returns a norm of the layers' kind."""
  if isinstance(config, StackConfig):
    return LayerNorm(epsilon=config.norm_epsilon, dtype=config.dtype, name=name)
  return RMSNorm(config, name=name)
