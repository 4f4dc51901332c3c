"""The layers and the two stacks of Transformers, as linen modules for training and for decoding.

Models differ in how a layer's queries read keys and values: they pass this as a function (`Sees`).
"""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from fastdec.cache.kv import KVCache, LayerKV, Own
from fastdec.errors import UserError
from fastdec.fields import check_choices, check_shares, check_sizes
from fastdec.kernels.sharding import Table
from fastdec.models.layers import Dense, Dropout, LayerNorm, make_around

ACTIVATIONS = {
  'relu': nn.relu,
  'gelu': nn.gelu,  # by tanh, as in T2T and the first GPT
  'exact_gelu': functools.partial(nn.gelu, approximate=False),
  'swish': nn.swish,
}
DTYPES = ('float32', 'bfloat16', 'float16', 'float64')
# (q [b, n, h, p], kv, drop=...) -> [b, n, h, p]; see `models/attention.py`
Attend = Callable[..., Array]

# Shoeybi et al. 2019 (Megatron-LM): the first product of a pair is split over its outputs, the
# second over its inputs, so each pair needs one sum over devices. Attention's first product is
# split by heads: kernels are [3 or 2, heads, width, inputs]. A gated layer's first kernel is [2,
# outputs, inputs], so that a device has the gates of its own outputs.
PARTITION: Table = (
  (r'/(qkv|kv|gate_w1)/(kernel|bias)$', P(None, 'model')),
  (r'/(q|w1)/(kernel|bias)$', P('model')),
  (r'/(out|w2)/kernel$', P(None, 'model')),
)


@dataclasses.dataclass(frozen=True)
class StackConfig:
  """Sizes and options of encoder and decoder; the defaults are T2T's `transformer_base` v3."""

  d_model: int = 512
  d_ff: int = 2048
  heads: int = 8
  encoder_layers: int = 6
  decoder_layers: int = 6
  norm: str = 'pre'  # 'pre' (T2T v2, v3) or 'post' (Vaswani et al., fairseq, the Image Transformer)
  norm_epsilon: float = 1e-6
  activation: str = 'relu'
  attention_bias: bool = False
  dropout: float = 0.1  # after each sublayer and on the embeddings
  attention_dropout: float = 0.1
  activation_dropout: float = 0.1
  dtype: str = 'float32'  # of the computation; parameters are float32 until cast

  # T5 differs in these
  has_mlp_bias = True
  is_gated = False  # act(x W) * (x V) in the feed-forward layers
  has_centred_norms = True

  def __post_init__(self) -> None:
    check_choices(self, norm=('pre', 'post'), activation=ACTIVATIONS, dtype=DTYPES)
    check_sizes(self, 'd_model', 'd_ff', 'heads', 'encoder_layers', 'decoder_layers')
    check_shares(self, 'dropout', 'attention_dropout', 'activation_dropout')
    if not 0 <= self.norm_epsilon < 1:
      raise UserError(f'norm_epsilon={self.norm_epsilon} is not possible: give a number below 1')
    self._check_heads()

  def _check_heads(self) -> None:
    if self.d_model % self.heads:
      raise UserError(f'd_model={self.d_model} is not divisible by heads={self.heads}')

  @property
  def head_width(self) -> int:
    return self.d_model // self.heads

  @property
  def of_decoder(self) -> 'StackConfig':
    """The config of the decoder's layers, which may have different sizes."""
    return self

  def make_norm(self) -> nn.Module:
    return LayerNorm(self.norm_epsilon, self.dtype, self.has_centred_norms)


