"""The encoder-decoder Transformer (Vaswani et al. 2017), pre-norm like T2T's, or post-norm.

One set of linen modules serves parallel training (`Transformer.hidden`: packed rows, shifted-right
targets, no cache) and incremental decoding (`Transformer.apply`: n nodes over an explicit cache);
see `encoder_decoder.py`. The modules are used as pure functions.
"""

import dataclasses

import flax.linen as nn
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from fastdec.fields import check_choices, check_sizes
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import Table
from fastdec.models.api import Params, check_special_ids, setting
from fastdec.models.encoder_decoder import EncoderDecoder, TextStacks
from fastdec.models.layers import add_bias, look_up, project, round_to_type, sinusoids
from fastdec.models.stacks import PARTITION, StackConfig


@dataclasses.dataclass(frozen=True)
class TransformerConfig(StackConfig):
  """Sizes and options; the defaults are T2T's `transformer_base` v3 over a vocabulary of 32,000."""

  vocab_size: int = 32000
  # of a source with its own ids and embedding; None: it shares the target's
  source_vocab_size: int | None = None
  positions: str = 'sinusoidal'  # or 'learned'
  first_position: int = 0  # of sinusoids
  max_positions: int = 1024
  embedding_norm: bool = False  # after embeddings and positions, before the first layer
  scales_embedding: bool = True  # times sqrt(d_model)
  is_tied: bool = True  # logits by the embedding
  output_bias: bool = False  # on the logits
  decoder_heads: int | None = None  # None: the encoder's number
  decoder_d_ff: int | None = None  # None: as wide as the encoder's
  pad_id: int = 0
  eos_ids: tuple[int, ...] = (1,)
  start_id: int = 0  # T2T shifts zeros in
  suppressed_ids: tuple[int, ...] = (0,)

  def __post_init__(self) -> None:
    super().__post_init__()
    check_special_ids(self)
    check_choices(self, positions=('sinusoidal', 'learned'))
    check_sizes(self, 'max_positions', 'source_vocab_size')
    if self.of_decoder is not self:
      self.of_decoder._check_heads()

  @property
  def of_decoder(self) -> 'TransformerConfig':
    if self.decoder_heads is None and self.decoder_d_ff is None:
      return self
    heads, d_ff = self.decoder_heads or self.heads, self.decoder_d_ff or self.d_ff
    return dataclasses.replace(self, heads=heads, d_ff=d_ff, decoder_heads=None, decoder_d_ff=None)


class Network(TextStacks):
  """All parameters, under one roof."""

  config: TransformerConfig

  def setup(self) -> None:
    super().setup()
    c = self.config
    d, scale = c.d_model, nn.initializers.normal(c.d_model**-0.5)
    self.embedding = self.source_embedding = self.param('embedding', scale, (c.vocab_size, d))
    if c.source_vocab_size is not None:
      self.source_embedding = self.param('source_embedding', scale, (c.source_vocab_size, d))
    if not c.is_tied:  # `Transformer.unembed` reads it, and the bias too
      self.param('output', scale, (c.vocab_size, d))
    if c.positions == 'learned':
      self.source_positions = self.param('source_positions', scale, (c.max_positions, c.d_model))
      self.target_positions = self.param('target_positions', scale, (c.max_positions, c.d_model))
    if c.embedding_norm:
      self.source_embedding_norm, self.target_embedding_norm = c.make_norm(), c.make_norm()
    if c.output_bias:
      self.param('output_bias', nn.initializers.zeros, (c.vocab_size,))

  def embed(
    self, tokens: Int[Array, 'b n'], positions: Int[Array, 'b n'], side: str, train: bool
  ) -> Float[Array, 'b n d']:
    """Embeds tokens, with scaling, positions and a norm by the config."""
    # The signal of the positions.
    c, is_source = self.config, side == 'source'
    if c.positions == 'sinusoidal':
      signal = sinusoids(positions + c.first_position, c.d_model)
    else:
      learned = self.source_positions if is_source else self.target_positions
      signal = learned[positions]

    embedding = self.source_embedding if is_source else self.embedding
    x = look_up(embedding, tokens).astype(c.dtype) * (c.d_model**0.5 if c.scales_embedding else 1.0)
    x = round_to_type(x) + signal.astype(c.dtype)
    if c.embedding_norm:
      norm = self.source_embedding_norm if is_source else self.target_embedding_norm
      x = norm(x)
    return self.drop(x, train)


@dataclasses.dataclass(frozen=True)
class Transformer(EncoderDecoder):
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: TransformerConfig

  network = Network
  reads_paths = True
  products = (KERNELS, r'(^|/)((source_)?embedding|output)$')  # see `kernels.products`
  source_vocab_size = setting('source_vocab_size')

  def partition(self, devices: int) -> Table:
    """Splits embeddings and logits by words, the rest as `stacks`; see `kernels.sharding`."""
    return ((r'(^|/)((source_)?embedding|output)$', P('model')), *PARTITION)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns logits by the embedding, or by a matrix of their own."""
    logits = project(hidden, params['embedding' if self.config.is_tied else 'output'])
    if self.config.output_bias:
      logits = add_bias(logits, params['output_bias'])
    return logits
