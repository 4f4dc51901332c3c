"""Small images that come with scikit-image: windows of four of its photographs.

They replace the faces of CelebA. They are enough to run everything and to compare methods, but not
to compare with the paper: they are smoother than faces, so blocks become larger.
The photographs (an astronaut, a cat, a cup of coffee, a rocket) are in the public domain or
CC0, and come with scikit-image's wheel, so that nothing is downloaded. Each is cut into three
bands, from left to right: windows of train, of dev and of test do not overlap.
"""

import functools

import numpy as np
from jaxtyping import UInt8

from fastdec import extras
from fastdec.data.images import resizing

with extras.explained():
  import skimage.data

PHOTOGRAPHS = ('astronaut', 'chelsea', 'coffee', 'rocket')
SIZES = {'train': 2000, 'dev': 64, 'test': 64}  # windows, the same number of each photograph
BAND = 128  # pixels: width of the bands for dev and for test; the rest is for train
WINDOW = (96, 128)  # pixels: the smallest and the largest side of a window
FLAT = 8.0  # windows with a smaller standard deviation of grey values show almost nothing
SEED = 2018

Image = UInt8[np.ndarray, '32 32 3']


def generate(split: str) -> UInt8[np.ndarray, 'n 32 32 3']:
  """Cuts out the images of 'train', 'dev' or 'test', one of each photograph in turn.

  The result is always the same.
  """
  windows = np.stack([_windows(name, split) for name in PHOTOGRAPHS], axis=1)
  return windows.reshape(-1, resizing.SIDE, resizing.SIDE, 3)


def band(width: int, split: str) -> tuple[int, int]:
  """Returns a split's columns in a photograph: the first, and the one after the last."""
  return {
    'train': (0, width - 2 * BAND),
    'dev': (width - 2 * BAND, width - BAND),
    'test': (width - BAND, width),
  }[split]


def _windows(name: str, split: str) -> list[Image]:
  """Cuts different squares out of one photograph, and leaves out flat ones."""
  picture = _photograph(name)
  first, end = band(picture.shape[1], split)
  rng = np.random.default_rng((SEED, PHOTOGRAPHS.index(name), list(SIZES).index(split)))
  images, seen = [], set()
  while len(images) < SIZES[split] // len(PHOTOGRAPHS):
    side = int(rng.integers(WINDOW[0], WINDOW[1] + 1))
    top = int(rng.integers(0, picture.shape[0] - side + 1))
    left = int(rng.integers(first, end - side + 1))
    image = resizing.area_resize(picture[top : top + side, left : left + side], resizing.SIDE)
    if (top, left, side) not in seen and image.mean(axis=-1).std() >= FLAT:
      seen.add((top, left, side))
      images.append(image)
  return images


@functools.cache
def _photograph(name: str) -> UInt8[np.ndarray, 'h w 3']:
  return getattr(skimage.data, name)()
