"""The decoder-only Transformer: RMSNorm, rotary positions, gated MLP, grouped heads.

Llama, Mistral, Qwen2 and Qwen3 are settings of it (`folders/llama.py` reads theirs). One set of
linen modules serves training on packed rows (`LM.hidden`) and decoding over a cache (`LM.apply`).
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from fastdec.cache.kv import KVCache, LayerKV
from fastdec.errors import UserError
from fastdec.models.api import Capacity, Nodes, Params, check_special_ids, setting
from fastdec.models.attention import attend, node_mask, node_window
from fastdec.models.fresh import unrun
from fastdec.models.layers import Dense, Dropout, look_up, project
from fastdec.models.rotary import ROPES, Rope, Turns, rotate
from fastdec.models.taps import Features, check_taps
from fastdec.products import KERNELS
from fastdec.sharding import Table

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  'silu': nn.silu,
  'gelu': functools.partial(nn.gelu, approximate=False),
  'gelu_tanh': functools.partial(nn.gelu, approximate=True),
  'relu': nn.relu,
}
Attends = Mapping[int, Callable[..., Array]]  # for each window, see `stacks.Attend`
CHOICES = {
  'activation': tuple(ACTIVATIONS),
  'rope': ROPES,
  'dtype': ('float32', 'bfloat16', 'float16', 'float64'),
}
ROPE_NUMBERS = (
  'rope_theta', 'rope_factor', 'rope_low', 'rope_high', 'rope_original', 'rope_share', 'rope_scale',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LMConfig:
  """Sizes and options; the defaults are a small Llama's."""

  vocab_size: int = 32000
  d_model: int = 512
  d_ff: int = 1536
  layers: int = 6
  heads: int = 8
  # each is shared by heads / key_heads query heads; None: one for every query head
  key_heads: int | None = None
  head_width: int | None = None  # None: d_model / heads
  activation: str = 'silu'
  norm_epsilon: float = 1e-6
  # stretching of wavelengths for longer contexts, see `models/rotary.py`; 'default': none
  rope: str = 'default'
  rope_theta: float = 1e4
  rope_factor: float = 1.0  # the stretch
  # llama3, yarn: waves with fewer turns in `rope_original` positions are stretched ...
  rope_low: float = 1.0
  rope_high: float = 4.0  # ... waves with more turns are not; between the two it is mixed
  rope_original: int = 8192
  rope_truncate: bool = True  # yarn: mixing begins and ends at whole pairs
  rope_share: float = 1.0  # of a head's entries, the first ones, that turn
  rope_scale: float = 1.0  # of turned queries and keys
  # longrope: the stretch of each pair in texts up to `rope_original` tokens, and in longer ones
  rope_short: tuple[float, ...] = ()
  rope_long: tuple[float, ...] = ()
  qkv_bias: bool = False
  out_bias: bool = False
  mlp_bias: bool = False
  qk_norm: bool = False  # RMSNorm on each query and key (Qwen3)
  # positions that each layer sees, its own included; 0, or (): all before it
  windows: tuple[int, ...] = ()
  tied: bool = True  # `init` makes no output matrix: the embedding serves
  max_positions: int | None = None
  bos_id: int = 0  # training: the first token of a text is predicted from it
  eos_ids: tuple[int, ...] = (1,)
  pad_id: int = 0
  suppressed_ids: tuple[int, ...] = ()
  dropout: float = 0.0  # after each sublayer and on the embeddings
  dtype: str = 'float32'  # of the computation; parameters are float32 until cast

  def __post_init__(self) -> None:
    for name, allowed in CHOICES.items():
      if getattr(self, name) not in allowed:
        raise UserError(
          f'{name}={getattr(self, name)!r} is unknown: choose one of {", ".join(allowed)}'
        )
    for name in ('vocab_size', 'd_model', 'd_ff', 'layers', 'heads', 'kv_heads', 'width'):
      if getattr(self, name) < 1:
        raise UserError(f'{name}={getattr(self, name)} is not possible: give 1 or more')
    check_special_ids(self)
    for name in ROPE_NUMBERS:
      if not getattr(self, name) > 0:
        raise UserError(f'{name}={getattr(self, name)} is not possible: give a number above 0')
    if not 0 <= self.norm_epsilon < 1:
      raise UserError(f'norm_epsilon={self.norm_epsilon} is not possible: give a number below 1')
    if min(self.windows, default=0) < 0:
      raise UserError(f'windows={self.windows} are not possible: give 0 or more positions')
    if not 0 <= self.dropout < 1:
      raise UserError(f'dropout={self.dropout} is not possible: give a number from 0 to below 1')
    if self.head_width is None and self.d_model % self.heads:
      raise UserError(
        f'd_model={self.d_model} is not divisible by heads={self.heads}: give head_width'
      )
    if self.heads % self.kv_heads:
      raise UserError(f'heads={self.heads} is not divisible by key_heads={self.kv_heads}')
    if self.rotated % 2:
      raise UserError(
        f'{self.rotated} entries of a head cannot be rotated in pairs: give an even head_width'
      )
    for name in ('rope_short', 'rope_long') if self.rope == 'longrope' else ():
      if len(getattr(self, name)) != self.rotated // 2 or not min(getattr(self, name)) > 0:
        raise UserError(
          f'{name}={getattr(self, name)} is not possible: give a number above 0 for each of the'
          f' {self.rotated // 2} pairs'
        )
    if self.windows and len(self.windows) != self.layers:
      raise UserError(
        f'windows={self.windows} must be one number for each of the {self.layers}'
        ' layers, or none at all'
      )

  @property
  def kv_heads(self) -> int:
    return self.heads if self.key_heads is None else self.key_heads

  @property
  def width(self) -> int:
    return self.d_model // self.heads if self.head_width is None else self.head_width

  @property
  def layer_windows(self) -> tuple[int, ...]:
    return self.windows or (0,) * self.layers

  @property
  def rotary(self) -> Rope:
    return Rope(
      self.rope,
      self.rope_theta,
      self.rope_factor,
      self.rope_low,
      self.rope_high,
      self.rope_original,
      self.rope_truncate,
      self.rope_share,
      self.rope_scale,
      self.rope_short,
      self.rope_long,
    )

  @property
  def rotated(self) -> int:
    return self.rotary.rotated(self.width)

  def turns(
    self, positions: Int[Array, 'b n'], text: Int[Array, 'b #n'] | None = None
  ) -> tuple[Turns | None, ...]:
    """Returns the rotations of each layer; see `Rope.angles`."""
    return (self.rotary.turns(positions, self.width, text),) * self.layers


