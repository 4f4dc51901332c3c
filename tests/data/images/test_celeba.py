"""Reads small versions of CelebA: a set that TFDS prepared, and TFDS's mocked data."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image as Picture
from tensorflow_datasets.datasets.celeb_a import celeb_a_dataset_builder as original

from fastdec.data.images import celeba
from fastdec.data.images.corpus import ImageData, image_batches, open_images
from fastdec.data.images.resizing import area_resize, shrink
from fastdec.errors import UserError

COUNTS = {'train': 3, 'dev': 2, 'test': 1}


def picture(split: str, index: int) -> np.ndarray:
  return np.random.default_rng((list(COUNTS).index(split), index)).integers(
    0, 256, (218, 178, 3), np.uint8
  )


class Prepared(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes to disk what TFDS's own builder would, with other faces."""

  name = 'celeb_a'
  VERSION = original.Builder.VERSION
  code_path = None

  def _info(self):
    features = tfds.features.FeaturesDict(
      {
        'image': tfds.features.Image(shape=(218, 178, 3), encoding_format='png'),
        'landmarks': dict.fromkeys(original.LANDMARK_HEADINGS, np.int64),
        'attributes': dict.fromkeys(original.ATTR_HEADINGS, np.bool_),
        'identity': dict.fromkeys(original.IDENTITY_HEADINGS, np.int64),
      }
    )
    return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

  def _split_generators(self, dl_manager):
    return {celeba.SPLITS[split]: self._generate_examples(split) for split in COUNTS}

  def _generate_examples(self, split):
    for i in range(COUNTS[split]):
      file = io.BytesIO()
      # without loss, so that pixels can be compared
      Picture.fromarray(picture(split, i)).save(file, 'png')
      file.seek(0)
      yield (
        i,
        {
          'image': file,
          'landmarks': dict.fromkeys(original.LANDMARK_HEADINGS, 0),
          'attributes': dict.fromkeys(original.ATTR_HEADINGS, False),
          'identity': dict.fromkeys(original.IDENTITY_HEADINGS, 0),
        },
      )


@pytest.fixture(scope='module')
def prepared(tmp_path_factory) -> ImageData:
  folder = tmp_path_factory.mktemp('tfds')
  Prepared(data_dir=folder).download_and_prepare(file_format='array_record')
  return ImageData('tfds', folder=str(folder))


def test_the_middle_of_a_picture_is_kept():
  whole = np.zeros((218, 178, 3), np.uint8)
  whole[40:178, 20:158] = 200
  assert (celeba.crop(whole) == 200).all()
  whole[40:178, 20:158] = np.random.default_rng(0).integers(0, 256, (138, 138, 3))
  np.testing.assert_array_equal(celeba.crop(whole), area_resize(whole[40:178, 20:158], 32))


def test_a_set_that_tfds_prepared_is_read_where_it_is(prepared: ImageData):
  images = open_images(prepared)
  assert images.counts == COUNTS
  for split, count in COUNTS.items():
    faces = [celeba.crop(picture(split, i)) for i in range(count)]
    np.testing.assert_array_equal(images.array(split), faces)
    np.testing.assert_array_equal(list(images.split(split)), faces)


def test_fewer_and_smaller_faces_come_from_the_set_and_have_their_own_key(prepared: ImageData):
  whole = open_images(prepared)
  few = open_images(dataclasses.replace(prepared, max_train=2, side=16))
  assert few.counts == {**COUNTS, 'train': 2} and few.key != whole.key
  np.testing.assert_array_equal(few.array('train'), shrink(whole.array('train')[:2], 16))
  with pytest.raises(IndexError, match='image 2 does not exist: there are 2'):
    few.split('train')[2]


def test_mocked_data_comes_through():
  with tfds.testing.mock_data(num_examples=3):
    images = open_images(ImageData('tfds'))
    assert images.counts == {'train': 3, 'dev': 3, 'test': 3}
    assert image_batches(images, 'train', 2, 0)[1]['source'].shape == (2, 8, 8, 3)


@pytest.mark.parametrize('folder', ['', 'nowhere'])
def test_a_set_that_is_not_prepared_says_how_to_prepare_it(
  tmp_path: Path, monkeypatch, folder: str
):
  monkeypatch.setattr('tensorflow_datasets.core.constants.DATA_DIR', str(tmp_path / 'default'))
  data = ImageData('tfds', folder=str(tmp_path / folder) if folder else '')
  root = tmp_path / (folder or 'default')
  with pytest.raises(
    UserError,
    match=rf'celeb_a is not prepared as array records in {root}: .*`tfds build celeb_a '
    rf'--file_format=array_record --data_dir={root}`, or give .* kind=npz',
  ):
    open_images(data)
