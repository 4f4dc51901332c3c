"""A linear forecast of each intensity from its surroundings, as in predictive coding of images.

Attention finds neighbours, but must learn to add and subtract them. Least squares on a few
neighbours and the small picture predicts faces better than an Image Transformer that saw each face
once. So the network's input at each position has the forecast too, with the token before it; the
network learns the rest.

The surroundings of an intensity are the written pixels near it (`near_offsets`), the earlier
channels of its own pixel, and nine pixels of the small picture. A pixel of the small picture is the
mean of the pixels that it covers. The near pixels include all of these, so the last of them is
nearly known. Each value is a difference from the small picture's pixel that covers the place; it is
0 outside the picture. Weights depend on the channel, and on the place within a small pixel.
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
# offsets of pixels of the small picture, as (rows down, columns along)
SMALL = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 0), (0, 1), (1, -1), (1, 0), (1, 1))
FITTED_AT_ONCE = 32  # images
# variance of the error in written intensities: uniform on -2..2, after acceptance within 2
MOVED = 2.0
UNIT = 16.0  # intensities: the unit of the differences that the network reads


def near_offsets(ratio: int) -> tuple[tuple[int, int], ...]:
  """Returns the offsets of the pixels near a pixel and before it, as (rows down, columns along).

  They reach across the `ratio` by `ratio` pixels under a small one, and at least 2 pixels.
  """
  far = max(2, ratio - 1)
  offsets = []
  for down in range(-far, 1):
    for along in range(-far, far + 1):
      if (down, along) < (0, 0):  # before it, in raster order
        offsets.append((down, along))
  return tuple(offsets)


@dataclasses.dataclass(frozen=True)
class Surroundings:
  """Surroundings of each of size * size * 3 places, as NumPy arrays made once for a size."""

  # places written before: near pixels, then the own pixel; -1: outside, or not yet written
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
    for down, along in near_offsets(ratio):
      at_row, at_column = row + down, column + along
      inside = (at_row >= 0) & (at_column >= 0) & (at_column < size)
      for other in range(CHANNELS):
        index.append(np.where(inside, (at_row * size + at_column) * CHANNELS + other, -1))
    for other in range(CHANNELS - 1):
      index.append(np.where(other < channel, pixel * CHANNELS + other, -1))

    # Pixels of the small picture. Those outside are replaced by the nearest one at the edge.
    small = []
    for down, along in SMALL:
      at_row = (row // ratio + down).clip(0, source_size - 1)
      at_column = (column // ratio + along).clip(0, source_size - 1)
      for other in range(CHANNELS):
        small.append((at_row * source_size + at_column) * CHANNELS + other)

    phase = (row % ratio * ratio + column % ratio) * CHANNELS + channel
    return Surroundings(
      np.stack(index, axis=1).astype(np.int32),
      np.stack(small, axis=1).astype(np.int32),
      phase.astype(np.int32),
    )

  @property
  def phases(self) -> int:
    """Number of rows of weights."""
    return int(self.phase.max()) + 1

  @property
  def width(self) -> int:
    """Number of differences at each place."""
    return self.index.shape[1] + self.small.shape[1]

  @property
  def reach(self) -> int:
    """Longest way back from a place to one that its forecast reads, in places."""
    places = np.arange(len(self.index))[:, None]
    return int((places - np.where(self.index < 0, places, self.index)).max())

  def differences(
    self, around: Int[Array, 'b n a'], places: Int[Array, '#b n'], small: Int[Array, 'b s']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n f']]:
    """Returns the small picture's intensity at each place, and the differences from it, float32.

    Args:
      around: the intensities at the places `index`; any value for places outside.
      places: 0 to size * size * 3 - 1.
      small: the small picture, with the channels of a pixel next to one another.
    """
    # The nine pixels of the small picture; the middle one covers the place.
    places = jnp.broadcast_to(places, around.shape[:2])
    index_bnz = jnp.asarray(self.small)[places]
    pixels = jnp.take_along_axis(small[:, None], index_bnz, axis=2).astype(jnp.float32)
    middle = SMALL.index((0, 0)) * CHANNELS
    covering = pixels[..., middle : middle + CHANNELS]  # [b, n, c]

    # Written pixels have all channels, the own pixel all but the last.
    near_pixels, own_pixel = around.shape[2] // CHANNELS, covering[..., : CHANNELS - 1]
    expected = jnp.concatenate([covering] * near_pixels + [own_pixel], axis=-1)
    written = around.astype(jnp.float32) - expected
    written = jnp.where(jnp.asarray(self.index)[places] < 0, 0, written)

    others = pixels - jnp.tile(covering, len(SMALL))
    own = jnp.take_along_axis(covering, (places % CHANNELS)[..., None], axis=2)[..., 0]
    return own, jnp.concatenate([written, others], axis=-1)


def fit_weights(
  surroundings: Surroundings,
  pictures: UInt8[np.ndarray, 'n s s 3'],
  images: UInt8[np.ndarray, 'n h h 3'],
) -> Float[np.ndarray, 'phases width']:
  """Returns the weights with the least squared error of forecasts on these images, in float32.

  The fit assumes that written intensities have small errors (`MOVED`). Otherwise it would find
  large weights of opposite signs, which read fine differences. Blocks accepted within a distance
  lose these differences, and the weights would enlarge their errors from row to row.
  """
  # The normal equations of each phase, summed over the images.
  by_phase = np.argsort(surroundings.phase, kind='stable').reshape(surroundings.phases, -1)
  squares = np.zeros((surroundings.phases, surroundings.width, surroundings.width))
  products = np.zeros(squares.shape[:2])
  for first in range(0, len(images), FITTED_AT_ONCE):
    small = pictures[first : first + FITTED_AT_ONCE]
    large = images[first : first + FITTED_AT_ONCE]
    small = jnp.asarray(small, jnp.int32).reshape(len(small), -1)
    tokens = jnp.asarray(large, jnp.int32).reshape(len(large), -1)
    places = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    own, differences = surroundings.differences(around_all(surroundings, tokens), places, small)
    inputs, wanted = differences[:, by_phase], (tokens.astype(jnp.float32) - own)[:, by_phase]
    squares += jnp.einsum('bpmf,bpmg->pfg', inputs, inputs)
    products += jnp.einsum('bpmf,bpm->pf', inputs, wanted)

  # Add the errors' variance, and solve.
  written = np.arange(surroundings.width) < surroundings.index.shape[1]
  counted = len(images) * by_phase.shape[1]  # intensities for each row of weights
  squares += np.diag(np.where(written, MOVED * counted, 1))  # 1: constant differences weigh 0
  return np.linalg.solve(squares, products[..., None])[..., 0].astype(np.float32)


class Forecast(nn.Module):
  """The forecast, and the network's input from it."""

  size: int
  source_size: int
  d_model: int
  dtype: Any

  def setup(self) -> None:
    self.surroundings = Surroundings.of(self.size, self.source_size)
    shape = self.surroundings.phases, self.surroundings.width
    # At first the covering pixel is the forecast. `fit_weights` on photographs starts better.
    self.weights = self.param('weights', lambda _: jnp.zeros(shape, jnp.float32))
    self.read = Dense((self.d_model,), False, self.dtype)

  def __call__(
    self, around: Int[Array, 'b n a'], places: Int[Array, '#b n'], small: Int[Array, 'b s']
  ) -> tuple[Float[Array, 'b n'], Float[Array, 'b n d']]:
    """Returns the forecast intensities, float32 from 0 to 255, and the network's input from them.

    See `Surroundings`."""
    own, differences = self.surroundings.differences(around, places, small)
    phase = jnp.asarray(self.surroundings.phase)[places]

    # Apply the weights of all phases, and take one result. With a look-up of weights, a program of
    # XLA's CPU backend (jax 0.10.2, batches of two, followed by sines) mixed up rows.
    wide = np.promote_types(self.weights.dtype, np.float32)
    changes = jnp.einsum(
      'bnf,pf->bnp', differences.astype(wide), self.weights.astype(wide), precision='highest'
    )
    is_own = phase[..., None] == jnp.arange(len(self.weights), dtype=phase.dtype)[None, None]
    change = jnp.where(is_own, changes, 0).sum(-1)

    # The network has never seen a forecast out of range: its token would make the next forecast
    # worse.
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
    nodes: the nodes of a call.
    length: committed tokens, the start token included: the node at position p holds the token of
      place p - 1.
    tokens: the nodes' tokens.
    ring: the token at position p is in slot p modulo s, as a whole number; the tokens of a chain's
      nodes are already there.
  """
  depths = jnp.broadcast_to(jnp.asarray(nodes.depths), tokens.shape)
  positions = jnp.asarray(surroundings.index)[length[:, None] + depths] + 1  # of the tokens around
  written = jnp.take_along_axis(ring[:, None], positions % ring.shape[1], axis=2)
  written = written.astype(tokens.dtype)
  if nodes.is_chain:
    return written

  # In a tree, a token that is not committed is that of the ancestor at its depth.
  depth = positions - length[:, None, None]  # negative: committed
  sees = jnp.broadcast_to(jnp.asarray(nodes.mask), (*tokens.shape, nodes.n))
  is_there = (depth[..., None] == depths[:, None, None]) & sees[:, :, None]
  of_nodes = jnp.where(is_there, tokens[:, None, None], 0).sum(-1, dtype=tokens.dtype)
  return jnp.where(depth < 0, written, of_nodes)
