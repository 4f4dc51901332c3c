"""The encoder-decoder Transformer (Vaswani et al. 2017), pre-norm as T2T's `transformer_base`, or post-norm.

One set of linen modules serves parallel training (`Transformer.hidden`: packed rows, shifted-right targets, no cache)
and incremental decoding (`Transformer.apply`: n nodes over an explicit cache). The modules are used as pure functions.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.cache.kv import KVCache
from fastdec.cache.memory import Memory, WithMemory
from fastdec.models.api import Nodes, Params
from fastdec.models.attention import attend, node_mask
from fastdec.models.layers import project
from fastdec.models.transformer_layers import Sees
from fastdec.models.transformer_network import Network, TransformerConfig

__all__ = ['Transformer', 'TransformerConfig']


@struct.pytree
class Source:
  """The encoder's output."""
  hidden: Float[Array, 'b s d']
  mask: Bool[Array, 'b s']


@dataclasses.dataclass(frozen=True)
class Transformer:
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: TransformerConfig

  fixed_length = None

  @property
  def vocab_size(self) -> int:
    return self.config.vocab_size

  @property
  def eos_ids(self) -> tuple[int, ...]:
    return self.config.eos_ids

  @property
  def pad_id(self) -> int:
    return self.config.pad_id

  @property
  def start_id(self) -> int:
    return self.config.start_id

  @property
  def suppressed_ids(self) -> tuple[int, ...]:
    return self.config.suppressed_ids

  @property
  def max_positions(self) -> int:
    return self.config.max_positions

  def _call(self, params: Params, *args: Any, method: str, **kwargs: Any) -> Any:
    return Network(self.config).apply({'params': params}, *args, method=method, **kwargs)

  def init(self, key: Array) -> Params:
    """Fresh float32 parameters."""
    ones = jnp.ones((1, 2), jnp.int32)
    batch = {f'{side}{part}': ones for side in ('source', 'target') for part in ('', '_segment', '_position')}
    return Network(self.config).init(key, batch, train=False)['params']

  def hidden(
    self, params: Params, batch: Mapping[str, Int[Array, 'b _']], dropout_key: Array | None = None
  ) -> Float[Array, 'b t d']:
    """Hidden states whose `unembed` predicts batch['target'], all positions at once (training, forced scoring).

    Args:
      params: the parameters.
      batch: 'source', 'target' and their '_segment' (several sentences a row; 0 is padding) and '_position'.
      dropout_key: None switches dropout off.
    """
    train = dropout_key is not None
    rngs = {'dropout': dropout_key} if train else {}
    return self._call(params, batch, train=train, method='__call__', rngs=rngs)

  def encode(self, params: Params, inputs: Int[Array, 'b s']) -> Source:
    """Encodes source ids padded with `pad_id`."""
    mask = inputs != self.pad_id
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)
    sees = functools.partial(attend, mask=mask[:, None, :])
    return Source(self._call(params, inputs, positions, sees, False, method='encode'), mask)

  def init_cache(self, params: Params, memory: Source, rows: int, slots: int) -> WithMemory:
    """An empty cache over the source's keys and values."""
    c = self.config
    own = KVCache.empty(c.decoder_layers, rows, c.heads, slots, c.head_width, c.dtype)
    return WithMemory(own, Memory(self._call(params, memory.hidden, method='memory'), memory.mask))

  def apply(
    self, params: Params, tokens: Int[Array, 'b n'], nodes: Nodes, cache: WithMemory
  ) -> tuple[Float[Array, 'b n d'], tuple[()], WithMemory]:
    """See `models.api.Model.apply`."""
    own, memory = cache.own, cache.memory
    sees = Sees(
      functools.partial(attend, mask=node_mask(nodes, own.length, own.slots)),
      functools.partial(attend, mask=memory.mask[:, None, :]),
    )
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    hidden, layers = self._call(params, tokens, positions, sees, memory.layers, own, method='decode')
    return hidden, (), WithMemory(dataclasses.replace(own, layers=layers), memory)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Logits by the tied embedding."""
    logits = project(hidden, params['embedding'])
    if not self.config.output_bias:
      return logits
    return logits + params['output_bias'].astype(logits.dtype).reshape((1,) * (logits.ndim - 1) + (-1,))
