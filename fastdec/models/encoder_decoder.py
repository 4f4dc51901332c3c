"""What the encoder-decoders over text have in common: settings, packed rows, calls over a cache.

A model adds `unembed` to its network. The network has `__call__` for packed rows of training text,
`encode_source` for a batch of sources, and `decode_nodes` for the nodes of a call. `TextStacks`
implements all three for two stacks of attention; convolutions (`fconv.py`) have their own.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.cache.kv import KVCache, LayerKV
from fastdec.cache.memory import Memory, WithMemory
from fastdec.models.api import NO_TOKEN, Capacity, Nodes, Params, setting, source_length
from fastdec.models.attention import attend, node_mask, slot_positions
from fastdec.models.fresh import init_by_trace
from fastdec.models.layers import look_up
from fastdec.models.linen import LinenModel, fed_tokens, same_segment
from fastdec.models.stacks import Attend, Sees, Stacks
from fastdec.models.taps import Features


@struct.pytree
class Source:
  """The encoder's output."""

  hidden: Float[Array, 'b s d']
  mask: Bool[Array, 'b s']


class TextStacks(Stacks):
  """Two stacks of attention over text, in packed rows or over a cache."""

  config: Any
  scale = None  # of attention's scores; None: 1 / sqrt(width of a head)
  has_bias = False  # true if `bias` returns anything

  def bias(
    self, stack: str, queries: Int[Array, 'b n'], keys: Int[Array, 'b s']
  ) -> Float[Array, 'b h n s'] | None:
    """Returns what positions add to the scores of self-attention; None: nothing.

    Args:
      stack: 'encoder' or 'decoder'.
      queries: positions of the queries.
      keys: positions of the keys.
    """

  def __call__(
    self, batch: Mapping[str, Array], train: bool, taps: tuple[int, ...] = ()
  ) -> Features:
    """Teacher-forced states of packed rows; see `LinenModel.features`."""
    source, target = batch['source_segment'], batch['target_segment']
    at_source, at_target = batch['source_position'], batch['target_position']

    # In the encoder a token sees its whole sentence.
    scaled = functools.partial(attend, scale=self.scale)
    bias = self.bias('encoder', at_source, at_source)
    own = functools.partial(scaled, mask=same_segment(source, source), bias=bias)
    hidden = self.encode(batch['source'], at_source, own, train)

    # In the decoder a token sees its sentence up to itself, and the source of that sentence.
    causal = same_segment(target, target) & jnp.tri(target.shape[1], dtype=bool)[None]
    bias = self.bias('decoder', at_target, at_target)
    sees = Sees(
      functools.partial(scaled, mask=causal, bias=bias),
      functools.partial(scaled, mask=same_segment(target, source)),
    )
    inputs = fed_tokens(batch, self.config.start_id)
    decoded, states, _ = self.decode(
      inputs, at_target, sees, self.memory(hidden), train=train, taps=taps
    )
    return Features(decoded, states, hidden)

  def encode_source(
    self, tokens: Int[Array, 'b s'], mask: Bool[Array, 'b s']
  ) -> Float[Array, 'b s d']:
    """Encodes a source in each row; the mask is false on padding."""
    # All rows have the same positions, so one bias serves them all.
    positions = jnp.arange(tokens.shape[1])
    bias = self.bias('encoder', positions[None], positions[None])
    own = functools.partial(attend, mask=mask[:, None, :], bias=bias, scale=self.scale)
    positions = jnp.broadcast_to(positions, tokens.shape)
    return self.encode(tokens, positions, own, False)

  def decode_nodes(
    self,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: WithMemory,
    taps: tuple[int, ...],
    across: Attend = attend,
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n d'], ...], tuple[LayerKV, ...]]:
    """Reads the nodes of a call; returns their states, the states of `taps`, and the new layers.

    Each layer calls `across` once, to read the memory."""
    own, memory = cache.own, cache.memory
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    bias = None
    if self.has_bias:
      bias = self.bias('decoder', positions, slot_positions(nodes, own.length, own.slots))
    mask = node_mask(nodes, own.length, own.slots)
    sees = Sees(
      functools.partial(attend, mask=mask, bias=bias, scale=self.scale),
      functools.partial(across, mask=memory.mask[:, None, :], scale=self.scale),
    )
    return self.decode(tokens, positions, sees, memory.layers, own, taps=taps)


@dataclasses.dataclass(frozen=True)
class EncoderDecoder(LinenModel):
  """The part of a model (protocol: `models/api.py`) that does not depend on its layers.

  Its cache is made for `Stacks`."""

  # the end tokens that the model was trained with, if a caller has replaced `eos_ids`
  own_ends: tuple[int, ...] | None = dataclasses.field(default=None, kw_only=True)

  fixed_length = None
  source_vocab_size = None

  layers = setting('decoder_layers')
  start_id = setting('start_id')

  @property
  def source_pad_id(self) -> int:
    """The id that pads sources: the pad id, or NO_TOKEN if that also ends texts (many Marians)."""
    ends = self.own_ends
    if ends is None:
      ends = self.eos_ids
    return NO_TOKEN if self.pad_id in ends else self.pad_id

  def first_layers(self, layers: int) -> 'EncoderDecoder':
    """Returns the model without its decoder's other layers; its parameters are the same."""
    return dataclasses.replace(self, config=dataclasses.replace(self.config, decoder_layers=layers))

  @init_by_trace
  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters."""
    batch = {}
    for side in ('source', 'target'):
      for part in ('', '_segment', '_position'):
        batch[f'{side}{part}'] = jnp.ones((1, 2), jnp.int32)
    return self.network(self.config).init(key, batch, train=False)['params']

  def unpadded(self, inputs: Int[Array, 'b s']) -> tuple[Int[Array, 'b s'], Bool[Array, 'b s']]:
    """Returns ids that all have an embedding, and a mask that is false on padding.

    Only pad ids after a source's last token are padding: tokenizers may emit the pad id before."""
    places = jnp.arange(inputs.shape[1], dtype=jnp.int32)[None]
    mask = places < source_length(inputs, self.source_pad_id)[:, None]
    return jnp.maximum(inputs, 0), mask

  def encode(self, params: Params, inputs: Int[Array, 'b s']) -> Any:
    """Encodes source ids padded with `pad_id`."""
    inputs, mask = self.unpadded(inputs)
    hidden = self._call(params, inputs, mask, method='encode_source')
    return Source(hidden, mask)

  def embedding(self, params: Params, tokens: Int[Array, '*b']) -> Float[Array, '*b e']:
    """Returns embeddings of target tokens, without positions; see `models.api.embedding_of`."""
    return look_up(params['embedding'], tokens)

  def source(self, memory: Source) -> Source:
    """Returns the encoder's states for a draft's cross-attention; see `models.api.source_of`."""
    return memory

  def init_cache(
    self, params: Params, memory: Source, rows: int, slots: int | Capacity
  ) -> WithMemory:
    """Returns an empty cache over the source's keys and values."""
    # The decoder's layers project the source once, for all calls.
    c = self.config.of_decoder
    own = KVCache.empty(c.decoder_layers, rows, c.heads, slots, c.head_width, c.dtype)
    keys_values = self._call(params, memory.hidden, method='memory')
    source = Memory(keys_values, memory.mask)
    return WithMemory(own, source)