class Attention(nn.Module):
  """Multi-head attention. `keys_values` is separate, so that a memory is projected only once."""

  config: StackConfig
  is_self: bool

  def setup(self) -> None:
    c = self.config
    width, bias = c.head_width, c.attention_bias
    if self.is_self:
      self.qkv = Dense((3, c.heads, width), bias, c.dtype)  # one product instead of three
    else:
      self.q = Dense((c.heads, width), bias, c.dtype)
      self.kv = Dense((2, c.heads, width), bias, c.dtype)
    self.out = Dense((c.d_model,), bias, c.dtype)
    self.drop = Dropout(c.attention_dropout)

  def queries_and_own(self, x: Float[Array, 'b n d']) -> tuple[Array, Own]:
    """Returns self-attention's queries [b, n, h, p] of x, and its own keys and values."""
    qkv = self.qkv(x)
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    return q, (k.swapaxes(1, 2), v.swapaxes(1, 2))

  def keys_values(self, memory: Float[Array, 'b s d']) -> LayerKV:
    """Returns cross-attention's keys and values of the memory."""
    kv = self.kv(memory)
    k, v = kv[:, :, 0], kv[:, :, 1]
    return LayerKV.of(k.swapaxes(1, 2), v.swapaxes(1, 2))

  def __call__(self, q: Float[Array, 'b n h p'], kv: LayerKV, attend: Attend, train: bool) -> Array:
    attended = attend(q, kv, drop=lambda weights: self.drop(weights, train))
    return self.out(attended.reshape(*attended.shape[:2], -1))


class FeedForward(nn.Module):
  """act(x W1) W2 with biases or without, or gated, (act(x W) * (x V)) W2 (Shazeer 2020)."""

  config: StackConfig

  @nn.compact
  def __call__(self, x: Float[Array, 'b n d'], train: bool) -> Float[Array, 'b n d']:
    c = self.config
    act, bias = ACTIVATIONS[c.activation], c.has_mlp_bias
    if c.is_gated:
      both = Dense((2, c.d_ff), bias, c.dtype, name='gate_w1')(x)  # one product instead of two
      hidden = act(both[..., 0, :]) * both[..., 1, :]
    else:
      hidden = act(Dense((c.d_ff,), bias, c.dtype, name='w1')(x))
    hidden = Dropout(c.activation_dropout)(hidden, train)
    return Dense((c.d_model,), bias, c.dtype, name='w2')(hidden)


class Sublayer(nn.Module):
  """The residual of a sublayer: pre-norm x + drop(f(norm(x))), post-norm norm(x + drop(f(x)))."""

  config: StackConfig

  def setup(self) -> None:
    self.norm = self.config.make_norm()
    self.drop = Dropout(self.config.dropout)

  def enter(self, x: Float[Array, 'b n d']) -> Float[Array, 'b n d']:
    """Returns the input of f."""
    return self.norm(x) if self.config.norm == 'pre' else x

  def leave(
    self, x: Float[Array, 'b n d'], y: Float[Array, 'b n d'], train: bool
  ) -> Float[Array, 'b n d']:
    """Returns the sublayer's output, for y from f."""
    x = x + self.drop(y, train)
    if self.config.norm == 'post':
      x = self.norm(x)
    return x


class EncoderLayer(nn.Module):
  """Self-attention and a feed-forward layer."""

  config: StackConfig

  def setup(self) -> None:
    c = self.config
    self.attention = Attention(c, is_self=True)
    self.around_attention = Sublayer(c)
    self.feed_forward = FeedForward(c)
    self.around_feed_forward = Sublayer(c)

  def __call__(
    self, x: Float[Array, 'b s d'], attend: Attend, train: bool
  ) -> Float[Array, 'b s d']:
    q, own = self.attention.queries_and_own(self.around_attention.enter(x))
    y = self.attention(q, LayerKV.of(*own), attend, train)
    x = self.around_attention.leave(x, y, train)

    y = self.feed_forward(self.around_feed_forward.enter(x), train)
    return self.around_feed_forward.leave(x, y, train)


@dataclasses.dataclass(frozen=True)
class Sees:
  """The two attentions of a decoder layer, as functions of queries, keys and values."""

  own: Attend
  memory: Attend  # a row for each source, which may have several beams


