"""Convolutional sequence to sequence (Gehring et al. 2017), fairseq's `fconv`.

Gated convolutions read words with learned positions: centred in the encoder, over the past in the
decoder. Every decoder layer attends to the source; values are the encoder's output plus its input
embedding. The cache keeps the last inputs of each convolution, and does not grow (`cache/conv.py`).
Weight normalisation belongs to training (`training/weight_norm.py`): the model has plain kernels.
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
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import Table
from fastdec.models.api import Capacity, Nodes, Params, check_special_ids, setting
from fastdec.models.attention import attend
from fastdec.models.convolution import node_frames, packed_frames
from fastdec.models.encoder_decoder import EncoderDecoder, Source
from fastdec.models.layers import Dense, Dropout, biased, look_up, project
from fastdec.models.linen import fed_tokens, same_segment
from fastdec.models.stacks import CHOICES, Attend
from fastdec.models.taps import Features

# keeps the variance of a sum of two (Gehring et al. 2017, section 3.4)
HALF = math.sqrt(0.5)
Layers = tuple[tuple[int, ...], ...]  # (channels, kernel width) of each
_EN_DE = ((512, 3),) * 9 + ((1024, 3),) * 4 + ((2048, 1),) * 2
_EN_FR = ((512, 3),) * 6 + ((768, 3),) * 4 + ((1024, 3),) * 3 + ((2048, 1), (4096, 1))


def _sizes(d_embed: int, d_out: int, encoder: Layers, decoder: Layers) -> dict[str, int | Layers]:
  return {'d_embed': d_embed, 'd_out': d_out, 'encoder_layers': encoder, 'decoder_layers': decoder}


# fairseq's sizes, by its names: FConvConfig(vocab_size=..., **ARCHITECTURES['fconv_iwslt_de_en']).
ARCHITECTURES = {
  'fconv': _sizes(512, 256, ((512, 3),) * 20, ((512, 3),) * 20),
  'fconv_iwslt_de_en': _sizes(256, 256, ((256, 3),) * 4, ((256, 3),) * 3),
  'fconv_wmt_en_ro': _sizes(512, 512, ((512, 3),) * 20, ((512, 3),) * 20),
  'fconv_wmt_en_de': _sizes(768, 512, _EN_DE, _EN_DE),
  'fconv_wmt_en_fr': _sizes(768, 512, _EN_FR, _EN_FR),
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
  is_tied: bool = False  # logits by the target's embedding
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
          f'{name}=() is not possible: give one pair (channels, kernel width) at least'
        )
      for i, layer in enumerate(layers):
        if len(layer) != 2 or min(layer) < 1:
          raise UserError(
            f'{name}[{i}]={layer} is not possible: give (channels, kernel width), both 1 or more'
          )
    sizes = ('d_embed', 'd_out', 'max_positions', 'source_vocab_size')
    for name in sizes[: 3 if self.source_vocab_size is None else 4]:
      if getattr(self, name) < 1:
        raise UserError(f'{name}={getattr(self, name)} is not possible: give 1 or more')
    if self.is_tied and self.d_out != self.d_embed:
      raise UserError(
        f'd_out={self.d_out} is not possible with is_tied: give'
        f' d_embed={self.d_embed}, or is_tied=False'
      )
    if self.dtype not in CHOICES['dtype']:
      raise UserError(
        f'dtype={self.dtype!r} is unknown: choose one of {", ".join(CHOICES["dtype"])}'
      )
    if not 0 <= self.dropout < 1:
      raise UserError(f'dropout={self.dropout} is not possible: give a number from 0 to below 1')

  @property
  def d_model(self) -> int:
    """Width of the hidden states that prediction heads read."""
    return self.d_out


def normal(variance: float = 1.0) -> Callable[..., Array]:
  """Initialiser of kernels from N(0, variance / inputs) (Gehring et al. 2017, section 3.5)."""
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

  def gated(self, frames: Float[Array, 'b n f']) -> Float[Array, 'b n d']:
    y = self.conv(frames)
    return y[:, :, 0] * nn.sigmoid(y[:, :, 1])


class EncoderLayer(Convolution):
  """A centred convolution."""

  def __call__(
    self, x: Float[Array, 'b s c'], segment: Int[Array, 'b s'], train: bool
  ) -> Float[Array, 'b s d']:
    first = -((self.width - 1) // 2)
    frames = packed_frames(self.drop(x, train), segment, range(first, first + self.width))
    return (self.gated(frames) + self.residual(x)) * HALF


@dataclasses.dataclass(frozen=True)
class Reads:
  """Sources that a decoder layer reads beside its inputs."""

  # (layer, its inputs) -> frames, the cache written
  frames: Callable[[int, Array], tuple[Array, LayerConv | None]]
  memory: LayerKV  # keys: the encoder's output; values: with its input embedding
  mask: Bool[Array, 'b #n s']  # source tokens to attend to
  across: Attend


class DecoderLayer(Convolution):
  """A causal convolution and its attention to the source, as a residual within the residual."""

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
    y = self.gated(frames)
    y = (self._attended(y, embedded, reads) + y) * HALF
    return (y + self.residual(x)) * HALF, cached

  def _attended(
    self, y: Float[Array, 'b n d'], embedded: Float[Array, 'b n e'], reads: Reads
  ) -> Array:
    """Attends by equations 1 and 2, times sqrt(m): a mean of m source tokens varies as one."""
    q = (self.query(y) + embedded) * HALF
    # the beams of a source are several queries of its memory
    q = q.reshape(len(reads.mask), -1, 1, q.shape[-1])
    context = reads.across(q, reads.memory, mask=reads.mask, scale=1.0)
    tokens = jnp.maximum(reads.mask.sum(-1), 1).astype(context.dtype)
    context = context * jnp.sqrt(tokens)[:, :, None, None]
    return self.out(context.reshape(embedded.shape))


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
    self.encoder = [EncoderLayer(c, *sizes) for sizes in with_inputs(c.encoder_layers)]
    self.decoder = [DecoderLayer(c, *sizes) for sizes in with_inputs(c.decoder_layers)]

    def dense(width, variance=1.0):
      return Dense((width,), True, c.dtype, normal(variance))

    self.encoder_enter = dense(c.encoder_layers[0][0], 1 - c.dropout)
    self.decoder_enter = dense(c.decoder_layers[0][0], 1 - c.dropout)
    self.encoder_leave, self.decoder_leave = dense(c.d_embed), dense(c.d_out)
    if not c.is_tied:  # read by `FConv.unembed`, as the bias is
      self.param('output', normal(1 - c.dropout), (c.vocab_size, c.d_out))
    self.param('output_bias', nn.initializers.zeros, (c.vocab_size,))
    self.drop = Dropout(c.dropout)

  def encode(
    self,
    tokens: Int[Array, 'b s'],
    positions: Int[Array, 'b s'],
    segment: Int[Array, 'b s'],
    train: bool,
  ) -> LayerKV:
    """Returns keys and values of the source, the same for every decoder layer, as one head."""
    c = self.config
    table = self.embedding if c.source_vocab_size is None else self.source_embedding
    embedded = self._embed(look_up(table, tokens), self.source_positions[positions], train)
    x = self.encoder_enter(embedded)
    for layer in self.encoder:
      x = layer(x, segment, train)
    x = _gradient_times(self.encoder_leave(x), 1 / (2 * len(c.decoder_layers)))
    return LayerKV(x[:, None], ((x + embedded) * HALF)[:, None])

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
    embedded = self._embed(look_up(self.embedding, tokens), self.target_positions[positions], train)
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

    def causal(i, x):
      return (packed_frames(x, target, range(1 - c.decoder_layers[i][1], 1)), None)

    reads = Reads(causal, memory, same_segment(target, source), attend)
    inputs = fed_tokens(batch, c.start_id)
    hidden, states, _ = self.decode(inputs, batch['target_position'], reads, train, taps)
    return Features(hidden, states, source_states(memory))

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
    across: Attend,
  ) -> Any:
    """Reads the nodes of a call; see `TextStacks.decode_nodes`."""
    own, memory = cache.own, cache.memory

    def cached(i: int, x: Float[Array, 'b n c']) -> tuple[Array, LayerConv]:
      layer = own.layers[i].write(x)
      return node_frames(layer, nodes), layer

    reads = Reads(cached, memory.layers[0], memory.mask[:, None, :], across)
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    return self.decode(tokens, positions, reads, taps=taps)

  def _embed(
    self, words: Float[Array, 'b n e'], positions: Float[Array, 'b n e'], train: bool
  ) -> Array:
    return self.drop((words + positions).astype(self.config.dtype), train)


def source_states(memory: LayerKV) -> Float[Array, 'b s e']:
  """Returns the values of attention, for drafts to read.

  Like the states of a Transformer's encoder, they tell the token and its context; keys do not."""
  return memory.v[:, 0]


