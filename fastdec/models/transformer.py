"""The encoder-decoder Transformer (Vaswani et al. 2017), pre-norm as T2T's `transformer_base`, or post-norm.

One set of linen modules serves parallel training (`Transformer.hidden`: packed rows, shifted-right targets, no cache)
and incremental decoding (`Transformer.apply`: n nodes over an explicit cache). The modules are used as pure functions.
"""

import dataclasses
import functools

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.cache.memory import WithMemory
from fastdec.models.api import Nodes, Params, setting
from fastdec.models.attention import attend, node_mask
from fastdec.models.encoder_decoder import EncoderDecoder, Source
from fastdec.models.layers import project
from fastdec.models.transformer_layers import Attend, Sees
from fastdec.models.transformer_network import Network, TransformerConfig

__all__ = ['Transformer', 'TransformerConfig']


@dataclasses.dataclass(frozen=True)
class Transformer(EncoderDecoder):
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: TransformerConfig

  network = Network
  max_positions = setting('max_positions')
  source_vocab_size = setting('source_vocab_size')

  def encode(self, params: Params, inputs: Int[Array, 'b s']) -> Source:
    """Encodes source ids padded with `pad_id`."""
    mask = inputs != self.pad_id
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)
    sees = functools.partial(attend, mask=mask[:, None, :])
    return Source(self._call(params, inputs, positions, sees, False, method='encode'), mask)

  def apply(
    self, params: Params, tokens: Int[Array, 'b n'], nodes: Nodes, cache: WithMemory, across: Attend = attend
  ) -> tuple[Float[Array, 'b n d'], tuple[()], WithMemory]:
    """See `models.api.Model.apply`; `across` is how queries meet the memory, called once by each layer in turn."""
    own, memory = cache.own, cache.memory
    sees = Sees(
      functools.partial(attend, mask=node_mask(nodes, own.length, own.slots)),
      functools.partial(across, mask=memory.mask[:, None, :]),
    )
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    hidden, layers = self._call(params, tokens, positions, sees, memory.layers, own, method='decode')
    return hidden, (), WithMemory(dataclasses.replace(own, layers=layers), memory)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Logits by the embedding, or by a matrix of their own."""
    logits = project(hidden, params['embedding' if self.config.is_tied else 'output'])
    if not self.config.output_bias:
      return logits
    return logits + params['output_bias'].astype(logits.dtype).reshape((1,) * (logits.ndim - 1) + (-1,))
