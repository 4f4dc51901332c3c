"""Convolutional sequence to sequence learning (Gehring et al. 2017), fairseq's `fconv`.

Gated convolutions read words with learned positions: centred in the encoder, over the past in the
decoder. Every decoder layer attends to the source; values are the encoder's output plus its input
embedding. The cache keeps the last inputs of each convolution, and does not grow (`cache/conv.py`).
Weight normalisation is a matter of training (`training/weight_norm.py`): the model has plain
kernels.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from fastdec.cache.conv import ConvCache, LayerConv
from fastdec.cache.kv import LayerKV
from fastdec.cache.memory import Memory, WithMemory
from fastdec.errors import UserError
from fastdec.fields import check_choices, check_shares, check_sizes
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import Table
from fastdec.models.api import Capacity, Nodes, Params, check_special_ids, setting
from fastdec.models.attention import attend
from fastdec.models.convolution import node_frames, packed_frames
from fastdec.models.encoder_decoder import EncoderDecoder, Source
from fastdec.models.layers import Dense, Dropout, add_bias, look_up, project
from fastdec.models.linen import fed_tokens, same_segment
from fastdec.models.stacks import DTYPES, Attend
from fastdec.models.taps import Features

# a sum of two times this has the variance of one of them (Gehring et al. 2017, section 3.4)
HALF = math.sqrt(0.5)
Layers = tuple[tuple[int, ...], ...]  # (channels, kernel width) of each
_EN_DE = ((512, 3),) * 9 + ((1024, 3),) * 4 + ((2048, 1),) * 2
_EN_FR = ((512, 3),) * 6 + ((768, 3),) * 4 + ((1024, 3),) * 3 + ((2048, 1), (4096, 1))


# fairseq's sizes, by its names: FConvConfig(vocab_size=..., **ARCHITECTURES['fconv_iwslt_de_en']).
ARCHITECTURES: dict[str, dict[str, Any]] = {
  'fconv': {
    'd_embed': 512,
    'd_out': 256,
    'encoder_layers': ((512, 3),) * 20,
    'decoder_layers': ((512, 3),) * 20,
  },
  'fconv_iwslt_de_en': {
    'd_embed': 256,
    'd_out': 256,
    'encoder_layers': ((256, 3),) * 4,
    'decoder_layers': ((256, 3),) * 3,
  },
  'fconv_wmt_en_ro': {
    'd_embed': 512,
    'd_out': 512,
    'encoder_layers': ((512, 3),) * 20,
    'decoder_layers': ((512, 3),) * 20,
  },
  'fconv_wmt_en_de': {
    'd_embed': 768,
    'd_out': 512,
    'encoder_layers': _EN_DE,
    'decoder_layers': _EN_DE,
  },
  'fconv_wmt_en_fr': {
    'd_embed': 768,
    'd_out': 512,
    'encoder_layers': _EN_FR,
    'decoder_layers': _EN_FR,
  },
}


@dataclasses.dataclass(frozen=True)
class FConvConfig:
  """Sizes and options; the defaults are fairseq's `fconv_wmt_en_de`, joint vocabulary of 32,000."""

  vocab_size: int = 32000
  source_vocab_size: int | None = None  # None: source and target share ids and embedding
  d_embed: int = 768
  d_out: int = 512  # width of the hidden states before the logits
  encoder_layers: Layers = _EN_DE
  decoder_layers: Layers = _EN_DE
  is_tied: bool = False  # logits by the target's embedding matrix
  dropout: float = 0.1  # of embeddings, of each convolution's input and of the last hidden states
  max_positions: int = 1024
  pad_id: int = 0
  eos_ids: tuple[int, ...] = (1,)
  start_id: int = 0
  suppressed_ids: tuple[int, ...] = (0,)
  dtype: str = 'float32'  # of the computation; parameters are float32 until cast

  def __post_init__(self) -> None:
    check_special_ids(self)
    for name in ('encoder_layers', 'decoder_layers'):
      layers = getattr(self, name)
      if not layers:
        raise UserError(
          f'{name}=() is not possible: give at least one pair (channels, kernel width)'
        )
      for i, layer in enumerate(layers):
        if len(layer) != 2 or min(layer) < 1:
          raise UserError(
            f'{name}[{i}]={layer} is not possible: give (channels, kernel width), both 1 or more'
          )
    check_sizes(self, 'd_embed', 'd_out', 'max_positions', 'source_vocab_size')
    if self.is_tied and self.d_out != self.d_embed:
      raise UserError(
        f'd_out={self.d_out} is not possible with is_tied: give'
        f' d_embed={self.d_embed}, or is_tied=False'
      )
    check_choices(self, dtype=DTYPES)
    check_shares(self, 'dropout')

  @property
  def d_model(self) -> int:
    """Width of the hidden states that prediction heads read; see `EncoderDecoder`."""
    return self.d_out