def with_inputs(layers: Layers) -> list[tuple[int, int, int]]:
  """Returns (input channels, channels, kernel width) of each layer; equal channels in the first."""
  inputs = (layers[0][0], *(channels for channels, _ in layers))
  return [
    (before, channels, width) for before, (channels, width) in zip(inputs, layers, strict=False)
  ]


def _gradient_times(x: Array, factor: float) -> Array:
  """Returns x with its gradient times `factor`: each decoder layer reads it twice (section 3.5)."""
  kept = jax.lax.stop_gradient(x)
  return kept + factor * (x - kept)


@dataclasses.dataclass(frozen=True)
class FConv(EncoderDecoder):
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: FConvConfig

  network = Network
  products = (KERNELS, r'(^|/)((source_)?embedding|output)$')  # see `kernels.products`
  max_positions = setting('max_positions')
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
    """Returns the input of a draft's cross-attention; see `models.api.source_of`."""
    return Source(source_states(memory.layers[0]), memory.mask)

  def init_cache(
    self, params: Params, memory: Memory, rows: int, slots: int | Capacity
  ) -> WithMemory:
    """Returns an empty cache over the memory; its size does not depend on the text's length."""
    sizes = [(before, width) for before, _, width in with_inputs(self.config.decoder_layers)]
    back = slots.back if isinstance(slots, Capacity) else 0
    return WithMemory(ConvCache.empty(sizes, rows, self.config.dtype, back), memory)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns logits by the matrix 'output' if the parameters have one, else by the embedding."""
    logits = project(hidden, params['output'] if 'output' in params else params['embedding'])
    return biased(logits, params['output_bias'])
