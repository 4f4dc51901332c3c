"""CelebA (Liu et al. 2015), the faces of Stern et al. 2018: 162,770 to train on, 19,867 for dev,
19,962 to test.

TFDS prepares them, which needs TensorFlow, once:  tfds build celeb_a --file_format=array_record
Where Google Drive refuses the download, `--manual_dir` names a folder with the five files from
https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html: img_align_celeba.zip, list_eval_partition.txt,
list_attr_celeba.txt, list_landmarks_align_celeba.txt, identity_CelebA.txt. They are for research
that is not commercial.

Pictures of 218 x 178 are cropped to 138 x 138 and shrunk by area, as in tensor2tensor's
`img2img_celeba`.
"""

import pathlib
from typing import Any

import numpy as np
from jaxtyping import UInt8

from fastdec.data import builders
from fastdec.data.images.resizing import SIDE, area_resize

NAME = 'celeb_a'
SPLITS = {'train': 'train', 'dev': 'validation', 'test': 'test'}  # our names, and those of TFDS
TOP, LEFT = 40, 20  # pixels cut off at the top and at the bottom, on the left and on the right


def from_tfds(folder: str) -> tuple[str, pathlib.Path, dict[str, Any]]:
  """What TFDS prepared under a folder ('': its own): a hash of what it is, where, and each split's
  data source.

  Raises:
    UserError: it is not prepared there, or not as array records.
  """
  return builders.from_tfds(NAME, folder, SPLITS, ', or give images of your own with kind=npz')


def face(picture: UInt8[np.ndarray, '218 178 3']) -> UInt8[np.ndarray, '32 32 3']:
  """The middle of a picture, small."""
  return area_resize(picture[TOP:-TOP, LEFT:-LEFT], SIDE)
