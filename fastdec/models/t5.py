"""T5 and T5 v1.1 (Raffel et al. 2020): an encoder-decoder whose attention knows relative positions alone.

The layers are the Transformer's (`transformer_layers.py`), with RMSNorm, without biases, with a bias on the scores that
depends on how far a key is from its query; one table a stack, shared by its layers. Nodes of a tree have the positions
of their depths. There is no longest input, but nothing was learnt beyond the lengths of training.
"""

import dataclasses
import functools

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.cache.memory import WithMemory
from fastdec.models.api import Nodes, Params
from fastdec.models.attention import attend, node_mask, slot_positions
from fastdec.models.encoder_decoder import EncoderDecoder, Source
from fastdec.models.layers import project
from fastdec.models.t5_network import T5Config, T5Network, attend_unscaled, relative_bias, unscaled_queries
from fastdec.models.transformer_layers import Attend, Sees

__all__ = ['T5', 'T5Config']


@dataclasses.dataclass(frozen=True)
class T5(EncoderDecoder):
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: T5Config

  network = T5Network
  max_positions = None

  def init(self, key: Array) -> Params:
    """Fresh float32 parameters."""
    return unscaled_queries(super().init(key), self.config.d_kv)

  def encode(self, params: Params, inputs: Int[Array, 'b s']) -> Source:
    """Encodes source ids padded with `pad_id`."""
    mask = inputs != self.pad_id
    positions = jnp.arange(inputs.shape[1])[None]
    bias = relative_bias(params['encoder_bias'], positions, positions, self.config.max_distance, is_causal=False)
    sees = functools.partial(attend_unscaled, mask=mask[:, None, :], bias=bias)
    return Source(self._call(params, inputs, positions, sees, False, method='encode'), mask)

  def apply(
    self, params: Params, tokens: Int[Array, 'b n'], nodes: Nodes, cache: WithMemory, across: Attend = attend
  ) -> tuple[Float[Array, 'b n d'], tuple[()], WithMemory]:
    """See `models.api.Model.apply`; `across` is how queries meet the memory, called once by each layer in turn."""
    own, memory = cache.own, cache.memory
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    keys = slot_positions(nodes, own.length, own.slots)
    bias = relative_bias(params['decoder_bias'], positions, keys, self.config.max_distance, is_causal=True)
    sees = Sees(
      functools.partial(attend_unscaled, mask=node_mask(nodes, own.length, own.slots), bias=bias),
      functools.partial(across, mask=memory.mask[:, None, :], scale=1.0),
    )
    hidden, layers = self._call(params, tokens, positions, sees, memory.layers, own, method='decode')
    return hidden, (), WithMemory(dataclasses.replace(own, layers=layers), memory)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Logits by the matrix 'lm_head' where the parameters have one, else by the embedding."""
    if self.config.scales_logits:
      hidden = hidden * self.config.d_model**-0.5
    return project(hidden, params['lm_head'] if 'lm_head' in params else params['embedding'])
