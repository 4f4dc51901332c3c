"""The Transformer's linen modules, one set for parallel training and for decoding over a cache (`transformer.py`)."""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.cache.kv import KVCache, LayerKV
from fastdec.errors import UserError
from fastdec.models.attention import attend
from fastdec.models.layers import Dense, Dropout, sinusoids

ACTIVATIONS = {'relu': nn.relu, 'gelu': nn.gelu, 'swish': nn.swish}
CHOICES = {
  'norm': ('pre', 'post'),
  'positions': ('sinusoidal', 'learned'),
  'activation': tuple(ACTIVATIONS),
  'dtype': ('float32', 'bfloat16', 'float16', 'float64'),
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Sizes and habits; the defaults are T2T's `transformer_base` v3 over a vocabulary of 32,000."""

  vocab_size: int = 32000
  d_model: int = 512
  d_ff: int = 2048
  heads: int = 8
  encoder_layers: int = 6
  decoder_layers: int = 6
  norm: str = 'pre'  # 'pre' (T2T v2, v3) or 'post' (Vaswani et al., fairseq)
  norm_epsilon: float = 1e-6
  positions: str = 'sinusoidal'  # or 'learned'
  max_positions: int = 1024
  activation: str = 'relu'
  attention_bias: bool = False
  dropout: float = 0.1  # after each sublayer and on the embeddings
  attention_dropout: float = 0.1
  activation_dropout: float = 0.1
  dtype: str = 'float32'  # of the computation; parameters are float32 until cast
  pad_id: int = 0
  eos_ids: tuple[int, ...] = (1,)
  start_id: int = 0  # T2T shifts zeros in
  suppressed_ids: tuple[int, ...] = (0,)

  def __post_init__(self) -> None:
    for name, choices in CHOICES.items():
      if getattr(self, name) not in choices:
        raise UserError(f'{name}={getattr(self, name)!r} is unknown: choose one of {", ".join(choices)}')
    for name in ('d_model', 'd_ff', 'heads', 'encoder_layers', 'decoder_layers', 'max_positions'):
      if getattr(self, name) < 1:
        raise UserError(f'{name}={getattr(self, name)} is not possible: give 1 or more')
    for name in ('dropout', 'attention_dropout', 'activation_dropout'):
      if not 0 <= getattr(self, name) < 1:
        raise UserError(f'{name}={getattr(self, name)} is not possible: give a number from 0 to below 1')
    if self.d_model % self.heads:
      raise UserError(f'd_model={self.d_model} is not divisible by heads={self.heads}')


class Attention(nn.Module):
  """Multi-head attention; `keys_values` and `__call__` are apart so that a memory is projected once."""

  config: TransformerConfig
  is_self: bool

  def setup(self) -> None:
    c = self.config
    width = c.d_model // c.heads
    dense = lambda *features: Dense(features, c.attention_bias, c.dtype)
    if self.is_self:
      self.qkv = dense(3, c.heads, width)  # one product instead of three
    else:
      self.q = dense(c.heads, width)
      self.kv = dense(2, c.heads, width)
    self.out = dense(c.d_model)
    self.drop = Dropout(c.attention_dropout)

  def queries_and_own(self, x: Float[Array, 'b n d']) -> tuple[Array, LayerKV]:
    """Self-attention: the queries [b, n, h, p] of x, and its own keys and values."""
    qkv = self.qkv(x)
    return qkv[:, :, 0], LayerKV(*(qkv[:, :, i].swapaxes(1, 2) for i in (1, 2)))

  def queries(self, x: Float[Array, 'b n d']) -> Float[Array, 'b n h p']:
    """Cross-attention: the queries of x."""
    return self.q(x)

  def keys_values(self, memory: Float[Array, 'b s d']) -> LayerKV:
    """Cross-attention: keys and values of the memory."""
    kv = self.kv(memory)
    return LayerKV(*(kv[:, :, i].swapaxes(1, 2) for i in (0, 1)))

  def __call__(self, q: Float[Array, 'b n h p'], kv: LayerKV, mask: Bool[Array, '#b #n s'], train: bool) -> Array:
    attended = attend(q, kv, mask, lambda weights: self.drop(weights, train))
    return self.out(attended.reshape(*attended.shape[:2], -1))


class FeedForward(nn.Module):
  """Two projections with biases and the activation between."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, 'b n d'], train: bool) -> Float[Array, 'b n d']:
    c = self.config
    hidden = ACTIVATIONS[c.activation](Dense((c.d_ff,), True, c.dtype, name='w1')(x))
    hidden = Dropout(c.activation_dropout)(hidden, train)
    return Dense((c.d_model,), True, c.dtype, name='w2')(hidden)


class Sublayer(nn.Module):
  """The residual around a sublayer: x + drop(f(norm(x))) pre-norm, norm(x + drop(f(x))) post-norm."""

  config: TransformerConfig

  def setup(self) -> None:
    self.norm = layer_norm(self.config)
    self.drop = Dropout(self.config.dropout)

  def enter(self, x: Float[Array, 'b n d']) -> Float[Array, 'b n d']:
    return self.norm(x) if self.config.norm == 'pre' else x

  def leave(self, x: Float[Array, 'b n d'], y: Float[Array, 'b n d'], train: bool) -> Float[Array, 'b n d']:
    x = x + self.drop(y, train)
    return x if self.config.norm == 'pre' else self.norm(x)


def layer_norm(config: TransformerConfig) -> nn.LayerNorm:
  return nn.LayerNorm(epsilon=config.norm_epsilon, dtype=config.dtype)


class EncoderLayer(nn.Module):
  config: TransformerConfig

  def setup(self) -> None:
    c = self.config
    self.attention, self.around_attention = Attention(c, is_self=True), Sublayer(c)
    self.feed_forward, self.around_feed_forward = FeedForward(c), Sublayer(c)

  def __call__(self, x: Float[Array, 'b s d'], mask: Bool[Array, 'b s s'], train: bool) -> Float[Array, 'b s d']:
    q, kv = self.attention.queries_and_own(self.around_attention.enter(x))
    x = self.around_attention.leave(x, self.attention(q, kv, mask, train), train)
    y = self.feed_forward(self.around_feed_forward.enter(x), train)
    return self.around_feed_forward.leave(x, y, train)


class DecoderLayer(nn.Module):
  config: TransformerConfig

  def setup(self) -> None:
    c = self.config
    self.attention, self.around_attention = Attention(c, is_self=True), Sublayer(c)
    self.cross, self.around_cross = Attention(c, is_self=False), Sublayer(c)
    self.feed_forward, self.around_feed_forward = FeedForward(c), Sublayer(c)

  def __call__(
    self,
    x: Float[Array, 'b n d'],
    sees: 'Sees',
    memory: LayerKV,
    cached: LayerKV | None = None,
    start: Int[Array, ' b'] | None = None,
    train: bool = False,
  ) -> tuple[Float[Array, 'b n d'], LayerKV]:
    """Returns the new hidden states and the keys and values attended to (the cache, with the nodes written)."""
    q, kv = self.attention.queries_and_own(self.around_attention.enter(x))
    if cached is not None:
      kv = cached.write(kv.k, kv.v, start)
    x = self.around_attention.leave(x, self.attention(q, kv, sees.own, train), train)
    q = self.cross.queries(self.around_cross.enter(x))
    q = q.reshape(len(memory.k), -1, *q.shape[2:])  # the beams of a source are so many queries of its memory
    y = self.cross(q, memory, sees.memory, train).reshape(x.shape)
    x = self.around_cross.leave(x, y, train)
    y = self.feed_forward(self.around_feed_forward.enter(x), train)
    return self.around_feed_forward.leave(x, y, train), kv


@struct.pytree
class Sees:
  """The two masks of a decoder layer."""
  own: Bool[Array, '#b n t']
  memory: Bool[Array, '#r m s']  # a row for each source, which may have several beams


class Network(nn.Module):
  """All parameters, under one roof."""

  config: TransformerConfig

  def setup(self) -> None:
    c = self.config
    scale = nn.initializers.normal(c.d_model**-0.5)
    self.embedding = self.param('embedding', scale, (c.vocab_size, c.d_model))
    if c.positions == 'learned':
      self.source_positions = self.param('source_positions', scale, (c.max_positions, c.d_model))
      self.target_positions = self.param('target_positions', scale, (c.max_positions, c.d_model))
    self.encoder = [EncoderLayer(c) for _ in range(c.encoder_layers)]
    self.decoder = [DecoderLayer(c) for _ in range(c.decoder_layers)]
    if c.norm == 'pre':
      self.encoder_norm, self.decoder_norm = layer_norm(c), layer_norm(c)
    self.drop = Dropout(c.dropout)

  def embed(self, tokens: Int[Array, 'b n'], positions: Int[Array, 'b n'], side: str, train: bool) -> Array:
    """Embeddings times sqrt(d) plus the position signal: [b, n, d] in the compute dtype."""
    c = self.config
    if c.positions == 'learned':
      signal = (self.source_positions if side == 'source' else self.target_positions)[positions]
    else:
      signal = sinusoids(positions, c.d_model)
    x = self.embedding[tokens].astype(c.dtype) * c.d_model**0.5 + signal.astype(c.dtype)
    return self.drop(x, train)

  def encode(
    self, tokens: Int[Array, 'b s'], positions: Int[Array, 'b s'], mask: Bool[Array, 'b s s'], train: bool
  ) -> Float[Array, 'b s d']:
    x = self.embed(tokens, positions, 'source', train)
    for layer in self.encoder:
      x = layer(x, mask, train)
    return self.encoder_norm(x) if self.config.norm == 'pre' else x

  def memory(self, hidden: Float[Array, 'b s d']) -> tuple[LayerKV, ...]:
    return tuple(layer.cross.keys_values(hidden) for layer in self.decoder)

  def decode(
    self,
    tokens: Int[Array, 'b n'],
    positions: Int[Array, 'b n'],
    sees: Sees,
    memory: tuple[LayerKV, ...],
    cache: KVCache | None = None,
    train: bool = False,
  ) -> tuple[Float[Array, 'b n d'], tuple[LayerKV, ...]]:
    x = self.embed(tokens, positions, 'target', train)
    entries = []
    for i, layer in enumerate(self.decoder):
      cached = (None, None) if cache is None else (cache.layers[i], cache.length)
      x, entry = layer(x, sees, memory[i], *cached, train=train)
      entries.append(entry)
    return (self.decoder_norm(x) if self.config.norm == 'pre' else x), tuple(entries)

  def __call__(self, batch: Mapping[str, Array], train: bool) -> Float[Array, 'b t d']:
    """Teacher-forced hidden states of packed rows; see `Transformer.hidden`."""
    source, target = batch['source_segment'], batch['target_segment']
    same = lambda query, key: query[:, :, None] == key[:, None, :]
    hidden = self.encode(batch['source'], batch['source_position'], same(source, source), train)
    t = target.shape[1]
    sees = Sees(own=same(target, target) & jnp.tri(t, dtype=bool)[None], memory=same(target, source))
    shifted = jnp.pad(batch['target'], ((0, 0), (1, 0)))[:, :-1]
    inputs = jnp.where(batch['target_position'] == 0, self.config.start_id, shifted)
    return self.decode(inputs, batch['target_position'], sees, self.memory(hidden), train=train)[0]


