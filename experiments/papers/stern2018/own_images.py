"""A model's own images: what a base writes greedily of the small training images, for heads on it
to learn from.

  folder/images.npz    uint8 arrays: source [n, 8, 8, 3], what was read, and written [n, h, h, 3]
  folder/config.json   written last: which model wrote them of which images, and a hash of both arrays
  folder/parts/        shards of images, from while they were being written (`image_distillation`)

Exact acceptance asks heads for the intensities that the base would choose, not for those of a
photograph.
"""

import dataclasses
import hashlib
import pathlib
import zipfile
import zlib
from typing import Any

import numpy as np
from jaxtyping import UInt8

from experiments.lab.model_text import author_of, record_of, without_heads
from fastdec import folders
from fastdec.errors import UserError
from fastdec.files import whole_file, write_json

_HOW = 'let it write them by experiments.distill --teacher=BASE, BASE being the folder of the base'


@dataclasses.dataclass(frozen=True)
class OwnImages:
  """What was read, what was written of it, and a hash of both."""

  source: UInt8[np.ndarray, 'n 8 8 3']
  written: UInt8[np.ndarray, 'n h h 3']
  key: str


def save(
  folder: pathlib.Path, source: np.ndarray, written: np.ndarray, record: dict[str, Any]
) -> None:
  """Writes the images, then the record that says they are whole; see `OwnImages`."""
  with whole_file(folder / 'images.npz') as file:
    np.savez_compressed(file, source=source, written=written)
  write_json(folder / 'config.json', {**record, 'content': _content(source, written)})


def open_own(folder: pathlib.Path) -> OwnImages:
  """The images that a base has written into a folder.

  Raises:
    UserError: they are not there, not whole, or cannot be read.
  """
  key = key_of(folder)
  path = folder / 'images.npz'
  try:
    with np.load(path) as found:
      source, written = found['source'], found['written']
  except (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
  ) as error:
    raise UserError(
      f'{path} cannot be read ({error}): remove {folder}, and let it be made again'
    ) from None
  if _content(source, written) != key:
    raise UserError(
      f'{path} is not what {folder}/config.json says: remove {folder}, and let it be made again'
    )
  return OwnImages(source, written, key)


def summary(folder: pathlib.Path) -> str:
  """What is in a finished folder, in a sentence."""
  written = open_own(folder).written
  n, height, width, _ = written.shape
  return (
    f'{folder}/images.npz holds {n:,} images of {height} x {width} pixels that the base has written'
  )


def key_of(folder: pathlib.Path) -> str:
  """The hash that a finished folder says its images have."""
  record = record_of(folder)
  if not isinstance(record.get('content'), str):
    raise UserError(f'{folder} holds no images that a base has written: {_HOW}')
  return record['content']


def check_own(folder: pathlib.Path, base: pathlib.Path, images: str, mirrored: bool) -> None:
  """Raises UserError where the images in a folder were not written by the run in `base`, its heads
  aside, of these training images (by their hash), the mirrored ones among them or not.
  """
  record = record_of(folder)
  if record.get('teacher') != author_of(*without_heads(*folders.load(base))):
    raise UserError(f'the images in {folder} were written by another model than {base}: {_HOW}')
  if (record.get('images'), record.get('mirrored')) != (images, mirrored):
    raise UserError(
      f'the images in {folder} were written of other images than this config means: {_HOW}'
    )


def _content(source: np.ndarray, written: np.ndarray) -> str:
  return hashlib.sha256(source.tobytes() + written.tobytes()).hexdigest()[:16]
