"""The decoder-only Transformer: RMSNorm, rotary positions, gated MLP, grouped heads.

Llama and similar families are settings of it (`hub/llama.py` reads their folders). One set of linen
modules serves training on packed rows (`LM.hidden`) and decoding over a cache (`LM.apply`).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from fastdec.cache.kv import KVCache, LayerKV, Own
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import Table
from fastdec.kernels.sums import normalize
from fastdec.models.api import Capacity, Nodes, Params, setting
from fastdec.models.attention import attend, attend_to_used, layer_mask
from fastdec.models.experts import Experts
from fastdec.models.fresh import init_by_trace, trace_shapes
from fastdec.models.layers import Dense, Dropout, look_up, make_around, project
from fastdec.models.linen import LinenModel, fed_tokens, same_segment
from fastdec.models.lm_config import ACTIVATIONS, LMConfig
from fastdec.models.rotary import Turns, rotate
from fastdec.models.taps import Features, check_taps

Attends = Mapping[int, Callable[..., Array]]  # for each window, see `stacks.Attend`


class RMSNorm(nn.Module):
  """x over its root mean square (Zhang, Sennrich 2019), in float32 or wider, times a scale."""

  config: LMConfig

  @nn.compact
  def __call__(self, x: Float[Array, '*b d']) -> Float[Array, '*b d']:
    scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    scale = scale.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
    return normalize(wide, self.config.norm_epsilon).astype(x.dtype) * scale


class Layer(nn.Module):
  """Attention, and a gated MLP or experts; each has norms (`norms`) and is added to its input."""

  config: LMConfig
  is_sparse: bool = False
  around: Callable[[], nn.Module] | None = None  # makes what is around a sublayer, see `layers`

  def setup(self) -> None:
    c = self.config
    self.attention_conv, self.mlp_conv = make_around(self.around), make_around(self.around)
    if c.norms != 'after':
      self.attention_norm, self.mlp_norm = RMSNorm(c), RMSNorm(c)
    if c.norms != 'before':
      self.attention_out_norm, self.mlp_out_norm = RMSNorm(c), RMSNorm(c)
    if c.qk_norm or c.joined_qk_norm:
      self.q_norm, self.k_norm = RMSNorm(c), RMSNorm(c)
    self.q = Dense((c.heads, c.width), c.qkv_bias, c.dtype)
    self.kv = Dense((2, c.kv_heads, c.width), c.qkv_bias, c.dtype)
    self.out = Dense((c.d_model,), c.out_bias, c.dtype)
    if c.sinks:
      self.sinks = self.param('sinks', nn.initializers.zeros, (c.heads,))
    if self.is_sparse:
      assert c.experts is not None
      self.experts = Experts(c.experts, ACTIVATIONS[c.activation], c.dtype)
    else:
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

    `read` is what attention reads instead of the norm of x, in the first layers of some drafts.
    """
    # Attention.
    c = self.config
    before, after = c.norms != 'after', c.norms != 'before'
    if read is None:
      read = self.attention_norm(x) if before else x
    read, leave = self.attention_conv(read)
    q, own = self.queries_and_own(read, turns)
    kv = LayerKV.of(*own)
    if cached is not None and start is not None:
      kv = cached.write(*own, start)
    sinks = {'sinks': self.sinks} if c.sinks else {}
    mixed = sees(q, kv, scale=c.score_scale, cap=c.score_cap, **sinks)
    added = leave(self.out(mixed.reshape(*x.shape[:2], -1)))
    if after:
      added = self.attention_out_norm(added)
    added = self.drop(added, train)
    if c.residual_scale != 1:
      added *= c.residual_scale
    x = x + added

    # The MLP, or experts.
    read, leave = self.mlp_conv(self.mlp_norm(x) if before else x)
    if self.is_sparse:
      added = self.experts(read, reads_all=cached is None)
    else:
      gate_up = self.gate_up(read)
      added = self.down(ACTIVATIONS[c.activation](gate_up[:, :, 0]) * gate_up[:, :, 1])
    added = leave(added)
    if after:
      added = self.mlp_out_norm(added)
    added = self.drop(added, train)
    if c.residual_scale != 1:
      added *= c.residual_scale
    return x + added, kv

  def queries_and_own(
    self, x: Float[Array, 'b n d'], turns: Turns | None
  ) -> tuple[Float[Array, 'b n h w'], Own]:
    """Returns rotated queries, and the nodes' own keys (rotated) and values."""
    q, kv = self.q(x), self.kv(x)
    k, v = kv[:, :, 0], kv[:, :, 1]
    if self.config.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    elif self.config.joined_qk_norm:  # over all heads at once
      q = self.q_norm(q.reshape(*q.shape[:2], -1)).reshape(q.shape)
      k = self.k_norm(k.reshape(*k.shape[:2], -1)).reshape(k.shape)
    return rotate(q, turns), (rotate(k, turns).swapaxes(1, 2), v.swapaxes(1, 2))


