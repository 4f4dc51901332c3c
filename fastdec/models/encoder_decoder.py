"""Common part of the encoder-decoders over text: settings, packed rows, the cache over a source."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.cache.kv import KVCache
from fastdec.cache.memory import Memory, WithMemory
from fastdec.models.api import NO_TOKEN, Capacity, Params, setting
from fastdec.models.fresh import unrun
from fastdec.models.layers import look_up
from fastdec.models.taps import Features, check_taps


@struct.pytree
class Source:
  """The encoder's output."""

  hidden: Float[Array, 'b s d']
  mask: Bool[Array, 'b s']


@dataclasses.dataclass(frozen=True)
class EncoderDecoder:
  """The part of a model (protocol: `models/api.py`) that does not depend on its layers.

  The cache is that of `Stacks`."""

  config: Any
  # settings of `generate` that came with it, for `fd.Processors.of`; no program reads them
  generation: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, compare=False, repr=False, kw_only=True
  )

  network: ClassVar[type[nn.Module]]  # all parameters, under one roof
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

  def unpadded(self, inputs: Int[Array, 'b s']) -> tuple[Int[Array, 'b s'], Bool[Array, 'b s']]:
    """Returns ids that all have an embedding, and a mask that is false on padding."""
    return jnp.maximum(inputs, 0), inputs != self.source_pad_id

  def _call(self, params: Params, *args: Any, method: str, **kwargs: Any) -> Any:
    return self.network(self.config).apply({'params': params}, *args, method=method, **kwargs)

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

  def hidden(
    self, params: Params, batch: Mapping[str, Int[Array, 'b _']], dropout_key: Array | None = None
  ) -> Float[Array, 'b t d']:
    """Returns hidden states whose `unembed` predicts batch['target'], all positions at once.

    Training and forced scoring use it.

    Args:
      params: the parameters.
      batch: 'source', 'target' and their '_segment' (several sentences a row; 0 is padding) and
        '_position'.
      dropout_key: None switches dropout off.
    """
    return self.features(params, batch, (), dropout_key).hidden

  def features(
    self,
    params: Params,
    batch: Mapping[str, Int[Array, 'b _']],
    taps: tuple[int, ...] = (),
    dropout_key: Array | None = None,
  ) -> Features:
    """Returns the states that drafts learn from: hidden (see `hidden`), of `taps`, the encoder's.

    Raises:
      UserError: layers that the model does not have.
    """
    check_taps(taps, self.layers)
    train = dropout_key is not None
    rngs = {'dropout': dropout_key} if train else {}
    return self._call(params, batch, train=train, taps=taps, method='__call__', rngs=rngs)

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
