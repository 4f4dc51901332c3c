"""Shrinking by area: hand-made cases, and a loop over all pixels with exact fractions."""

from fractions import Fraction

import numpy as np
import pytest

from fastdec.data.images.resizing import area_resize, shrink, sum_parts


def test_shrink_takes_the_mean_of_each_block_of_4_by_4_and_rounds_halves_up():
  image = np.zeros((32, 32, 3), np.uint8)
  image[0:4, 4:8, 0] = np.arange(16).reshape(4, 4)  # mean 7.5
  image[4:8, 0:4, 1] = 255
  image[31, 31, 2] = 24  # mean 1.5
  image[28, 0, 2] = 8  # mean 0.5
  small = np.zeros((8, 8, 3), np.uint8)
  small[0, 1, 0], small[1, 0, 1], small[7, 7, 2], small[7, 0, 2] = 8, 255, 2, 1
  np.testing.assert_array_equal(shrink(image), small)


def test_shrink_takes_the_mean_of_smaller_blocks_too():
  image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
  small = shrink(image, 16)
  assert small.shape == (16, 16, 3) and small[3, 15, 1] == np.floor(image[6:8, 30:, 1].mean() + 0.5)
  np.testing.assert_array_equal(shrink(image, 32), image)


def test_shrink_takes_images_one_by_one_whatever_the_batch():
  images = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32, 3), np.uint8)
  assert shrink(images).dtype == np.uint8
  np.testing.assert_array_equal(
    shrink(images), [[shrink(image) for image in row] for row in images]
  )


def test_a_value_in_the_middle_belongs_to_both_halves():
  assert sum_parts(np.array([10, 20, 40]), 2).tolist() == [2 * 10 + 1 * 20, 1 * 20 + 2 * 40]


def overlap(size: int, side: int, output: int, pixel: int) -> Fraction:
  """The part of a pixel that an output pixel covers."""
  first, end = Fraction(output * size, side), Fraction((output + 1) * size, side)
  return max(Fraction(0), min(end, Fraction(pixel + 1)) - max(first, Fraction(pixel)))


@pytest.mark.parametrize(('height', 'width', 'side'), [(7, 5, 3), (8, 4, 4), (5, 5, 5), (9, 11, 2)])
def test_area_resize_is_the_mean_of_what_is_covered(height, width, side):
  image = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
  expected = np.zeros((side, side, 3), np.uint8)
  for row, column, channel in np.ndindex(side, side, 3):
    total = sum(
      overlap(height, side, row, y) * overlap(width, side, column, x) * int(image[y, x, channel])
      for y in range(height)
      for x in range(width)
    )
    # halves to even, as in NumPy
    expected[row, column, channel] = round(total * side * side / (height * width))
  np.testing.assert_array_equal(area_resize(image, side), expected)