@functools.partial(jax.jit, static_argnames=('config', 'is_sparse'))
def _call_layer(
  config: LMConfig,
  is_sparse: bool,
  params: Params,
  x: Float[Array, 'b n d'],
  turns: Turns | None,
  sees: Callable[..., Array],
  cached: LayerKV,
  start: Int[Array, ' b'],
) -> tuple[Float[Array, 'b n d'], LayerKV]:
  """Calls a layer on nodes that follow a cache. A program's layers of one kind are traced once."""
  layer = Layer(config, is_sparse, parent=None)  # not a part of the network that is being called
  called: Any = layer.apply({'params': params}, x, turns, sees, cached, start)
  return called


def layer_partition(config: LMConfig, devices: int) -> Table:
  """Returns a layer's table. If `devices` cannot divide the key heads, they are not split."""
  keys, experts = P(None, 'model'), ()
  if config.kv_heads % devices:
    keys = P()
  if config.experts and any(config.sparse):
    experts = config.experts.partition(devices)
  return (
    *experts,
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
    self.layer = [Layer(c, is_sparse) for is_sparse in c.sparse]
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
    x = look_up(self.embedding, tokens).astype(c.dtype)
    if c.embedding_scale != 1:
      x *= jnp.asarray(c.embedding_scale, c.dtype)
    x = self.drop(x, train)
    states, entries, turns = [x], [], c.turns(positions, text)
    for i, (layer, window) in enumerate(zip(self.layer, c.layer_windows, strict=True)):
      if cache is None:
        x, entry = layer(x, turns[i], attends[window], train=train)
      else:
        args = (layer.variables['params'], x, turns[i], attends[window], cache.layers[i])
        x, entry = _call_layer(c, layer.is_sparse, *args, cache.length)
      states.append(x)
      entries.append(entry)
    return self.norm(x), tuple(states[k] for k in taps), tuple(entries)

  def __call__(
    self, batch: Mapping[str, Array], train: bool, taps: tuple[int, ...] = ()
  ) -> Features:
    """Teacher-forced states of packed rows; see `LinenModel.features`."""
    segment, position = batch['target_segment'], batch['target_position']
    distance = position[:, :, None] - position[:, None, :]
    sees = same_segment(segment, segment) & jnp.tri(segment.shape[1], dtype=bool)[None]
    attends = {}
    for window in set(self.config.layer_windows):
      mask = sees
      if window:
        mask = sees & (distance < window)
      attends[window] = functools.partial(attend, mask=mask)
    inputs = fed_tokens(batch, self.config.bos_id)
    hidden, states, _ = self.decode(inputs, position, attends, train=train, taps=taps)
    return Features(hidden, states, None)


@dataclasses.dataclass(frozen=True)
class LM(LinenModel):
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict.

  In packed rows (`hidden`, `features`) the first token of a segment is predicted from `bos_id`, so
  a model trained on them decodes prompts that begin with it. Batches need no 'source'."""

  config: LMConfig

  network = Network
  reads_paths = True
  start_id = None  # the prompt is the input
  fixed_length = None
  products = (KERNELS, r'(^|/)(embedding|output)$')  # see `kernels.products`

  layers = setting('layers')
  bos_id = setting('bos_id')

  @property
  def reads_length(self) -> bool:
    """True if states depend on the length of the whole prompt."""
    return self.config.rope in ('dynamic', 'longrope')

  def partition(self, devices: int) -> Table:
    """Splits embeddings and logits by words, pairs of products as `models.stacks`.

    See `kernels.sharding`. If `devices` cannot divide the key heads, each device computes them all.
    """
    return ((r'(^|/)(embedding|output)$', P('model')), *layer_partition(self.config, devices))

  def first_layers(self, layers: int) -> 'LM':
    """Returns the model without its other layers; its parameters are the same."""
    windows = self.config.windows[:layers]
    return dataclasses.replace(
      self, config=dataclasses.replace(self.config, layers=layers, windows=windows)
    )

  @init_by_trace
  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters."""
    ones = jnp.ones((1, 2), jnp.int32)
    batch = {'target': ones, 'target_segment': ones, 'target_position': ones}
    return Network(self.config).init(key, batch, train=False)['params']

  @property
  def shapes(self) -> Params:
    """The shapes of `init`'s parameters. Only one layer of each kind is traced, to save time."""
    c, kinds, shapes = self.config, {}, {}
    for is_sparse in set(c.sparse):
      experts = None
      if is_sparse and c.experts:
        experts = dataclasses.replace(c.experts, dense=())
      one = LM(dataclasses.replace(c, layers=1, windows=(), experts=experts))
      shapes = dict(trace_shapes(one))
      kinds[is_sparse] = shapes.pop('layer_0')
    for i, is_sparse in enumerate(c.sparse):
      shapes[f'layer_{i}'] = kinds[is_sparse]
    return shapes

  def encode(self, params: Params, inputs: Array | None) -> None:
    """Returns None: the model has no encoder."""

  def init_cache(self, params: Params, memory: None, rows: int, slots: int | Capacity) -> KVCache:
    """Returns an empty cache; see `LMConfig.empty_cache`.

    With longrope, the rotations of a whole text change when it becomes longer than `rope_original`.
    If the slots allow such a text, the cache has each layer twice: once for texts up to that length
    and once for longer ones.
    """
    c = self.config
    most = slots.last_total if isinstance(slots, Capacity) else slots
    both = c.rope == 'longrope' and most > c.rope_original
    return c.empty_cache(rows, slots, copies=1 + both)

  def apply(
    self,
    params: Params,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: KVCache,
    taps: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n d'], ...], KVCache]:
    """See `models.api.Model.apply`."""
    # Layers with the same window have caches of the same size, and share a mask.
    check_taps(taps, self.layers)
    used = cache.length.max() + nodes.n
    attends = {}
    for window, layer in dict(zip(self.config.layer_windows, cache.layers, strict=False)).items():
      mask = layer_mask(nodes, cache.length, layer, window)
      attends[window] = Partial(attend_to_used, mask=mask, used=used)

    # The length of the text, for rotations that depend on it: that of the prompt, which is read at
    # once (into an empty cache) or in parts (of `nodes.text`), and later the position.
    positions = cache.length[:, None] + jnp.atleast_2d(nodes.depths)
    prompt = nodes.text
    if prompt is None:
      prompt = jnp.where(cache.length == 0, positions.max(-1) + 1, 0)
    text = jnp.maximum(positions + 1, prompt[:, None])

    def read(layers, text):
      args = (tokens, positions, attends, dataclasses.replace(cache, layers=layers))
      return self._call(params, *args, method='decode', taps=taps, text=text)

    n = self.layers
    if len(cache.layers) == n:
      hidden, states, layers = read(cache.layers, text)
      return hidden, states, dataclasses.replace(cache, layers=layers)

    # Longrope: read the nodes as a part of a short text and of a long one, and choose.
    *short, short_layers = read(cache.layers[:n], jnp.zeros_like(text))
    *long, long_layers = read(cache.layers[n:], jnp.full_like(text, self.config.rope_original + 1))
    is_long = (text > self.config.rope_original)[..., None]
    hidden, states = jax.tree.map(lambda a, b: jnp.where(is_long, a, b), long, short)
    return hidden, states, dataclasses.replace(cache, layers=(*short_layers, *long_layers))

  def embedding(self, params: Params, tokens: Int[Array, '*b']) -> Float[Array, '*b e']:
    """Returns embeddings of tokens, without positions; see `models.api.embedding_of`."""
    return look_up(params['embedding'], tokens)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns logits by the matrix 'output' if the parameters have one, else by the embedding."""
    c = self.config
    logits = project(hidden, params['output' if 'output' in params else 'embedding'])
    if c.logit_scale != 1:
      logits *= c.logit_scale
    if c.logit_cap is not None:
      logits = c.logit_cap * jnp.tanh(logits / c.logit_cap)
    return logits
