"""Common part of the encoder-decoders over text: settings, packed rows, calls over a cache.

A model is its network's parameters and `unembed`. The network has `__call__` for packed rows of
training text, `encode_source` for a batch of sources, and `decode_nodes` for the nodes of a call.
`TextStacks` has all three for two stacks of attention; convolutions (`fconv.py`) have their own.
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
from fastdec.models.api import NO_TOKEN, Capacity, Nodes, Params, setting
from fastdec.models.attention import attend, node_mask, slot_positions
from fastdec.models.fresh import unrun
from fastdec.models.layers import look_up
from fastdec.models.linen import LinenModel, fed_tokens, same_segment
from fastdec.models.stacks import Attend, Sees, Stacks
from fastdec.models.taps import Features, check_taps


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
    """Returns what positions add to the scores of self-attention, if they do.

    Args:
      stack: 'encoder' or 'decoder'.
      queries: positions of the queries.
      keys: positions of the keys.
    """

  def _attend(self, mask: Bool[Array, '#b #n s'], bias: Array | None = None) -> Attend:
    return functools.partial(attend, mask=mask, bias=bias, scale=self.scale)

  def __call__(
    self, batch: Mapping[str, Array], train: bool, taps: tuple[int, ...] = ()
  ) -> Features:
    """Teacher-forced states of packed rows; see `LinenModel.features`."""
    source, target = batch['source_segment'], batch['target_segment']
    at_source, at_target = batch['source_position'], batch['target_position']

    # The encoder reads each sentence whole.
    bias = self.bias('encoder', at_source, at_source)
    own = self._attend(same_segment(source, source), bias)
    hidden = self.encode(batch['source'], at_source, own, train)

    # The decoder reads the target's tokens before each position, and its own source sentence.
    causal = same_segment(target, target) & jnp.tri(target.shape[1], dtype=bool)[None]
    bias = self.bias('decoder', at_target, at_target)
    sees = Sees(self._attend(causal, bias), self._attend(same_segment(target, source)))
    inputs = fed_tokens(batch, self.config.start_id)
    decoded, states, _ = self.decode(
      inputs, at_target, sees, self.memory(hidden), train=train, taps=taps
    )
    return Features(decoded, states, hidden)

  def encode_source(
    self, tokens: Int[Array, 'b s'], mask: Bool[Array, 'b s']
  ) -> Float[Array, 'b s d']:
    """Encodes a source in each row; the mask is false on padding."""
    positions = jnp.arange(tokens.shape[1])
    # All rows have the same positions, and so one bias.
    bias = self.bias('encoder', positions[None], positions[None])
    own = self._attend(mask[:, None, :], bias)
    return self.encode(tokens, jnp.broadcast_to(positions, tokens.shape), own, False)

  def decode_nodes(
    self,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: WithMemory,
    taps: tuple[int, ...],
    across: Attend,
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n d'], ...], tuple[LayerKV, ...]]:
    """Reads the nodes of a call; returns their states, those of `taps`, and the layers written."""
    own, memory = cache.own, cache.memory
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    bias = None
    if self.has_bias:
      bias = self.bias('decoder', positions, slot_positions(nodes, own.length, own.slots))
    mask = node_mask(nodes, own.length, own.slots)
    sees = Sees(
      self._attend(mask, bias),
      functools.partial(across, mask=memory.mask[:, None, :], scale=self.scale),
    )
    return self.decode(tokens, positions, sees, memory.layers, own, taps=taps)


@dataclasses.dataclass(frozen=True)
class EncoderDecoder(LinenModel):
  """The part of a model (protocol: `models/api.py`) that does not depend on its layers.

  The cache is that of `Stacks`."""

  # settings of `generate` that came with it, for `fd.Processors.of`; no program reads them
  generation: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, compare=False, repr=False, kw_only=True
  )

  fixed_length = None
  source_vocab_size = None

  d_model = setting('d_model')
  layers = setting('decoder_layers')
  vocab_size = setting('vocab_size')
  eos_ids = setting('eos_ids')
  pad_id = setting('pad_id')
  start_id = setting('start_id')
  suppressed_ids = setting('suppressed_ids')

  @property
  def source_pad_id(self) -> int:
    """Id that fills up sources: the pad id, unless it ends texts too, as in many Marians."""
    return NO_TOKEN if self.pad_id in self.eos_ids else self.pad_id

  @unrun
  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters."""
    ones = jnp.ones((1, 2), jnp.int32)
    batch = {
      f'{side}{part}': ones
      for side in ('source', 'target')
      for part in ('', '_segment', '_position')
    }
    return self.network(self.config).init(key, batch, train=False)['params']

  def unpadded(self, inputs: Int[Array, 'b s']) -> tuple[Int[Array, 'b s'], Bool[Array, 'b s']]:
    """Returns ids that all have an embedding, and a mask that is false on padding behind a source.

    A pad id within it is text, which a tokenizer's own mask does not hide either.
    """
    is_token = inputs != self.source_pad_id
    return jnp.maximum(inputs, 0), jnp.flip(jnp.cumsum(jnp.flip(is_token, 1), 1), 1) > 0

  def encode(self, params: Params, inputs: Int[Array, 'b s']) -> Any:
    """Encodes source ids padded with `pad_id`."""
    inputs, mask = self.unpadded(inputs)
    return Source(self._call(params, inputs, mask, method='encode_source'), mask)

  def apply(
    self,
    params: Params,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: WithMemory,
    taps: tuple[int, ...] = (),
    across: Attend = attend,
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n _'], ...], WithMemory]:
    """See `models.api.Model.apply`; each layer in turn calls `across` once to read the memory."""
    check_taps(taps, self.layers)
    hidden, states, layers = self._call(
      params, tokens, nodes, cache, taps, across, method='decode_nodes'
    )
    own = dataclasses.replace(cache.own, layers=layers)
    return hidden, states, WithMemory(own, cache.memory)

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
    c = self.config.of_decoder
    own = KVCache.empty(c.decoder_layers, rows, c.heads, slots, c.head_width, c.dtype)
    return WithMemory(own, Memory(self._call(params, memory.hidden, method='memory'), memory.mask))
