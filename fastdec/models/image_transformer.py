"""The Image Transformer for super-resolution (Parmar et al. 2018; T2T's `img2img_transformer`).

The image model of Stern et al. 2018: global attention over a small picture, 1D local attention over
a large one. Tokens are intensities, 0..255, in raster scan: red, green, blue of the first pixel,
then of the next. Every output has size * size * 3 tokens, and no end token.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, Shaped, UInt8

from fastdec import struct
from fastdec.cache.kv import KVCache
from fastdec.cache.memory import Memory, WithMemory
from fastdec.cache.ring import LayerRing
from fastdec.errors import UserError
from fastdec.fields import check_sizes
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import Table
from fastdec.models.api import Capacity, Nodes, Params, setting
from fastdec.models.attention import attend, attend_locally, local_mask
from fastdec.models.encoder_decoder import Source
from fastdec.models.forecast import (
  CHANNELS,
  Forecast,
  Surroundings,
  around_all,
  around_nodes,
  fit_weights,
)
from fastdec.models.fresh import init_by_trace
from fastdec.models.image_start import (
  INTENSITIES,
  LONGEST,
  start_cross_attention,
  start_embedding,
  start_self_attention,
  to_waves,
)
from fastdec.models.layers import Dense, look_up, sinusoids
from fastdec.models.linen import LinenModel
from fastdec.models.stacks import PARTITION, Sees, StackConfig, Stacks
from fastdec.models.taps import Features

MOST = 4096  # pixels a side, and tokens of a block
PHASES = 6  # entries that encode the channel, and the place within a source pixel
FORECAST_WEIGHT = 2.0  # of the embedded forecast; the embedding of the token before has weight 1


@dataclasses.dataclass(frozen=True)
class ImageTransformerConfig(StackConfig):
  """Sizes and options; the defaults are T2T's `img2img_transformer_b3`."""

  encoder_layers: int = 4
  decoder_layers: int = 8
  norm: str = 'post'
  attention_dropout: float = 0.0
  activation_dropout: float = 0.0
  source_size: int = 8  # pixels a side
  size: int = 32  # of the output
  block_length: int = 128  # of local attention: B
  # The signal also encodes the channel and the place within a source pixel, and self-attention
  # starts at neighbours; T2T has neither.
  grid: bool = False
  # each input also holds a linear forecast of the next token (`models.forecast`)
  forecast: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    check_sizes(self, 'source_size', 'size', 'block_length')
    if max(self.size, self.source_size, self.block_length) > MOST:
      raise UserError(
        f'size={self.size}, source_size={self.source_size} and block_length={self.block_length}'
        f' are not possible: give at most {MOST}'
      )
    if self.d_model % 8:
      raise UserError(
        f'd_model={self.d_model} is not divisible by 8: half of it has sines and cosines of rows'
        ' and columns'
      )
    if self.head_width < 4:
      raise UserError(
        f'd_model={self.d_model} with heads={self.heads} is not possible: a head needs 4 numbers or'
        ' more to compare rows and columns'
      )
    if self.grid and self.size % self.source_size:
      raise UserError(
        f'grid=True with size={self.size} is not possible: give a multiple of'
        f' source_size={self.source_size}'
      )
    if self.grid and self.d_model < 2 * PHASES + 4:
      raise UserError(
        f'grid=True with d_model={self.d_model} is not possible: give {2 * PHASES + 4} or more'
      )
    if self.forecast and not self.grid:
      raise UserError(
        'forecast=True with grid=False is not possible: each place in a source pixel has its own'
        ' weights'
      )

  @property
  def surroundings(self) -> Surroundings:
    """Surroundings of each place, for the forecast."""
    return Surroundings.of(self.size, self.source_size)


