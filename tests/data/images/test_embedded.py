"""The embedded images are the same everywhere, and no part of a photograph is in two splits."""

import hashlib

import numpy as np
import pytest

from fastdec.data.images import embedded
from fastdec.data.images.embedded import BAND, SIZES, WINDOW, band, generate

# As decoded by Pillow's libjpeg-turbo (the rocket is a JPEG) with the releases in constraints.txt.
SHA256 = {
  'train': '9b7c59c8e669c417ea544a020c46a51627ff657151e58cdab2ab05eeb1b6ea0f',
  'dev': 'cee39ca53e2677911e08982d30a057a897b7b2fe1d3517496c79de52d69a7880',
  'test': 'c9f64b7fd8ca8d3bf97fa863d269398d89f0075b92128f9ce609819180abeeeb',
}


@pytest.fixture(scope='module')
def images() -> dict[str, np.ndarray]:
  return {split: generate(split) for split in SIZES}


def test_the_images_are_the_same_everywhere(images):
  assert {split: array.shape for split, array in images.items()} == {
    n: (k, 32, 32, 3) for n, k in SIZES.items()
  }
  assert {
    split: hashlib.sha256(array.tobytes()).hexdigest() for split, array in images.items()
  } == SHA256


@pytest.mark.parametrize('width', [451, 512, 640])
def test_bands_share_no_column_and_have_room_for_a_window(width):
  bands = [band(width, split) for split in ('train', 'dev', 'test')]
  assert [first for first, _ in bands] == [0] + [end for _, end in bands[:-1]] and bands[-1][
    1
  ] == width
  assert min(end - first for first, end in bands) >= max(WINDOW)


def test_windows_stay_in_the_band_of_their_split(monkeypatch):
  levels = {'train': 40, 'dev': 120, 'test': 200}
  picture = np.empty((300, 451, 3), np.uint8)
  picture[:, : 451 - 2 * BAND], picture[:, -2 * BAND : -BAND], picture[:, -BAND:] = levels.values()
  picture[np.arange(300) // 32 % 2 == 0] += 40  # stripes, so that no window is flat
  monkeypatch.setattr(embedded, '_photograph', lambda name: picture)
  monkeypatch.setattr(embedded, 'SIZES', dict.fromkeys(SIZES, 64))
  for split, level in levels.items():
    array = generate(split)
    assert level <= array.min() and array.max() <= level + 40
