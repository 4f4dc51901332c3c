"""Images come in batches, each once an epoch, in an order that depends on seed and epoch."""

import dataclasses
from pathlib import Path

import grain
import numpy as np
import pytest

from fastdec.data.images.corpus import ImageData, Images, image_batches, open_images
from fastdec.data.images.resizing import shrink
from fastdec.errors import UserError

TRAIN = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), np.uint8)


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> ImageData:
  path = tmp_path_factory.mktemp('images') / 'a.npz'
  np.savez(path, train=TRAIN, dev=TRAIN[:3] // 2)
  return ImageData('npz', path=str(path))


@pytest.fixture(scope='module')
def images(data: ImageData) -> Images:
  return open_images(data)


def order(images: Images, seed: int, batches: int, rows: int = 5) -> list[int]:
  """Returns the indices of the training images in the first batches."""
  data = image_batches(images, 'train', rows, seed)
  targets = np.concatenate([data[i]['target'] for i in range(batches)])
  return [int(np.flatnonzero((TRAIN.reshape(10, -1) == target).all(1))[0]) for target in targets]


def test_a_batch_holds_the_small_image_and_the_raster_scan_of_the_large_one(images: Images):
  batch = image_batches(images, 'train', 4, 0)[0]
  assert {name: (array.dtype, array.shape) for name, array in batch.items()} == {
    'source': (np.uint8, (4, 8, 8, 3)),
    'target': (np.int32, (4, 3072)),
    'target_segment': (np.int32, (4, 3072)),
  }
  large = batch['target'].reshape(4, 32, 32, 3).astype(np.uint8)
  np.testing.assert_array_equal(batch['source'], shrink(large))
  assert (batch['target_segment'] == 1).all()
  (index,) = np.flatnonzero((large[0] == TRAIN).all((1, 2, 3)))
  assert batch['target'][0, :4].tolist() == [*TRAIN[index, 0, 0], TRAIN[index, 0, 1, 0]]


def test_smaller_images_are_the_same_shrunk(data: ImageData, images: Images):
  small = open_images(dataclasses.replace(data, side=16))
  assert small.key != images.key
  np.testing.assert_array_equal(small.array('train'), shrink(TRAIN, 16))
  large, batch = (image_batches(one, 'train', 4, 0)[0] for one in (images, small))
  target = batch['target'].reshape(4, 16, 16, 3).astype(np.uint8)
  np.testing.assert_array_equal(
    target, shrink(large['target'].reshape(4, 32, 32, 3).astype(np.uint8), 16)
  )
  np.testing.assert_array_equal(batch['source'], shrink(target))


def test_intensities_are_moved_by_one_at_most_differently_each_time(images: Images):
  plain, moved = image_batches(images, 'train', 5, 0), image_batches(images, 'train', 5, 0, moved=1)
  steps = []
  for i in range(4):
    there = plain[i]['target']
    steps.append(moved[i]['target'] - there)
    inside = (there > 0) & (there < 255)
    assert set(np.unique(steps[i])) == {-1, 0, 1} and 0.25 < np.mean(steps[i][inside] == 0) < 0.42
    assert moved[i]['target'].min() >= 0 and moved[i]['target'].max() <= 255
    # it is made of what was moved
    assert np.abs(moved[i]['source'].astype(int) - plain[i]['source']).max() <= 1
  assert (steps[0] != steps[1]).any()
  np.testing.assert_array_equal(
    moved[3]['target'], image_batches(images, 'train', 5, 0, moved=1)[3]['target']
  )


def test_every_other_image_is_mirrored_differently_each_time(images: Images):
  plain = image_batches(images, 'train', 5, 0)
  mirrored = image_batches(images, 'train', 5, 0, mirrored=True)
  turned = []
  for i in range(20):
    here, there = plain[i], mirrored[i]
    for row, (one, other) in enumerate(zip(here['target'], there['target'], strict=True)):
      picture = one.reshape(32, 32, 3).astype(np.uint8)
      turned.append(not np.array_equal(one, other))
      np.testing.assert_array_equal(
        other.reshape(32, 32, 3), picture[:, ::-1] if turned[-1] else picture
      )
      np.testing.assert_array_equal(
        there['source'][row], shrink(other.reshape(32, 32, 3).astype(np.uint8))
      )
  assert 25 < sum(turned) < 75
  np.testing.assert_array_equal(
    mirrored[3]['target'], image_batches(images, 'train', 5, 0, True)[3]['target']
  )


def test_every_image_comes_once_an_epoch_and_each_epoch_has_its_own_order(images: Images):
  epochs = np.reshape(order(images, 0, 8), (4, 10)).tolist()
  assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 4
  assert len({tuple(epoch) for epoch in epochs}) == 4


def test_an_epoch_may_end_inside_a_batch(images: Images):
  assert order(images, 3, 10, rows=4) == order(images, 3, 8, rows=5)


def test_the_seed_decides_the_order(images: Images):
  assert order(images, 1, 4) == order(images, 1, 4) != order(images, 2, 4)


def test_a_batch_is_the_same_by_index_by_iterator_and_after_a_restart(images: Images):
  data = image_batches(images, 'train', 3, 0)
  iterate = lambda: iter(
    data.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
  )
  first, again = iterate(), iterate()
  for _ in range(5):
    next(first)
  again.set_state(first.get_state())
  for index in (5, 6):
    expected = data[index]
    for batch in (next(first), next(again)):
      for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array)


