"""Shrinking pictures by area: every output pixel is the mean of what it covers, of parts of pixels by their part.

As `tf.image.resize` does by its method 'area'. All sums are whole numbers below 2**53, so they are exact, and the
same on every machine.
"""

import functools

import numpy as np
from jaxtyping import Float64, UInt8

SIDE = 32  # of the images that are written
FACTOR = 4  # how many times smaller the side is of the images that are read


def shrink(images: UInt8[np.ndarray, '*b 32 32 3']) -> UInt8[np.ndarray, '*b 8 8 3']:
  """The model's input: the mean of each block of 4 x 4 pixels, rounded (halves to even)."""
  small = SIDE // FACTOR
  blocks = images.reshape(*images.shape[:-3], small, FACTOR, small, FACTOR, 3)
  return np.rint(blocks.mean(axis=(-4, -2))).astype(np.uint8)


def area_resize(image: UInt8[np.ndarray, 'h w 3'], side: int) -> UInt8[np.ndarray, 'side side 3']:
  """The image with `side` x `side` pixels, not more than it has, rounded (halves to even)."""
  height, width, _ = image.shape
  by_row = coverage(height, side) @ image.reshape(height, -1)
  sums = coverage(width, side) @ by_row.reshape(side, width, 3)
  return np.rint(sums / (height * width)).astype(np.uint8)


@functools.lru_cache(maxsize=64)
def coverage(size: int, side: int) -> Float64[np.ndarray, 'side size']:
  """How much of each pixel each output pixel covers, in parts of 1 / side of a pixel; a row sums to `size`.

  size 3, side 2: [2 1 0]    the first covers one pixel and half of the next
                  [0 1 2]
  """
  output, pixel = np.arange(side)[:, None], np.arange(size)[None]
  end = np.minimum((output + 1) * size, (pixel + 1) * side)
  return np.maximum(end - np.maximum(output * size, pixel * side), 0).astype(np.float64)