class RMSNorm(nn.Module):
  """x over its root mean square (Zhang, Sennrich 2019), in float32 at least, times a scale."""

  config: LMConfig

  @nn.compact
  def __call__(self, x: Float[Array, '*b d']) -> Float[Array, '*b d']:
    scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    inverse = 1 / jnp.sqrt(jnp.square(wide).mean(-1, keepdims=True) + self.config.norm_epsilon)
    return (wide * inverse).astype(x.dtype) * scale.astype(x.dtype).reshape(
      (1,) * (x.ndim - 1) + (-1,)
    )


class Layer(nn.Module):
  """Attention and gated MLP, each behind a norm and beside a residual."""

  config: LMConfig

  def setup(self) -> None:
    c = self.config
    self.attention_norm, self.mlp_norm = RMSNorm(c), RMSNorm(c)
    if c.qk_norm:
      self.q_norm, self.k_norm = RMSNorm(c), RMSNorm(c)
    self.q = Dense((c.heads, c.width), c.qkv_bias, c.dtype)
    self.kv = Dense((2, c.kv_heads, c.width), c.qkv_bias, c.dtype)
    self.out = Dense((c.d_model,), c.out_bias, c.dtype)
    self.gate_up = Dense((2, c.d_ff), c.mlp_bias, c.dtype)  # one product instead of two
    self.down = Dense((c.d_model,), c.mlp_bias, c.dtype)
    self.drop = Dropout(c.dropout)

  def __call__(
    self,
    x: Float[Array, 'b n d'],
    turns: Turns | None,
    sees: Callable[..., Array],
    cached: LayerKV | None = None,
    start: Int[Array, ' b'] | None = None,
    train: bool = False,
    read: Float[Array, 'b n e'] | None = None,
  ) -> tuple[Float[Array, 'b n d'], LayerKV]:
    """Returns the new hidden states, and the keys and values attended to (cache and nodes).

    Attention reads the norm of x, or `read` in its place: the first layers of drafts differ there.
    """
    q, own = self.queries_and_own(self.attention_norm(x) if read is None else read, turns)
    kv = own if cached is None or start is None else cached.write(own.k, own.v, start)
    x = x + self.drop(self.out(sees(q, kv).reshape(*x.shape[:2], -1)), train)
    gate_up = self.gate_up(self.mlp_norm(x))
    gated = ACTIVATIONS[self.config.activation](gate_up[:, :, 0]) * gate_up[:, :, 1]
    return x + self.drop(self.down(gated), train), kv

  def queries_and_own(
    self, x: Float[Array, 'b n d'], turns: Turns | None
  ) -> tuple[Float[Array, 'b n h w'], LayerKV]:
    """Returns rotated queries, and the nodes' own keys (rotated) and values."""
    q, kv = self.q(x), self.kv(x)
    k, v = kv[:, :, 0], kv[:, :, 1]
    if self.config.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    return rotate(q, turns), LayerKV(rotate(k, turns).swapaxes(1, 2), v.swapaxes(1, 2))