def normal(variance: float = 1.0) -> Callable[..., Array]:
  """Initialiser of kernels: N(0, variance / inputs) (Gehring et al. 2017, section 3.5)."""
  return lambda key, shape: jax.random.normal(key, shape) * math.sqrt(variance / shape[-1])


class Convolution(nn.Module):
  """A gated linear unit over frames, v * sigmoid(g) (Dauphin et al. 2016), and its residual."""

  config: FConvConfig
  inputs: int
  channels: int
  width: int  # of the kernel

  def setup(self) -> None:
    c = self.config
    self.conv = Dense((2, self.channels), True, c.dtype, normal(4 * (1 - c.dropout)))
    if self.inputs != self.channels:
      self.skip = Dense((self.channels,), True, c.dtype, normal())
    self.drop = Dropout(c.dropout)

  def residual(self, x: Float[Array, 'b n c']) -> Float[Array, 'b n d']:
    return x if self.inputs == self.channels else self.skip(x)

  def convolve(self, frames: Float[Array, 'b n f']) -> Float[Array, 'b n d']:
    y = self.conv(frames)
    return y[:, :, 0] * nn.sigmoid(y[:, :, 1])


class EncoderLayer(Convolution):
  """A centred convolution."""

  def __call__(
    self, x: Float[Array, 'b s c'], segment: Int[Array, 'b s'], train: bool
  ) -> Float[Array, 'b s d']:
    first = -((self.width - 1) // 2)
    offsets = range(first, first + self.width)
    frames = packed_frames(self.drop(x, train), segment, offsets)
    y = self.convolve(frames)
    return (y + self.residual(x)) * HALF


@dataclasses.dataclass(frozen=True)
class Reads:
  """How a decoder layer reads its past inputs and the source."""

  # (layer, its inputs) -> frames, and the layer's cache with the inputs written
  frames: Callable[[int, Array], tuple[Array, LayerConv | None]]
  memory: LayerKV  # keys: the encoder's output; values: with its input embedding
  mask: Bool[Array, 'b #n s']  # source tokens to attend to
  across: Attend


class DecoderLayer(Convolution):
  """A causal convolution and attention to the source, which has its own residual inside."""

  def setup(self) -> None:
    super().setup()
    c = self.config
    self.query = Dense((c.d_embed,), True, c.dtype, normal())
    self.out = Dense((self.channels,), True, c.dtype, normal())

  def __call__(
    self,
    x: Float[Array, 'b n c'],
    embedded: Float[Array, 'b n e'],
    i: int,
    reads: Reads,
    train: bool,
  ) -> tuple[Float[Array, 'b n d'], LayerConv | None]:
    frames, cached = reads.frames(i, self.drop(x, train))
    y = self.convolve(frames)

    # Attention (equations 1 and 2). The beams of a source are several queries of its memory.
    q = (self.query(y) + embedded) * HALF
    q = q.reshape(len(reads.mask), -1, 1, q.shape[-1])
    context = reads.across(q, reads.memory, mask=reads.mask, scale=1.0)

    # Times sqrt(m), so that a mean of m source tokens varies like a single one.
    tokens = jnp.maximum(reads.mask.sum(-1), 1).astype(context.dtype)
    context = context * jnp.sqrt(tokens)[:, :, None, None]
    attended = self.out(context.reshape(embedded.shape))

    y = (attended + y) * HALF
    return (y + self.residual(x)) * HALF, cached


class Network(nn.Module):
  """All parameters, under one roof."""

  config: FConvConfig

  def setup(self) -> None:
    c = self.config
    small = nn.initializers.normal(0.1)
    self.embedding = self.param('embedding', small, (c.vocab_size, c.d_embed))
    if c.source_vocab_size is not None:
      self.source_embedding = self.param(
        'source_embedding', small, (c.source_vocab_size, c.d_embed)
      )
    self.source_positions = self.param('source_positions', small, (c.max_positions, c.d_embed))
    self.target_positions = self.param('target_positions', small, (c.max_positions, c.d_embed))
    self.encoder = [EncoderLayer(c, *sizes) for sizes in list_sizes(c.encoder_layers)]
    self.decoder = [DecoderLayer(c, *sizes) for sizes in list_sizes(c.decoder_layers)]
    kept = normal(1 - c.dropout)  # of inputs with dropout
    self.encoder_enter = Dense((c.encoder_layers[0][0],), True, c.dtype, kept)
    self.decoder_enter = Dense((c.decoder_layers[0][0],), True, c.dtype, kept)
    self.encoder_leave = Dense((c.d_embed,), True, c.dtype, normal())
    self.decoder_leave = Dense((c.d_out,), True, c.dtype, normal())
    if not c.is_tied:  # `FConv.unembed` reads it, and the bias too
      self.param('output', kept, (c.vocab_size, c.d_out))
    self.param('output_bias', nn.initializers.zeros, (c.vocab_size,))
    self.drop = Dropout(c.dropout)

  def encode(
    self,
    tokens: Int[Array, 'b s'],
    positions: Int[Array, 'b s'],
    segment: Int[Array, 'b s'],
    train: bool,
  ) -> LayerKV:
    """Returns the source's keys and values, which all decoder layers share, as one head."""
    c = self.config
    table = self.embedding if c.source_vocab_size is None else self.source_embedding
    embedded = look_up(table, tokens) + self.source_positions[positions]
    embedded = self.drop(embedded.astype(c.dtype), train)
    x = self.encoder_enter(embedded)
    for layer in self.encoder:
      x = layer(x, segment, train)
    x = self.encoder_leave(x)

    # Each decoder layer reads x twice, so its gradient is divided by their number (section 3.5).
    fixed = jax.lax.stop_gradient(x)
    x = fixed + (x - fixed) * (1 / (2 * len(c.decoder_layers)))
    return LayerKV.of(x[:, None], ((x + embedded) * HALF)[:, None])

  def decode(
    self,
    tokens: Int[Array, 'b n'],
    positions: Int[Array, 'b n'],
    reads: Reads,
    train: bool = False,
    taps: tuple[int, ...] = (),
  ) -> tuple[
    Float[Array, 'b n d'], tuple[Float[Array, 'b n _'], ...], tuple[LayerConv | None, ...]
  ]:
    """Returns the nodes' states, the states of `taps`, and the layers of the cache."""
    embedded = look_up(self.embedding, tokens) + self.target_positions[positions]
    embedded = self.drop(embedded.astype(self.config.dtype), train)
    x = self.decoder_enter(embedded)
    states, entries = [x], []
    for i, layer in enumerate(self.decoder):
      x, entry = layer(x, embedded, i, reads, train)
      states.append(x)
      entries.append(entry)
    return self.drop(self.decoder_leave(x), train), tuple(states[k] for k in taps), tuple(entries)

  def __call__(
    self, batch: Mapping[str, Array], train: bool, taps: tuple[int, ...] = ()
  ) -> Features:
    """Teacher-forced states of packed rows; see `LinenModel.features`."""
    c = self.config
    source, target = batch['source_segment'], batch['target_segment']
    memory = self.encode(batch['source'], batch['source_position'], source, train)

    def read_past(i, x):
      return packed_frames(x, target, range(1 - c.decoder_layers[i][1], 1)), None

    reads = Reads(read_past, memory, same_segment(target, source), attend)
    inputs = fed_tokens(batch, c.start_id)
    hidden, states, _ = self.decode(inputs, batch['target_position'], reads, train, taps)
    return Features(hidden, states, memory.v[:, 0])

  def encode_source(self, tokens: Int[Array, 'b s'], mask: Bool[Array, 'b s']) -> LayerKV:
    """Encodes a source in each row; the mask is false on padding."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return self.encode(tokens, positions, mask.astype(jnp.int32), False)

  def decode_nodes(
    self,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: WithMemory,
    taps: tuple[int, ...],
    across: Attend = attend,
  ) -> Any:
    """Reads the nodes of a call; see `TextStacks.decode_nodes`."""
    own, memory = cache.own, cache.memory

    def read_cache(i: int, x: Float[Array, 'b n c']) -> tuple[Array, LayerConv]:
      layer = own.layers[i].write(x)
      return node_frames(layer, nodes), layer

    reads = Reads(read_cache, memory.layers[0], memory.mask[:, None, :], across)
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    return self.decode(tokens, positions, reads, taps=taps)


def list_sizes(layers: Layers) -> list[tuple[int, int, int]]:
  """Returns (input channels, channels, kernel width) of each layer.

  The first layer has as many input channels as channels."""
  sizes, inputs = [], layers[0][0]
  for channels, width in layers:
    sizes.append((inputs, channels, width))
    inputs = channels
  return sizes


@dataclasses.dataclass(frozen=True)
class FConv(EncoderDecoder):
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: FConvConfig

  # The last layer has a width of its own.
  first_layers = None  # pyright: ignore[reportAssignmentType]
  network = Network
  products = (KERNELS, r'(^|/)((source_)?embedding|output)$')  # see `kernels.products`
  source_vocab_size = setting('source_vocab_size')

  @property
  def layers(self) -> int:
    return len(self.config.decoder_layers)

  def partition(self, devices: int) -> Table:
    """Splits by words and gated channels, not attention's single head; see `kernels.sharding`."""
    return (
      (r'(^|/)((source_)?embedding|output|output_bias)$', P('model')),
      (r'/conv/(kernel|bias)$', P(None, 'model')),
    )

  def encode(self, params: Params, inputs: Int[Array, 'b s']) -> Memory:
    """Encodes source ids padded with `pad_id`: one entry for all decoder layers."""
    inputs, mask = self.unpadded(inputs)
    return Memory((self._call(params, inputs, mask, method='encode_source'),), mask)

  def source(self, memory: Memory) -> Source:
    """Returns the input of a draft's cross-attention; see `models.api.source_of`.

    Values, like the states of a Transformer's encoder, contain the token and its context; keys have
    only the context."""
    return Source(memory.layers[0].v[:, 0], memory.mask)

  def init_cache(
    self, params: Params, memory: Memory, rows: int, slots: int | Capacity
  ) -> WithMemory:
    """Returns an empty cache over the memory; its size does not depend on the text's length."""
    sizes, back = [], 0
    for inputs, _, width in list_sizes(self.config.decoder_layers):
      sizes.append((inputs, width))
    if isinstance(slots, Capacity):
      back = slots.back
    own = ConvCache.empty(sizes, rows, self.config.dtype, back)
    return WithMemory(own, memory)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns logits by the matrix 'output' if the parameters have one, else by the embedding."""
    logits = project(hidden, params['output' if 'output' in params else 'embedding'])
    return add_bias(logits, params['output_bias'])
