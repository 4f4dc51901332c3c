"""Pictures shrunk by area: every output pixel is the mean of the area that it covers.

`tf.image.resize` has this as its method 'area'. All sums are of integers, so they are the same on
every machine.
"""

import numpy as np
from jaxtyping import Int64, Integer, UInt8

SIDE = 32  # pixels a side of stored images, and of a model's output by default
SIDES = (16, SIDE)  # possible sides of a model's output
SMALL = 8  # side of a model's input


def shrink(
  images: UInt8[np.ndarray, '*b h h 3'], side: int = SMALL
) -> UInt8[np.ndarray, '*b {side} {side} 3']:
  """Takes the mean of each block of pixels, rounded (halves up).

  `side` divides the images' own side; the default gives a model's input.

  A quarter of the means of four pixels are halves. Rounded to even, five of eight means would be
  even, and a model of them would always choose an even intensity.
  """
  factor = images.shape[-2] // side
  blocks = images.reshape(*images.shape[:-3], side, factor, side, factor, 3)
  pixels = factor * factor
  return ((blocks.sum(axis=(-4, -2), dtype=np.int64) + pixels // 2) // pixels).astype(np.uint8)


def area_resize(
  image: UInt8[np.ndarray, 'h w 3'], side: int
) -> UInt8[np.ndarray, '{side} {side} 3']:
  """Shrinks an image to `side` x `side` pixels, rounded (halves to even)."""
  height, width, _ = image.shape
  by_row = sum_parts(image, side)
  sums = sum_parts(by_row.swapaxes(0, 1), side).swapaxes(0, 1)
  return np.rint(sums / (height * width)).astype(np.uint8)


def sum_parts(
  values: Integer[np.ndarray, 'n *rest'], side: int
) -> Int64[np.ndarray, '{side} *rest']:
  """Sums the values that each of `side` equal parts of the first axis covers, in units of 1 / side.

  [10, 20, 40] to 2: [2 * 10 + 1 * 20, 1 * 20 + 2 * 40]; half of the middle value belongs to each.

  It takes differences of cumulative sums. A product with a matrix of these weights would be slower:
  BLAS, whose threads wait for one another, took 16 ms on a busy machine, and this takes 0.8 ms.
  """
  zero = np.zeros_like(values[:1], np.int64)
  before = np.concatenate([zero, np.cumsum(values, axis=0, dtype=np.int64)])
  value, part = np.divmod(np.arange(side + 1) * len(values), side)  # borders of the parts
  part = part.reshape(-1, *[1] * (values.ndim - 1))
  return np.diff(side * before[value] + part * np.concatenate([values, zero])[value], axis=0)