class DecoderLayer(EncoderLayer):
  """Self-attention, cross-attention to the source, and a feed-forward layer."""

  around: Callable[[], nn.Module] | None = None  # makes what is around a sublayer, see `layers`

  def setup(self) -> None:
    super().setup()
    self.attention_conv, self.mlp_conv = make_around(self.around), make_around(self.around)
    self.cross = Attention(self.config, is_self=False)
    self.around_cross = Sublayer(self.config)

  def __call__(
    self,
    x: Float[Array, 'b n d'],
    sees: Sees,
    memory: LayerKV,
    cached: LayerKV | None = None,
    start: Int[Array, ' b'] | None = None,
    train: bool = False,
  ) -> tuple[Float[Array, 'b n d'], LayerKV]:
    """Returns the new hidden states, and the keys and values attended to (cache and nodes)."""
    # Self-attention, to the cache and to the nodes themselves.
    read, leave = self.attention_conv(self.around_attention.enter(x))
    q, own = self.attention.queries_and_own(read)
    kv = LayerKV.of(*own)
    if cached is not None and start is not None:
      kv = cached.write(*own, start)
    y = leave(self.attention(q, kv, sees.own, train))
    x = self.around_attention.leave(x, y, train)

    # Cross-attention. The beams of a source are several queries of its memory.
    q = self.cross.q(self.around_cross.enter(x))
    if cached is None and len(q) != len(memory.k):
      raise ValueError(f'{len(q)} rows need as many sources, not {len(memory.k)}')
    q = q.reshape(len(memory.k), -1, *q.shape[2:])
    y = self.cross(q, memory, sees.memory, train).reshape(x.shape)
    x = self.around_cross.leave(x, y, train)

    read, leave = self.mlp_conv(self.around_feed_forward.enter(x))
    y = leave(self.feed_forward(read, train))
    return self.around_feed_forward.leave(x, y, train), kv


class Stacks(nn.Module):
  """Encoder and decoder between embeddings and logits."""

  config: StackConfig

  def setup(self) -> None:
    c = self.config
    self.encoder = [EncoderLayer(c) for _ in range(c.encoder_layers)]
    self.decoder = [DecoderLayer(c.of_decoder) for _ in range(c.decoder_layers)]
    if c.norm == 'pre':
      self.encoder_norm, self.decoder_norm = c.make_norm(), c.make_norm()
    self.drop = Dropout(c.dropout)

  def embed(
    self, tokens: Int[Array, 'b n'], positions: Int[Array, '#b n'], side: str, train: bool
  ) -> Float[Array, 'b n d']:
    """Returns embeddings with their position signal, of the side 'source' or 'target'."""
    raise NotImplementedError

  def leave(self, x: Float[Array, 'b n d'], stack: str, train: bool) -> Float[Array, 'b n d']:
    """Returns the output of the stack 'encoder' or 'decoder'; a pre-norm stack ends with a norm."""
    if self.config.norm == 'post':
      return x
    return self.encoder_norm(x) if stack == 'encoder' else self.decoder_norm(x)

  def encode(
    self, tokens: Int[Array, 'b s'], positions: Int[Array, '#b s'], attend: Attend, train: bool
  ) -> Float[Array, 'b s d']:
    """Returns the source's states."""
    x = self.embed(tokens, positions, 'source', train)
    for layer in self.encoder:
      x = layer(x, attend, train)
    return self.leave(x, 'encoder', train)

  def memory(self, hidden: Float[Array, 'b s d']) -> tuple[LayerKV, ...]:
    """Returns the keys and values of the source's states, for each decoder layer."""
    return tuple(layer.cross.keys_values(hidden) for layer in self.decoder)

  def decode(
    self,
    tokens: Int[Array, 'b n'],
    positions: Int[Array, '#b n'],
    sees: Sees,
    memory: tuple[LayerKV, ...],
    cache: KVCache | None = None,
    train: bool = False,
    taps: tuple[int, ...] = (),
    added: Float[Array, 'b n d'] | None = None,
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n d'], ...], tuple[LayerKV, ...]]:
    """Returns the nodes' states, the states of `taps`, and the layers of the cache.

    `added` is added to the embeddings."""
    x = self.embed(tokens, positions, 'target', train)
    if added is not None:
      x += added
    states, entries = [x], []
    for i, layer in enumerate(self.decoder):
      cached = (None, None) if cache is None else (cache.layers[i], cache.length)
      x, entry = layer(x, sees, memory[i], *cached, train=train)
      states.append(x)
      entries.append(entry)
    return self.leave(x, 'decoder', train), tuple(states[k] for k in taps), tuple(entries)
