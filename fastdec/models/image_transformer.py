"""The Image Transformer for super-resolution (Parmar et al. 2018; T2T's `img2img_transformer`).

The image model of Stern et al. 2018: global attention over a small picture, 1D local attention over
a large one. Tokens are intensities, 0..255, in raster scan, channels interleaved: red, green, blue
of the first pixel, then of the next. Every output has size * size * 3 tokens, and no end token.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, Num, Shaped, UInt8

from fastdec import struct
from fastdec.cache.memory import Memory, WithMemory
from fastdec.cache.ring import LayerRing, LocalCache, ring_size
from fastdec.errors import UserError
from fastdec.kernels.products import KERNELS
from fastdec.kernels.sharding import Table, constrain
from fastdec.models.api import Capacity, Nodes, Params
from fastdec.models.attention import attend, attend_locally, local_mask
from fastdec.models.encoder_decoder import Source
from fastdec.models.forecast import (
  CHANNELS,
  Forecast,
  Surroundings,
  around_all,
  around_nodes,
  fitted,
)
from fastdec.models.fresh import unrun
from fastdec.models.image_start import (
  INTENSITIES,
  LONGEST,
  as_waves,
  looking_across,
  looking_back,
  ordered_intensities,
)
from fastdec.models.layers import Dense, look_up, sinusoids
from fastdec.models.linen import LinenModel
from fastdec.models.stacks import PARTITION, Sees, StackConfig, Stacks
from fastdec.models.taps import Features, check_taps

MOST = 4096  # pixels a side, and tokens of a block
PHASES = 6  # entries that encode the channel, and the place within a source pixel
FORECAST_WEIGHT = 2.0  # the embedding of the token before has 1


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
    self._check_sizes('source_size', 'size', 'block_length')
    if max(self.size, self.source_size, self.block_length) > MOST:
      raise UserError(
        f'size={self.size}, source_size={self.source_size} and block_length={self.block_length}'
        f' are not possible: give at most {MOST}'
      )
    if self.d_model % 8:
      raise UserError(
        f'd_model={self.d_model} is not divisible by 8: sines and cosines of rows and'
        ' columns share half'
      )
    if self.head_width < 4:
      raise UserError(
        f'd_model={self.d_model} with heads={self.heads} is not possible: a head compares rows and'
        ' columns by 4 numbers at least'
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
        'forecast=True with grid=False is not possible: its weights are of a place'
        ' within a source pixel'
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
    d, reserved = self.config.d_model, PHASES if self.config.grid else 0

    def table(name):
      return self.param(name, lambda _: jnp.tile(ordered_intensities(d, reserved), (CHANNELS, 1)))

    self.source_embedding, self.target_embedding = (
      table('source_embedding'),
      table('target_embedding'),
    )
    self.output = Dense(
      (INTENSITIES,), True, self.config.dtype, lambda *_: ordered_intensities(d, reserved)
    )
    if self.config.forecast:
      self.forecast = Forecast(self.config.size, self.config.source_size, d, self.config.dtype)

  def embed(
    self, tokens: Int[Array, 'b n'], positions: Int[Array, '#b n'], side: str, train: bool
  ) -> Float[Array, 'b n d']:
    """Embeds by channel, times sqrt(d), plus the signal of row and column, in the compute dtype.

    A target token is that of the position before, so position 0 has none: zero. A source pixel gets
    the signal of the output place that it covers, so the model need not learn where to look.
    """
    # The intensity, by channel.
    c = self.config
    size = c.size if side == 'target' else c.source_size
    own = positions - 1 if side == 'target' else positions
    table = self.target_embedding if side == 'target' else self.source_embedding
    x = look_up(table, own % CHANNELS * INTENSITIES + tokens).astype(c.dtype) * c.d_model**0.5
    x = jnp.where((own >= 0)[..., None], x, 0)

    # The place: row and column, and with `grid` the channel and the place within a source pixel.
    pixel, channel = positions // CHANNELS, positions % CHANNELS
    row, column = (_centre(at, c.size / size) for at in (pixel // size, pixel % size))
    along = column * CHANNELS + channel.astype(column.dtype)
    signal = [sinusoids(place, c.d_model // 4, LONGEST) for place in (row, along)]
    before = c.d_model // 2
    if c.grid:
      ratio = c.size // c.source_size if side == 'target' else 1
      turns = jnp.stack(
        [channel / CHANNELS, pixel // size % ratio / ratio, pixel % size % ratio / ratio], axis=-1
      )
      signal = [jnp.sin(2 * np.pi * turns), jnp.cos(2 * np.pi * turns), *signal]
      before -= PHASES
    x += jnp.pad(jnp.concatenate(signal, axis=-1), ((0, 0), (0, 0), (before, 0))).astype(c.dtype)
    return self.drop(x, train)

  def forecast_at(
    self, around: Int[Array, 'b n a'], places: Int[Array, '#b n'], pixels: Int[Array, 'b s']
  ) -> Array:
    return self.forecast(around, places, pixels)[0]

  def foresee(
    self, around: Int[Array, 'b n a'], places: Int[Array, '#b n'], pixels: Int[Array, 'b s']
  ) -> Float[Array, 'b n d']:
    """Returns the addition to the embeddings: the forecast, embedded, and its differences."""
    c = self.config
    forecast, read = self.forecast(around, places, pixels)
    waves = as_waves(forecast, (c.d_model // 2 - PHASES) // 2)
    wide = ((0, 0), (0, 0), (0, c.d_model - waves.shape[-1]))
    embedded = jnp.pad(FORECAST_WEIGHT * c.d_model**0.5 * waves, wide)
    return embedded.astype(c.dtype) + read

  def decode_seeing(
    self,
    tokens: Int[Array, 'b n'],
    positions: Int[Array, 'b n'],
    sees: Sees,
    memory: Memory,
    cache: LocalCache,
    nodes: Nodes,
    taps: tuple[int, ...],
  ) -> Any:
    """Runs `decode` over a cache, with forecasts added to the embeddings."""
    beside, last = None, ()
    if self.config.forecast:
      token = tokens[:, None, :, None].astype(jnp.float32)
      ring = cache.layers[-1].write(token, token, cache.length)
      assert isinstance(memory, PictureMemory)
      around = around_nodes(
        self.config.surroundings, nodes, cache.length, tokens, ring.k[:, 0, :, 0]
      )
      # beams of a source lie together
      pixels = jnp.repeat(memory.pixels, len(tokens) // len(memory.pixels), axis=0)
      beside, last = self.foresee(around, positions, pixels), (ring,)
    hidden, states, layers = self.decode(
      tokens, positions, sees, memory.layers, cache, taps=taps, beside=beside
    )
    return hidden, states, (*layers, *last)

  def unembed(self, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    return self.output(hidden).astype(np.promote_types(hidden.dtype, np.float32))

  def __call__(
    self, batch: Mapping[str, Array], train: bool, taps: tuple[int, ...] = ()
  ) -> Features:
    """Teacher-forced states; see `LinenModel.features`."""
    pixels, places = _flat(batch['source'])
    source = self.encode(pixels, places, attend_to_all, train)
    shifted = jnp.pad(batch['target'], ((0, 0), (1, 0)))[:, :-1]
    sees = Sees(functools.partial(attend_locally, block=self.config.block_length), attend_to_all)
    positions = jnp.arange(shifted.shape[1], dtype=jnp.int32)[None]
    beside = None
    if self.config.forecast:
      beside = self.foresee(
        around_all(self.config.surroundings, batch['target']), positions, pixels
      )
    memory = self.memory(source)
    hidden, states, _ = self.decode(
      shifted, positions, sees, memory, train=train, taps=taps, beside=beside
    )
    self.output(hidden[:1, :1])  # in `init`, makes its parameters
    return Features(hidden, states, source)


def attend_to_all(q: Float[Array, 'b n h p'], kv: Any, **how: Any) -> Float[Array, 'b n h p']:
  """Attention without a mask: pictures are all of one size."""
  return attend(q, kv, jnp.ones((1, 1, kv.k.shape[2]), bool), **how)


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
  start_id = 0  # embedded as zero, whatever it is
  suppressed_ids = ()
  products = (KERNELS, r'(^|/)(source|target)_embedding$')  # see `kernels.products`

  @property
  def d_model(self) -> int:
    """Width of hidden states."""
    return self.config.d_model

  @property
  def layers(self) -> int:
    """Number of decoder layers."""
    return self.config.decoder_layers

  @property
  def fixed_length(self) -> int:
    """Number of tokens in every output."""
    return self.config.size**2 * CHANNELS

  @property
  def max_positions(self) -> int:
    return self.fixed_length

  def partition(self, devices: int) -> Table:
    """Splits embeddings and logits by intensities, the rest as `stacks`; see `kernels.sharding`."""
    return ((r'_embedding$', P('model')), (r'(^|/)output/(kernel|bias)$', P('model')), *PARTITION)

  @unrun
  def init(self, key: Array) -> Params:
    """Returns fresh float32 parameters."""
    c = self.config
    source = jnp.zeros((1, c.source_size, c.source_size, CHANNELS), jnp.uint8)
    params = Network(c).init(
      key, {'source': source, 'target': jnp.zeros((1, 2), jnp.int32)}, train=False
    )['params']
    for i in range(c.decoder_layers):
      if c.grid:
        qkv: Any = params[f'decoder_{i}']['attention']['qkv']
        queries_keys = jnp.asarray(looking_back(i, c.heads, c.d_model), qkv['kernel'].dtype)
        qkv['kernel'] = qkv['kernel'].at[:2].set(queries_keys)
      for name, start in looking_across(c.heads, c.d_model).items():
        params[f'decoder_{i}']['cross'][name] |= start
    return params

  def encode(self, params: Params, inputs: Shaped[Array, '...']) -> Picture:
    """Encodes small pictures, uint8[b, 8, 8, 3] (8: the config's `source_size`).

    Raises:
      UserError: the inputs are not such pictures.
    """
    self.check(inputs)
    pixels, places = _flat(inputs)
    return Picture(
      self._call(params, pixels, places, attend_to_all, False, method='encode'), pixels
    )

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
    """Embeds intensities as red, for rooted heads and drafts: a token does not tell its channel."""
    return look_up(params['target_embedding'], tokens).astype(self.config.dtype)

  @property
  def forecasts(self) -> bool:
    """True if the model has a forecast."""
    return self.config.forecast

  def forecast(
    self,
    params: Params,
    memory: Picture,
    written: Int[Array, 'b t'],
    places: Int[Array, 'b n'],
    weights: Float[Array | np.ndarray, 'phases width'] | None = None,
  ) -> Float[Array, 'b n']:
    """Returns the forecast at some places, in float32; all places before them are written.

    Args:
      params: the parameters.
      memory: as `encode` makes it.
      written: intensities from the first on.
      places: 0 to `fixed_length` - 1.
      weights: replace the model's, as `fit_forecast` gives them.
    """
    if weights is not None:
      params = {**params, 'forecast': {**params['forecast'], 'weights': weights}}
    index = jnp.asarray(self.config.surroundings.index)[places].clip(0)
    around = jnp.take_along_axis(written[:, None], index, axis=2)
    return self._call(params, around, places, memory.pixels, method='forecast_at')

  def fit_forecast(
    self, pictures: UInt8[np.ndarray, 'n s s 3'], images: UInt8[np.ndarray, 'n h h 3']
  ) -> Float[np.ndarray, 'phases width']:
    """Returns weights for `forecast` by least squares on images, such as this model's own."""
    return fitted(self.config.surroundings, pictures, images)

  def init_cache(
    self, params: Params, memory: Picture, rows: int, slots: int | Capacity
  ) -> WithMemory:
    """Returns an empty ring over the small picture's keys and values."""
    c = self.config
    is_known = isinstance(slots, Capacity)
    if is_known:
      size = ring_size(c.block_length, slots.nodes + slots.back)
    else:  # calls may have any width, so the ring holds everything
      size = max(slots, 2 * c.block_length)
    own = LocalCache.empty_ring(
      c.decoder_layers, rows, c.heads, size, c.d_model // c.heads, c.dtype, c.block_length
    )
    seen = Memory(
      self._call(params, memory.hidden, method='memory'), jnp.ones(memory.hidden.shape[:2], bool)
    )
    if c.forecast:
      # The forecast looks up written intensities in a last layer, as keys (and values).
      size = c.surroundings.reach + slots.nodes + slots.back if is_known else size
      intensities = [
        constrain(jnp.zeros((rows, 1, size, 1), jnp.float32), 'data') for _ in range(2)
      ]
      own = dataclasses.replace(own, layers=(*own.layers, LayerRing(*intensities)))
      seen = PictureMemory(seen.layers, seen.mask, memory.pixels)
    return WithMemory(own, seen)

  def apply(
    self,
    params: Params,
    tokens: Int[Array, 'b n'],
    nodes: Nodes,
    cache: WithMemory,
    taps: tuple[int, ...] = (),
  ) -> tuple[Float[Array, 'b n d'], tuple[Float[Array, 'b n d'], ...], WithMemory]:
    """See `models.api.Model.apply`."""
    check_taps(taps, self.layers)
    own, memory = cache.own, cache.memory
    mask = local_mask(nodes, own.length, own.slots, own.block)
    sees = Sees(functools.partial(attend, mask=mask), attend_to_all)
    positions = own.length[:, None] + jnp.atleast_2d(nodes.depths)
    args = (tokens, positions, sees, memory, own, nodes, taps)
    hidden, states, layers = self._call(params, *args, method='decode_seeing')
    return hidden, states, WithMemory(dataclasses.replace(own, layers=layers), memory)

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns logits of the 256 intensities."""
    return self._call(params, hidden, method='unembed')


def _flat(
  pictures: UInt8[Array, 'b height width c'],
) -> tuple[Int[Array, 'b s'], Int[Array, '1 s']]:
  """Returns intensities in raster scan, and their positions."""
  tokens = pictures.reshape(pictures.shape[0], -1).astype(jnp.int32)
  return tokens, jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]


def _centre(at: Int[Array, '*b n'], scale: float) -> Num[Array, '*b n']:
  """Returns a source pixel's centre in the output's coordinates; output pixels as they are."""
  return at if scale == 1 else (at.astype(float) + 0.5) * scale - 0.5