def layer_partition(config: LMConfig, devices: int) -> Table:
  """Lays out a layer's parameters on a mesh; key heads that `devices` cannot divide stay whole."""
  keys = P() if config.kv_heads % devices else P(None, 'model')
  return (
    (r'/kv/(kernel|bias)$', keys),
    (r'/q/(kernel|bias)$', P('model')),
    (r'/gate_up/(kernel|bias)$', P(None, 'model')),
    (r'/(out|down)/kernel$', P(None, 'model')),
  )


class Network(nn.Module):
  """All parameters, under one roof."""

  config: LMConfig

  def setup(self) -> None:
    c = self.config
    scale = nn.initializers.normal(c.d_model**-0.5)
    self.embedding = self.param('embedding', scale, (c.vocab_size, c.d_model))
    if not c.tied:
      self.param('output', scale, (c.vocab_size, c.d_model))  # read by `LM.unembed`
    self.layer = [Layer(c) for _ in range(c.layers)]
    self.norm = RMSNorm(c)
    self.drop = Dropout(c.dropout)

  def decode(
    self,
    tokens: Int[Array, 'b n'],
    positions: Int[Array, 'b n'],
    attends: Attends,
    cache: KVCache | None = None,
    train: bool = False,
    taps: tuple[int, ...] = (),
    text: Int[Array, 'b #n'] | None = None,
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n d'], ...], tuple[LayerKV, ...]]:
    c = self.config
    x = self.drop(look_up(self.embedding, tokens).astype(c.dtype), train)
    states, entries, turns = [x], [], c.turns(positions, text)
    for i, (layer, window) in enumerate(zip(self.layer, c.layer_windows, strict=True)):
      cached = (None, None) if cache is None else (cache.layers[i], cache.length)
      x, entry = layer(x, turns[i], attends[window], *cached, train=train)
      states.append(x)
      entries.append(entry)
    return self.norm(x), tuple(states[k] for k in taps), tuple(entries)

  def __call__(
    self, batch: Mapping[str, Array], train: bool, taps: tuple[int, ...] = ()
  ) -> Features:
    """Teacher-forced states of packed rows; see `LM.features`."""
    segment, position = batch['target_segment'], batch['target_position']
    behind = position[:, :, None] - position[:, None, :]
    sees = (segment[:, :, None] == segment[:, None, :]) & jnp.tri(segment.shape[1], dtype=bool)[
      None
    ]
    shifted = jnp.pad(batch['target'], ((0, 0), (1, 0)))[:, :-1]
    inputs = jnp.where(position == 0, self.config.bos_id, shifted)

    def within(window):
      return sees & (behind < window) if window else sees

    attends = {
      window: functools.partial(attend, mask=within(window))
      for window in set(self.config.layer_windows)
    }
    hidden, states, _ = self.decode(inputs, position, attends, train=train, taps=taps)
    return Features(hidden, states, None)


@dataclasses.dataclass(frozen=True)
class LM:
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: LMConfig

  start_id = None  # the prompt is the input
  fixed_length = None
  products = (KERNELS, r'(^|/)(embedding|output)$')  # see `fastdec.products`

  d_model = setting('d_model')
  layers = setting('layers')
  vocab_size = setting('vocab_size')
  eos_ids = setting('eos_ids')
  pad_id = setting('pad_id')
  bos_id = setting('bos_id')
  suppressed_ids = setting('suppressed_ids')
  max_positions = setting('max_positions')

  def _call(self, params: Params, *args: Any, method: str, **kwargs: Any) -> Any:
    return Network(self.config).apply({'params': params}, *args, method=method, **kwargs)

  def partition(self, devices: int) -> Table:
    """Splits embeddings and logits by words, pairs of products as `models.stacks`.

    See `fastdec.sharding`. If `devices` cannot divide the key heads, each device computes them all.
    """
    return ((r'(^|/)(embedding|output)$', P('model')), *layer_partition(self.config, devices))

  @unrun
  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters."""
    ones = jnp.ones((1, 2), jnp.int32)
    batch = {'target': ones, 'target_segment': ones, 'target_position': ones}
    return Network(self.config).init(key, batch, train=False)['params']

  def hidden(
    self, params: Params, batch: Mapping[str, Int[Array, 'b _']], dropout_key: Array | None = None
  ) -> Float[Array, 'b t d']:
    """Returns hidden states whose `unembed` predicts batch['target'], all positions at once.

    Training and forced scoring use it. The first token of a segment is predicted from `bos_id`: a
    model trained so decodes prompts that begin with it.

    Args:
      params: the parameters.
      batch: 'target', 'target_segment' (several texts a row; 0 is padding), 'target_position';
        others are not read.
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
    """Returns the states that drafts learn from: hidden (see `hidden`), and of the layers `taps`.

    Raises:
      UserError: layers that the model does not have.
    """
    check_taps(taps, self.layers)
    train = dropout_key is not None
    rngs = {'dropout': dropout_key} if train else {}
    return self._call(params, batch, train=train, taps=taps, method='__call__', rngs=rngs)

  def encode(self, params: Params, inputs: Array | None) -> None:
    """Returns None: there is no encoder."""

  def init_cache(self, params: Params, memory: None, rows: int, slots: int | Capacity) -> KVCache:
    """Returns an empty cache, as wide as the key heads; a sliding window only masks it.

    Longrope turns all of a text anew when it passes `rope_original`. So where the slots pass it,
    each layer is there twice: for texts up to that length, and for longer ones.
    """
    c = self.config
    both = c.rope == 'longrope' and operator.index(slots) > c.rope_original
    return KVCache.empty(c.layers * (1 + both), rows, c.kv_heads, slots, c.width, c.dtype)

  def apply(
    self,
    params: Params,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: KVCache,
    taps: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n d'], ...], KVCache]:
    """See `models.api.Model.apply`."""
    check_taps(taps, self.layers)
    mask = node_mask(nodes, cache.length, cache.slots)

    def sees(window):
      return mask & node_window(nodes, cache.length, cache.slots, window) if window else mask

    attends = {
      window: functools.partial(attend, mask=sees(window))
      for window in set(self.config.layer_windows)
    }
    positions = cache.length[:, None] + jnp.atleast_2d(nodes.depths)
    # an empty cache meets a prompt, which is read at once
    whole = jnp.where(cache.length[:, None] == 0, positions.max(-1, keepdims=True), positions) + 1

    def read(layers, text):
      args = (tokens, positions, attends, dataclasses.replace(cache, layers=layers))
      return self._call(params, *args, method='decode', taps=taps, text=text)

    n = self.layers
    if len(cache.layers) == n:
      hidden, states, layers = read(cache.layers, whole)
      return hidden, states, dataclasses.replace(cache, layers=layers)
    *short, short_layers = read(cache.layers[:n], jnp.zeros_like(whole))
    *long, long_layers = read(cache.layers[n:], jnp.full_like(whole, self.config.rope_original + 1))
    is_long = (whole > self.config.rope_original)[..., None]
    hidden, states = jax.tree.map(lambda a, b: jnp.where(is_long, a, b), long, short)
    return hidden, states, dataclasses.replace(cache, layers=(*short_layers, *long_layers))

  def embedding(self, params: Params, tokens: Int[Array, '*b']) -> Float[Array, '*b e']:
    """Returns embeddings of tokens, without positions; see `models.api.embedding_of`."""
    return look_up(params['embedding'], tokens)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns logits by the matrix 'output' if the parameters have one, else by the embedding."""
    return project(hidden, params['output'] if 'output' in params else params['embedding'])
