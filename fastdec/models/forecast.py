"""A linear forecast of each intensity from its surroundings, as in predictive coding of images.

Attention finds neighbours, but must learn to add and subtract them. Least squares on a few
neighbours and the small picture predicts faces better than an Image Transformer that saw each face
once. So each position's input holds the forecast beside the token before; the network learns the
rest.

The surroundings of an intensity are the written pixels near it (`near`), the earlier channels of
its own pixel, and nine pixels of the small picture. A pixel of the small picture is the mean of the
pixels that it covers. `near` reaches all of these, so the last of them is nearly known. Each value
is a difference from the small picture's pixel that covers the place; it is 0 outside the picture.
Weights depend on the channel, and on the place within a small pixel.
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
# variance of the error in written intensities: uniform on -2..2, as acceptance within 2 leaves it
MOVED = 2.0
UNIT = 16.0  # intensities: the unit of the differences that the network reads


def near(ratio: int) -> tuple[tuple[int, int], ...]:
  """Offsets of the pixels near one and before it, as (rows down, columns along).

  They reach as far as two of the `ratio` by `ratio` pixels under a small one lie apart, at least 2.
  """
  far = max(2, ratio - 1)
  square = ((down, along) for down in range(-far, 1) for along in range(-far, far + 1))
  return tuple(place for place in square if place < (0, 0))  # before it, in raster order


@dataclasses.dataclass(frozen=True)
class Surroundings:
  """Surroundings of each of size * size * 3 places, as NumPy arrays made once for a size."""

  # places written before: each of `near`, then the own pixel; -1: outside, or not yet written
  index: Int[np.ndarray, 't a']
  small: Int[np.ndarray, 't z']  # pixels of the small picture, all channels of each
  phase: Int[np.ndarray, ' t']  # row of the weights

  @staticmethod
  @functools.cache
  def of(size: int, source_size: int) -> 'Surroundings':
    """Returns the surroundings for `size` pixels a side, and `source_size` in the small picture."""
    place = np.arange(size * size * CHANNELS)
    pixel, channel = place // CHANNELS, place % CHANNELS
    row, column = pixel // size, pixel % size
    ratio = size // source_size
    # Places written before, by channel: the pixels near it, then its own pixel.
    index = []
    for down, along in near(ratio):
      at_row, at_column = row + down, column + along
      inside = (at_row >= 0) & (at_column >= 0) & (at_column < size)
      for other in range(CHANNELS):
        index.append(np.where(inside, (at_row * size + at_column) * CHANNELS + other, -1))
    for other in range(CHANNELS - 1):
      index.append(np.where(other < channel, pixel * CHANNELS + other, -1))
    # Pixels of the small picture; at the edges the last one stands for those outside.
    small = []
    for down, along in SMALL:
      at_row = (row // ratio + down).clip(0, source_size - 1)
      at_column = (column // ratio + along).clip(0, source_size - 1)
      small += [(at_row * source_size + at_column) * CHANNELS + other for other in range(CHANNELS)]
    phase = (row % ratio * ratio + column % ratio) * CHANNELS + channel
    joined = np.stack(index, axis=1), np.stack(small, axis=1), phase
    return Surroundings(*(x.astype(np.int32) for x in joined))

  @property
  def phases(self) -> int:
    return int(self.phase.max()) + 1

  @property
  def width(self) -> int:
    """Number of differences at each place."""
    return self.index.shape[1] + self.small.shape[1]

  @property
  def reach(self) -> int:
    """Largest distance from a place back to one that its forecast reads, in places."""
    places = np.arange(len(self.index))[:, None]
    return int((places - np.where(self.index < 0, places, self.index)).max())

  def differences(
    self, around: Int[Array, 'b n a'], places: Int[Array, '#b n'], small: Int[Array, 'b s']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n f']]:
    """Returns the small picture's intensity at each place, and the differences from it, float32.

    Args:
      around: the intensities of the places `index`; any value for those outside.
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
  """Returns the weights with the least squared error of forecasts on these images, in float32.

  It counts written intensities as off by a little (`MOVED`). Otherwise large weights of opposite
  signs would read fine differences. Blocks accepted within a distance do not keep these, and the
  weights would enlarge their errors from row to row.
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
  squares += np.diag(np.where(written, MOVED * counted, 1))  # 1: constant differences weigh 0
  return np.linalg.solve(squares, products[..., None])[..., 0].astype(np.float32)


def _normal_equations(
  surroundings: Surroundings,
  by_phase: Int[np.ndarray, 'p m'],
  small: Int[Array, 'b s'],
  tokens: Int[Array, 'b t'],
) -> tuple[Float[Array, 'p f f'], Float[Array, 'p f']]:
  places = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  own, differences = surroundings.differences(around_all(surroundings, tokens), places, small)
  inputs, wanted = differences[:, by_phase], (tokens.astype(jnp.float32) - own)[:, by_phase]
  squares = jnp.einsum('bpmf,bpmg->pfg', inputs, inputs)
  return squares, jnp.einsum('bpmf,bpm->pf', inputs, wanted)


def _flat(pictures: UInt8[np.ndarray, 'b h h 3']) -> Int[Array, 'b t']:
  return jnp.asarray(pictures.reshape(len(pictures), -1), jnp.int32)


class Forecast(nn.Module):
  """The forecast, and the network's input about it."""

  size: int
  source_size: int
  d_model: int
  dtype: Any

  def setup(self) -> None:
    self.surroundings = Surroundings.of(self.size, self.source_size)
    shape = self.surroundings.phases, self.surroundings.width
    # At first the covering pixel is the forecast. Weights `fitted` to photographs start better.
    self.weights = self.param('weights', lambda _: jnp.zeros(shape, jnp.float32))
    self.read = Dense((self.d_model,), False, self.dtype)

  def __call__(
    self, around: Int[Array, 'b n a'], places: Int[Array, '#b n'], small: Int[Array, 'b s']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n d']]:
    """Returns forecast intensities, float32 from 0 to 255, and the differences as network input.

    See `Surroundings`."""
    own, differences = self.surroundings.differences(around, places, small)
    phase = jnp.asarray(self.surroundings.phase)[places]
    # The weights of all phases are applied, then one result is taken. With a look-up of weights,
    # a program of XLA's CPU backend (jax 0.10.2, batches of two, followed by sines) mixed up rows.
    wide = np.promote_types(self.weights.dtype, np.float32)
    changes = jnp.einsum(
      'bnf,pf->bnp', differences.astype(wide), self.weights.astype(wide), precision='highest'
    )
    is_own = phase[..., None] == jnp.arange(len(self.weights), dtype=phase.dtype)[None, None]
    change = jnp.where(is_own, changes, 0).sum(-1)
    # The network has seen no forecast beyond: its tokens would make the next forecast worse.
    return (own.astype(wide) + change).clip(0, BRIGHTEST), self.read(differences / UNIT)


def around_all(surroundings: Surroundings, tokens: Int[Array, 'b t']) -> Int[Array, 'b t a']:
  """Returns the intensities around each of the first t places, with known tokens (training)."""
  return tokens[:, jnp.asarray(surroundings.index[: tokens.shape[1]]).clip(0)]


def around_nodes(
  surroundings: Surroundings,
  nodes: Nodes,
  length: Int[Array, ' b'],
  tokens: Int[Array, 'b n'],
  ring: Float[Array, 'b s'],
) -> Int[Array, 'b n a']:
  """Returns the intensities around the places that nodes predict.

  Args:
    surroundings: of all places.
    nodes: of a call.
    length: committed tokens, the start token included: the node at position p holds the token of
      place p - 1.
    tokens: the nodes' tokens.
    ring: the token at position p in slot p modulo s, a whole number; a chain's nodes are already in
      it.
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
