"""A linear forecast of each intensity from those around it: what predictive coding of images begins
with.

Attention finds neighbours, but must learn to add and subtract what it finds there: least squares on
a few neighbours and the small picture say more of a face than an Image Transformer does that has
seen each face once. So the network is told: each position's input has the forecast beside the token
before, and the network learns what the forecast leaves.

Around an intensity lie those of the pixels near it (`near`), as far as they are written, of all
channels, and the channels of its own pixel before it; and nine pixels of the small picture. As the
nearest pixels are all that share a pixel of the small picture, which is their mean, the last of
them is nearly known. All are taken as differences from that pixel of the small picture which covers
the place: what lies outside the picture differs by nothing. The weights are of a channel, and of a
place within a pixel of the small picture.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from fastdec.models.api import Nodes
from fastdec.models.layers import Dense

CHANNELS = 3
BRIGHTEST = 255
SMALL = tuple((down, along) for down in (-1, 0, 1) for along in (-1, 0, 1))  # of the small picture
FITTED_AT_ONCE = 32  # images
# variance of what is wrong with written intensities: all of -2 to 2 alike, as acceptance within 2
# leaves
MOVED = 2.0
UNIT = 16.0  # intensities: differences are told to the network in these


def near(ratio: int) -> tuple[tuple[int, int], ...]:
  """Pixels that may lie around one, as rows down and columns along: at most as far as two may lie
  apart that one pixel of the small picture covers, `ratio` by `ratio` of them, or 2.
  """
  far = max(2, ratio - 1)
  square = ((down, along) for down in range(-far, 1) for along in range(-far, far + 1))
  return tuple(place for place in square if place < (0, 0))  # before it, in raster order


@dataclasses.dataclass(frozen=True)
class Surroundings:
  """Where everything lies around each of size * size * 3 places; arrays of NumPy, made once for a
  size."""

  # places written before: each of `near`, then the own one; -1: outside, or not yet
  index: Int[np.ndarray, 't a']
  small: Int[np.ndarray, 't z']  # pixels of the small picture, all channels of each
  phase: Int[np.ndarray, ' t']  # which weights

  @staticmethod
  @functools.cache
  def of(size: int, source_size: int) -> 'Surroundings':
    """Those of a picture of `size` pixels a side, with a small picture of `source_size`."""
    place = np.arange(size * size * CHANNELS)
    pixel, channel = place // CHANNELS, place % CHANNELS
    row, column = pixel // size, pixel % size
    ratio = size // source_size
    index = []
    for down, along in near(ratio):
      at_row, at_column = row + down, column + along
      inside = (at_row >= 0) & (at_column >= 0) & (at_column < size)
      for other in range(CHANNELS):
        index.append(np.where(inside, (at_row * size + at_column) * CHANNELS + other, -1))
    for other in range(CHANNELS - 1):  # of the pixel itself
      index.append(np.where(other < channel, pixel * CHANNELS + other, -1))
    small = []
    for down, along in SMALL:
      at_row, at_column = (
        (at // ratio + step).clip(0, source_size - 1) for at, step in ((row, down), (column, along))
      )
      small += [(at_row * source_size + at_column) * CHANNELS + other for other in range(CHANNELS)]
    phase = (row % ratio * ratio + column % ratio) * CHANNELS + channel
    joined = np.stack(index, axis=1), np.stack(small, axis=1), phase
    return Surroundings(*(x.astype(np.int32) for x in joined))

  @property
  def phases(self) -> int:
    return int(self.phase.max()) + 1

  @property
  def width(self) -> int:
    """Differences at each place."""
    return self.index.shape[1] + self.small.shape[1]

  @property
  def reach(self) -> int:
    """How many places before its own a forecast reads, at most."""
    places = np.arange(len(self.index))[:, None]
    return int((places - np.where(self.index < 0, places, self.index)).max())

  def differences(
    self, around: Int[Array, 'b n a'], places: Int[Array, '#b n'], small: Int[Array, 'b s']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n f']]:
    """The small picture's intensity at each place, and how what lies around differs from it, in
    float32.

    Args:
      around: the intensities of the places `index`; what stands for those outside does not matter.
      places: 0 to size * size * 3 - 1.
      small: the small picture, all channels of a pixel together.
    """
    places = jnp.broadcast_to(places, around.shape[:2])
    pixels = jnp.take_along_axis(small[:, None], jnp.asarray(self.small)[places], axis=2).astype(
      jnp.float32
    )
    middle = SMALL.index((0, 0)) * CHANNELS
    covering = pixels[..., middle : middle + CHANNELS]  # [b, n, c]
    own_pixel = covering[..., : CHANNELS - 1]
    apart = around.astype(jnp.float32) - jnp.concatenate(
      [covering] * (around.shape[2] // CHANNELS) + [own_pixel], axis=-1
    )
    written = jnp.where(jnp.asarray(self.index)[places] < 0, 0, apart)
    others = pixels - jnp.tile(covering, len(SMALL))
    own = jnp.take_along_axis(covering, (places % CHANNELS)[..., None], axis=2)[..., 0]
    return own, jnp.concatenate([written, others], axis=-1)


def fitted(
  surroundings: Surroundings,
  pictures: UInt8[np.ndarray, 'n s s 3'],
  images: UInt8[np.ndarray, 'n h h 3'],
) -> Float[np.ndarray, 'phases width']:
  """The weights whose forecasts of these images have the least squared error, in float32.

  The error is that of images whose written intensities are off by a little (`MOVED`). Without that,
  large weights of opposite signs look at fine differences, which blocks accepted within a distance
  do not keep, and enlarge what is wrong with them from row to row.
  """
  by_phase = np.argsort(surroundings.phase, kind='stable').reshape(surroundings.phases, -1)
  squares = np.zeros((surroundings.phases, surroundings.width, surroundings.width))
  products = np.zeros(squares.shape[:2])
  for first in range(0, len(images), FITTED_AT_ONCE):
    chunk = slice(first, first + FITTED_AT_ONCE)
    square, product = _normal_equations(
      surroundings, by_phase, _flat(pictures[chunk]), _flat(images[chunk])
    )
    squares += square
    products += product
  written = np.arange(surroundings.width) < surroundings.index.shape[1]
  counted = len(images) * by_phase.shape[1]  # intensities for each row of weights
  squares += np.diag(np.where(written, MOVED * counted, 1))  # 1: what never differs has no weight
  return np.linalg.solve(squares, products[..., None])[..., 0].astype(np.float32)


def _normal_equations(
  surroundings: Surroundings,
  by_phase: Int[np.ndarray, 'p m'],
  small: Int[Array, 'b s'],
  tokens: Int[Array, 'b t'],
) -> tuple[Float[Array, 'p f f'], Float[Array, 'p f']]:
  places = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  own, differences = surroundings.differences(around_all(surroundings, tokens), places, small)
  given, wanted = differences[:, by_phase], (tokens.astype(jnp.float32) - own)[:, by_phase]
  return jnp.einsum('bpmf,bpmg->pfg', given, given), jnp.einsum('bpmf,bpm->pf', given, wanted)


def _flat(pictures: UInt8[np.ndarray, 'b h h 3']) -> Int[Array, 'b t']:
  return jnp.asarray(pictures.reshape(len(pictures), -1), jnp.int32)


class Forecast(nn.Module):
  """The forecast, and what the network is told of it."""

  size: int
  source_size: int
  d_model: int
  dtype: Any

  def setup(self) -> None:
    self.surroundings = Surroundings.of(self.size, self.source_size)
    shape = self.surroundings.phases, self.surroundings.width
    # At first what covers the place is forecast. Better than that, to begin with: `fitted` to
    # photographs.
    self.weights = self.param('weights', lambda _: jnp.zeros(shape, jnp.float32))
    self.read = Dense((self.d_model,), False, self.dtype)

  def __call__(
    self, around: Int[Array, 'b n a'], places: Int[Array, '#b n'], small: Int[Array, 'b s']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n d']]:
    """The forecast intensities, in float32 and within 0 and 255, and the differences as the network
    reads them; see `Surroundings`."""
    own, differences = self.surroundings.differences(around, places, small)
    phase = jnp.asarray(self.surroundings.phase)[places]
    # By the weights of all phases, of which one is taken: where they were looked up, one program of
    # XLA's CPU backend (jax 0.10.2, batches of two, sines behind) mixed up the rows.
    wide = np.promote_types(self.weights.dtype, np.float32)
    changes = jnp.einsum(
      'bnf,pf->bnp', differences.astype(wide), self.weights.astype(wide), precision='highest'
    )
    is_own = phase[..., None] == jnp.arange(len(self.weights), dtype=phase.dtype)[None, None]
    change = jnp.where(is_own, changes, 0).sum(-1)
    # Beyond, the network has seen none: it would write what makes the next forecast worse.
    return (own.astype(wide) + change).clip(0, BRIGHTEST), self.read(differences / UNIT)


def around_all(surroundings: Surroundings, tokens: Int[Array, 'b t']) -> Int[Array, 'b t a']:
  """What lies around each of the first t places, whose tokens are known (training)."""
  return tokens[:, jnp.asarray(surroundings.index[: tokens.shape[1]]).clip(0)]


def around_nodes(
  surroundings: Surroundings,
  nodes: Nodes,
  length: Int[Array, ' b'],
  tokens: Int[Array, 'b n'],
  ring: Float[Array, 'b s'],
) -> Int[Array, 'b n a']:
  """What lies around the places that nodes predict.

  Args:
    surroundings: of all places.
    nodes: of a call.
    length: of what is committed, the start token included: the node at position p holds the token
      of place p - 1.
    tokens: the nodes'.
    ring: the token at position p in slot p modulo s, a whole number; those of a chain's nodes are
      there already.
  """
  depths = jnp.broadcast_to(jnp.asarray(nodes.depths), tokens.shape)
  positions = jnp.asarray(surroundings.index)[length[:, None] + depths] + 1  # of the tokens around
  written = jnp.take_along_axis(ring[:, None], positions % ring.shape[1], axis=2).astype(
    tokens.dtype
  )
  if nodes.is_chain:
    return written
  depth = positions - length[:, None, None]  # of the node that holds the token; negative: committed
  sees = jnp.broadcast_to(jnp.asarray(nodes.mask), (*tokens.shape, nodes.n))
  is_there = (depth[..., None] == depths[:, None, None]) & sees[:, :, None]
  return jnp.where(
    depth < 0, written, jnp.where(is_there, tokens[:, None, None], 0).sum(-1, dtype=tokens.dtype)
  )
