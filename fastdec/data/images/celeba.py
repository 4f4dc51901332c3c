"""CelebA (Liu et al. 2015), the faces of Stern et al. 2018.

There are 162,770 to train on, 19,867 for dev and 19,962 to test.

TFDS prepares them, which needs TensorFlow, once:  tfds build celeb_a --file_format=array_record
If Google Drive refuses the download, `--manual_dir` names a folder with the five files from
https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html: img_align_celeba.zip, list_eval_partition.txt,
list_attr_celeba.txt, list_landmarks_align_celeba.txt, identity_CelebA.txt. They are for
non-commercial research.

Pictures of 218 x 178 are cropped to 138 x 138 and shrunk by area, as in tensor2tensor's
`img2img_celeba`.
"""

import dataclasses
import operator
import pathlib
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import UInt8

from fastdec.data import prepared
from fastdec.data.images.resizing import SIDE, area_resize, shrink

NAME = 'celeb_a'
COUNTS = {'train': 162_770, 'dev': 19_867, 'test': 19_962}
DOWNLOAD = 1_488_628_763  # bytes of the five files
SPLITS = {'train': 'train', 'dev': 'validation', 'test': 'test'}  # our names: those of TFDS
TOP, LEFT = 40, 20  # pixels cut off at the top and the bottom, and at the left and the right


@dataclasses.dataclass(frozen=True)
class Faces(Sequence[UInt8[np.ndarray, 'h h 3']]):
  """The faces of a split, cropped and shrunk as they are read.

  Fields:
    rows: a TFDS data source.
    size: number of its rows to read.
    side: pixels a side of a face.
    folder: the folder of the set, for messages.
  """

  rows: Any
  size: int
  side: int
  folder: pathlib.Path

  def __len__(self) -> int:
    return self.size

  def __getitem__(self, index: SupportsIndex) -> UInt8[np.ndarray, 'h h 3']:
    index = operator.index(index)
    if not 0 <= index < self.size:
      raise IndexError(f'image {index} does not exist: there are {self.size}')
    with prepared.damage(self.folder, 'images'):
      picture = self.rows[index]['image']
    return shrink(crop(picture), self.side)


def from_tfds(folder: str, max_train: int | None, side: int) -> tuple[str, dict[str, Faces]]:
  """Opens the set that TFDS prepared under a folder ('': its own).

  Returns:
    A hash of the set, and the faces of each split.

  Raises:
    UserError: it is not prepared there as array records, or is damaged.
  """
  key, place, rows = prepared.from_tfds(
    NAME, folder, SPLITS, ', or give images of your own with kind=npz'
  )
  splits = {}
  for split, source in rows.items():
    with prepared.damage(place, 'images'):
      size = len(source)
    if split == 'train' and max_train is not None:
      size = min(size, max_train)
    splits[split] = Faces(source, size, side, place)
    splits[split][0]  # reads a face, so that damaged files are noticed now, not in hours
  return key, splits


def crop(picture: UInt8[np.ndarray, '218 178 3']) -> UInt8[np.ndarray, '32 32 3']:
  """Crops a picture to the face in its middle, and shrinks it."""
  return area_resize(picture[TOP:-TOP, LEFT:-LEFT], SIDE)
