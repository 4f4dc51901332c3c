"""Images in a file of arrays; other files and arrays are refused."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fastdec.data.images.corpus import ImageData, open_images
from fastdec.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)


def write(path: Path, **arrays: np.ndarray) -> ImageData:
  np.savez_compressed(path, **arrays)
  return ImageData('npz', path=str(path))


def test_images_come_back_in_order_and_a_split_may_be_missing(tmp_path: Path):
  data = write(
    tmp_path / 'a.npz', train=IMAGES, test=np.asfortranarray(IMAGES[:2]), names=np.array(['x'])
  )
  images = open_images(data)
  assert images.counts == {'train': 6, 'test': 2}
  np.testing.assert_array_equal(images.array('train'), IMAGES)
  np.testing.assert_array_equal(images.array('test'), IMAGES[:2])


def test_images_with_a_black_corner_may_be_left_out(tmp_path: Path):
  """One corner is enough, if all three of its intensities are 0; black elsewhere is not a
  corner."""
  images = np.maximum(IMAGES, 1)
  for image, row, column in (1, 0, 0), (2, 0, -1), (3, -1, 0), (4, -1, -1), (5, 0, 1):
    images[image, row, column] = 0
  images[0, 0, 0, :2] = 0
  data = write(tmp_path / 'a.npz', train=images, dev=images[4:])
  whole = open_images(dataclasses.replace(data, black_corners=False))
  np.testing.assert_array_equal(whole.array('train'), images[[0, 5]])
  np.testing.assert_array_equal(whole.array('dev'), images[[5]])
  assert whole.dropped == {'train': 4, 'dev': 1} and not open_images(data).dropped
  both = open_images(data)
  assert both.counts == {'train': 6, 'dev': 2} and both.key != whole.key
  with pytest.raises(
    UserError, match=r"each image of array 'dev' of .*b.npz has a black corner: set black_corners"
  ):
    data = write(tmp_path / 'b.npz', train=images, dev=images[1:2])
    open_images(dataclasses.replace(data, black_corners=False))


@pytest.mark.parametrize(('arrays', 'message'), [
  ({'images': IMAGES}, r'a.npz has arrays images: name them train, dev, test'),
  ({'train': IMAGES, 'dev': IMAGES[..., 0]},
    r"array 'dev' of .*a.npz is uint8\[6, 32, 32\]: give uint8\[n, 32, 32, 3"),
  ({'dev': np.concatenate([IMAGES, IMAGES[..., :1]], -1)},
    r'is uint8\[6, 32, 32, 4\]: .* without alpha'),
  ({'test': IMAGES / 255}, r'is float64\[6, 32, 32, 3\]'),
  ({'test': np.array([{'a': 1}])}, 'cannot read .*Object arrays'),
  ({'train': IMAGES[:0], 'dev': IMAGES}, r"array 'train' of .* holds no images"),
])  # fmt: skip
def test_other_arrays_are_refused(tmp_path: Path, arrays, message):
  with pytest.raises(UserError, match=message):
    open_images(write(tmp_path / 'a.npz', **arrays))


def test_a_file_that_was_cut_or_damaged_is_refused(tmp_path: Path):
  data = write(tmp_path / 'a.npz', train=IMAGES, dev=IMAGES)
  whole = (tmp_path / 'a.npz').read_bytes()
  (tmp_path / 'a.npz').write_bytes(whole[:-50])
  with pytest.raises(UserError, match=r'cannot read .*a.npz'):
    open_images(data)
  # in the header, in the pixels
  for start, reason in ((200, 'decompressing'), (len(whole) // 2 - 2000, 'CRC')):
    (tmp_path / 'a.npz').write_bytes(whole[:start] + bytes(1000) + whole[start + 1000 :])
    with pytest.raises(UserError, match=rf'cannot read .*a.npz .*{reason}'):
      open_images(data)
  (tmp_path / 'a.npz').write_bytes(whole)
  np.testing.assert_array_equal(open_images(data).array('dev'), IMAGES)


def test_faces32_comes_back_whole(shared: Path):
  path = shared / 'data' / 'faces32' / 'faces32.npz'
  images = open_images(ImageData('npz', path=str(path), max_train=1000))
  assert images.counts == {'train': 1000, 'dev': 400, 'test': 400}
  with np.load(path) as arrays:
    for split, count in images.counts.items():
      np.testing.assert_array_equal(images.array(split), arrays[split][:count])
