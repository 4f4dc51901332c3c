"""Convolutional sequence to sequence (Gehring et al. 2017), fairseq's `fconv`.

Gated convolutions of learned positions and words, in the encoder centred, in the decoder over the past; attention in
every decoder layer, whose values are the encoder's output plus its input embedding. What decoding remembers does not
grow: the last inputs of each convolution (`cache/conv.py`). Weight normalisation is a way to train
(`training/weight_norm.py`), and not part of the model: kernels are what is multiplied by.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec.cache.conv import ConvCache
from fastdec.cache.memory import Memory, WithMemory
from fastdec.models.api import Nodes, Params, setting
from fastdec.models.attention import attend
from fastdec.models.encoder_decoder import EncoderDecoder
from fastdec.models.fconv_network import ARCHITECTURES, FConvConfig, Network, cached_reads, with_inputs
from fastdec.models.layers import project
from fastdec.models.transformer_layers import Attend

__all__ = ['ARCHITECTURES', 'FConv', 'FConvConfig']


@dataclasses.dataclass(frozen=True)
class FConv(EncoderDecoder):
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: FConvConfig

  network = Network
  max_positions = setting('max_positions')
  source_vocab_size = setting('source_vocab_size')

  def encode(self, params: Params, inputs: Int[Array, 'b s']) -> Memory:
    """Keys and values of source ids padded with `pad_id`, one entry for all decoder layers."""
    mask = inputs != self.pad_id
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)
    return Memory((self._call(params, inputs, positions, mask.astype(jnp.int32), False, method='encode'),), mask)

  def init_cache(self, params: Params, memory: Memory, rows: int, slots: int) -> WithMemory:
    """An empty cache over the memory; its size does not depend on `slots`."""
    sizes = [(before, width) for before, _, width in with_inputs(self.config.decoder_layers)]
    return WithMemory(ConvCache.empty(sizes, rows, self.config.dtype), memory)

  def apply(
    self, params: Params, tokens: Int[Array, 'b n'], nodes: Nodes, cache: WithMemory, across: Attend = attend
  ) -> tuple[Float[Array, 'b n d'], tuple[()], WithMemory]:
    """See `models.api.Model.apply`; `across` is how queries meet the memory."""
    own, memory = cache.own, cache.memory
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    reads = cached_reads(nodes, own, memory.layers[0], memory.mask, across)
    hidden, layers = self._call(params, tokens, positions, reads, method='decode')
    return hidden, (), WithMemory(ConvCache(layers, own.length), memory)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Logits by a matrix of their own where the parameters have one, else by the embedding."""
    y = project(hidden, params['output'] if 'output' in params else params['embedding'])
    return y + params['output_bias'].astype(y.dtype).reshape((1,) * (y.ndim - 1) + (-1,))