def test_a_limit_on_train_changes_the_key_and_nothing_else(data: ImageData, images: Images):
  limited = open_images(dataclasses.replace(data, max_train=7))
  assert limited.counts == {'train': 7, 'dev': 3} and limited.key != images.key
  np.testing.assert_array_equal(limited.array('train'), TRAIN[:7])
  assert open_images(dataclasses.replace(data, max_train=11)).counts['train'] == 10


def test_images_are_read_by_index_and_the_first_ones_as_an_array(images: Images):
  split = images.split('train')
  np.testing.assert_array_equal(split[np.int64(4)], TRAIN[4])
  np.testing.assert_array_equal(list(split), TRAIN)
  np.testing.assert_array_equal(images.array('train', 3), TRAIN[:3])


def test_the_key_is_that_of_the_images_not_of_the_file(images: Images, tmp_path: Path):
  np.savez_compressed(tmp_path / 'b.npz', train=TRAIN, dev=TRAIN[:3] // 2)
  np.savez(tmp_path / 'c.npz', train=TRAIN[::-1], dev=TRAIN[:3] // 2)
  same, other = (open_images(ImageData('npz', path=str(tmp_path / f'{name}.npz'))) for name in 'bc')
  assert same.key == images.key != other.key


def test_the_embedded_images_are_the_default(monkeypatch):
  monkeypatch.setattr('fastdec.data.images.embedded.SIZES', {'train': 8, 'dev': 4, 'test': 4})
  images = open_images(ImageData())
  assert images.counts == {'train': 8, 'dev': 4, 'test': 4}
  assert images.array('test').std() > 8


@pytest.mark.parametrize(('data', 'message'), [
  (ImageData(path='a.npz'), "'embedded' were given the file a.npz: set kind to npz"),
  (ImageData(max_train=0), 'max_train is 0: give at least 1'),
  (ImageData(side=64), 'images of 64 x 64 pixels are not possible: set side to 16 or 32'),
])  # fmt: skip
def test_descriptions_that_make_no_sense_are_refused(data: ImageData, message: str):
  with pytest.raises(UserError, match=message):
    open_images(data)


@pytest.mark.parametrize(('call', 'message'), [
  (lambda images: images.split('valid'), "no split 'valid': they have train, dev"),
  (lambda images: images.array('dev', 4),
    "split 'dev' has 3 images, not 4: give 1 to 3"),
  (lambda images: image_batches(images, 'dev', 4, 0),
    "a batch of 4 images of split 'dev' is not possible: it has 3"),
])  # fmt: skip
def test_what_the_images_do_not_have_is_refused(images: Images, call, message: str):
  with pytest.raises(UserError, match=message):
    call(images)