class Network(Stacks):
  """All parameters, under one roof."""

  config: ImageTransformerConfig

  def setup(self) -> None:
    super().setup()
    c = self.config
    reserved = PHASES if c.grid else 0

    def start(*_: Any) -> Array:
      return start_embedding(c.d_model, reserved)

    def start_by_channel(_: Array) -> Array:
      return jnp.tile(start(), (CHANNELS, 1))

    self.source_embedding = self.param('source_embedding', start_by_channel)
    self.target_embedding = self.param('target_embedding', start_by_channel)
    self.output = Dense((INTENSITIES,), True, c.dtype, start)
    if c.forecast:
      self.forecast = Forecast(c.size, c.source_size, c.d_model, c.dtype)

  def embed(
    self, tokens: Int[Array, 'b n'], positions: Int[Array, '#b n'], side: str, train: bool
  ) -> Float[Array, 'b n d']:
    """Embeds by channel, times sqrt(d), plus the signal of row and column, in the compute dtype.

    A target token is that of the position before, so the embedding at position 0 is zero. A source
    pixel gets the signal of the output place that it covers, so the model need not learn where to
    look.
    """
    c = self.config
    if side == 'target':
      table, own, size, ratio = self.target_embedding, positions - 1, c.size, 1
      if c.grid:
        ratio = c.size // c.source_size
    else:
      table, own, size, ratio = self.source_embedding, positions, c.source_size, 1

    # The intensity, by channel.
    x = look_up(table, own % CHANNELS * INTENSITIES + tokens).astype(c.dtype) * c.d_model**0.5
    x = jnp.where((own >= 0)[..., None], x, 0)

    # Row and column, in output pixels: a source pixel is at the centre of those that it covers.
    pixel, channel = positions // CHANNELS, positions % CHANNELS
    row, column = pixel // size, pixel % size
    if size != c.size:
      row = (row.astype(float) + 0.5) * (c.size / size) - 0.5
      column = (column.astype(float) + 0.5) * (c.size / size) - 0.5
    along = column * CHANNELS + channel.astype(column.dtype)
    signal = [sinusoids(row, c.d_model // 4, LONGEST), sinusoids(along, c.d_model // 4, LONGEST)]

    # With `grid` also the channel, and the place within a source pixel.
    before = c.d_model // 2
    if c.grid:
      turns = jnp.stack(
        [channel / CHANNELS, pixel // size % ratio / ratio, pixel % size % ratio / ratio], axis=-1
      )
      signal = [jnp.sin(2 * np.pi * turns), jnp.cos(2 * np.pi * turns), *signal]
      before -= PHASES
    x += jnp.pad(jnp.concatenate(signal, axis=-1), ((0, 0), (0, 0), (before, 0))).astype(c.dtype)
    return self.drop(x, train)

  def embed_forecast(
    self, around: Int[Array, 'b n a'], places: Int[Array, '#b n'], pixels: Int[Array, 'b s']
  ) -> Float[Array, 'b n d']:
    """Returns what is added to embeddings: the embedded forecast, and the differences it uses."""
    c = self.config
    forecast, read = self.forecast(around, places, pixels)
    waves = to_waves(forecast, (c.d_model // 2 - PHASES) // 2)
    wide = ((0, 0), (0, 0), (0, c.d_model - waves.shape[-1]))
    embedded = jnp.pad(FORECAST_WEIGHT * c.d_model**0.5 * waves, wide)
    return embedded.astype(c.dtype) + read

  def decode_nodes(
    self, tokens: Int[Array, 'b n'], nodes: Nodes, cache: WithMemory, taps: tuple[int, ...]
  ) -> Any:
    """Reads the nodes of a call, with forecasts added to the embeddings."""
    own, memory, c = cache.own, cache.memory, self.config
    mask = local_mask(nodes, own.length, own.layers[0].slots, c.block_length)
    sees = Sees(functools.partial(attend, mask=mask), attend_to_all)
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    added, last = None, ()
    if c.forecast:
      # The last layer of the cache is a ring of the tokens themselves.
      token = tokens[:, None, :, None].astype(jnp.float32)
      ring = own.layers[-1].write(token, token, own.length)
      assert isinstance(memory, PictureMemory)
      around = around_nodes(c.surroundings, nodes, own.length, tokens, ring.v[:, 0, :, 0])
      # beams of a source are adjacent rows
      pixels = jnp.repeat(memory.pixels, len(tokens) // len(memory.pixels), axis=0)
      added, last = self.embed_forecast(around, positions, pixels), (ring,)
    hidden, states, layers = self.decode(
      tokens, positions, sees, memory.layers, own, taps=taps, added=added
    )
    return hidden, states, (*layers, *last)

  def unembed(self, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    return self.output(hidden).astype(np.promote_types(hidden.dtype, np.float32))

  def __call__(
    self, batch: Mapping[str, Array], train: bool, taps: tuple[int, ...] = ()
  ) -> Features:
    """Teacher-forced states; see `LinenModel.features`."""
    pixels, places = _flatten(batch['source'])
    source = self.encode(pixels, places, attend_to_all, train)
    shifted = jnp.pad(batch['target'], ((0, 0), (1, 0)))[:, :-1]
    sees = Sees(functools.partial(attend_locally, block=self.config.block_length), attend_to_all)
    positions = jnp.arange(shifted.shape[1], dtype=jnp.int32)[None]
    added = None
    if self.config.forecast:
      around = around_all(self.config.surroundings, batch['target'])
      added = self.embed_forecast(around, positions, pixels)
    memory = self.memory(source)
    hidden, states, _ = self.decode(
      shifted, positions, sees, memory, train=train, taps=taps, added=added
    )
    self.output(hidden[:1, :1])  # `init` makes its parameters by this
    return Features(hidden, states, source)


def attend_to_all(q: Float[Array, 'b n h p'], kv: Any, **how: Any) -> Float[Array, 'b n h p']:
  """Attention without a mask: all pictures have the same size."""
  return attend(q, kv, jnp.ones((1, 1, kv.slots), bool), **how)


@struct.pytree
class Picture:
  """The encoder's output."""

  hidden: Float[Array, 'b s d']
  pixels: Int[Array, 'b s']  # the small pictures, which a forecast reads


@struct.pytree
class PictureMemory(Memory):
  """The memory of a model that forecasts."""

  pixels: Int[Array, 'b s']


@dataclasses.dataclass(frozen=True)
class ImageTransformer(LinenModel):
  """The model (protocol: `models/api.py`): a hashable value; its parameters are a nested dict."""

  config: ImageTransformerConfig

  network = Network
  vocab_size = INTENSITIES
  eos_ids = ()
  pad_id = 0
  start_id = 0  # any id: its embedding is zero
  suppressed_ids = ()
  products = (KERNELS, r'(^|/)(source|target)_embedding$')  # see `kernels.products`

  layers = setting('decoder_layers')
  forecasts = setting('forecast')  # True if the model has a forecast

  @property
  def fixed_length(self) -> int:
    """Number of tokens in every output."""
    return self.config.size**2 * CHANNELS

  max_positions = fixed_length

  def partition(self, devices: int) -> Table:
    """Splits embeddings and logits by intensities, the rest as `stacks`; see `kernels.sharding`."""
    return ((r'_embedding$', P('model')), (r'(^|/)output/(kernel|bias)$', P('model')), *PARTITION)

  @init_by_trace
  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters."""
    c = self.config
    source = jnp.zeros((1, c.source_size, c.source_size, CHANNELS), jnp.uint8)
    batch = {'source': source, 'target': jnp.zeros((1, 2), jnp.int32)}
    params = Network(c).init(key, batch, train=False)['params']
    for i in range(c.decoder_layers):
      if c.grid:
        qkv: Any = params[f'decoder_{i}']['attention']['qkv']
        queries_keys = start_self_attention(i, c.heads, c.d_model)
        queries_keys = jnp.asarray(queries_keys, qkv['kernel'].dtype)
        qkv['kernel'] = qkv['kernel'].at[:2].set(queries_keys)
      for name, start in start_cross_attention(c.heads, c.d_model).items():
        params[f'decoder_{i}']['cross'][name] |= start
    return params

  def encode(self, params: Params, inputs: Shaped[Array, '...']) -> Picture:
    """Encodes small pictures, uint8[b, 8, 8, 3] (8: the config's `source_size`).

    Raises:
      UserError: the inputs are not such pictures.
    """
    self.check(inputs)
    pixels, places = _flatten(inputs)
    hidden = self._call(params, pixels, places, attend_to_all, False, method='encode')
    return Picture(hidden, pixels)

  def check(self, inputs: Any) -> None:
    """Raises UserError unless inputs are uint8[b, 8, 8, 3] (8: the config's `source_size`)."""
    side = self.config.source_size
    if inputs.dtype != jnp.uint8 or inputs.shape[1:] != (side, side, CHANNELS):
      raise UserError(
        f'pictures must be uint8[rows, {side}, {side}, {CHANNELS}], not'
        f' {inputs.dtype}{list(inputs.shape)}: give RGB without alpha, 0 to 255'
      )

  def source(self, memory: Picture) -> Source:
    """Returns the encoder's states for a draft's cross-attention; see `models.api.source_of`."""
    return Source(memory.hidden, jnp.ones(memory.hidden.shape[:2], bool))

  def embedding(self, params: Params, tokens: Int[Array, '...']) -> Float[Array, '... d']:
    """Embeds intensities for rooted heads and drafts: as red, since a token has no channel."""
    return look_up(params['target_embedding'], tokens).astype(self.config.dtype)

  def forecast(
    self,
    params: Params,
    memory: Picture,
    written: Int[Array, 'b t'],
    places: Int[Array, 'b n'],
    weights: Float[Array | np.ndarray, 'phases width'] | None = None,
  ) -> Float[Array, 'b n']:
    """Returns the forecast at some places, in float32; all places before them must be written.

    Args:
      params: the parameters.
      memory: what `encode` returned.
      written: the intensities from the first place on.
      places: 0 to `fixed_length` - 1.
      weights: from `fit_forecast`; None: the model's own.
    """
    if weights is not None:
      params = {**params, 'forecast': {**params['forecast'], 'weights': weights}}
    index = jnp.asarray(self.config.surroundings.index)[places].clip(0)
    around = jnp.take_along_axis(written[:, None], index, axis=2)
    args = (around, places, memory.pixels)
    return self._call(params, *args, method=lambda network, *args: network.forecast(*args)[0])

  def fit_forecast(
    self, pictures: UInt8[np.ndarray, 'n s s 3'], images: UInt8[np.ndarray, 'n h h 3']
  ) -> Float[np.ndarray, 'phases width']:
    """Returns weights for `forecast` by least squares on images, such as this model's own."""
    return fit_weights(self.config.surroundings, pictures, images)

  def init_cache(
    self, params: Params, memory: Picture, rows: int, slots: int | Capacity
  ) -> WithMemory:
    """Returns an empty ring over the small picture's keys and values."""
    # A ring holds two blocks and the widest call, see `cache.ring`; without a bound it holds all.
    c = self.config
    if isinstance(slots, Capacity):
      widest = slots.nodes + slots.back
      size = 2 * c.block_length + widest - 1
    else:
      widest = size = max(slots, 2 * c.block_length)
    layers = []
    for _ in range(c.decoder_layers):
      layers.append(LayerRing.empty(rows, c.heads, size, c.head_width, c.dtype))
    keys_values = self._call(params, memory.hidden, method='memory')
    seen = Memory(keys_values, jnp.ones(memory.hidden.shape[:2], bool))

    # One more layer keeps written intensities, as keys and values, for the forecast.
    if c.forecast:
      written = c.surroundings.reach + widest
      layers.append(LayerRing.empty(rows, 1, written, 1, jnp.float32))
      seen = PictureMemory(seen.layers, seen.mask, memory.pixels)
    return WithMemory(KVCache.of(tuple(layers), rows), seen)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns logits of the 256 intensities."""
    return self._call(params, hidden, method='unembed')


def _flatten(
  pictures: UInt8[Array, 'b height width c'],
) -> tuple[Int[Array, 'b s'], Int[Array, '1 s']]:
  """Returns intensities in raster scan, and their positions."""
  tokens = pictures.reshape(pictures.shape[0], -1).astype(jnp.int32)
  return tokens, jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
