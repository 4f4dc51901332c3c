"""Images in a file of arrays, as `numpy.savez_compressed` writes it.

The arrays are train, dev and test, each uint8[n, 32, 32, 3].
"""

import contextlib
import math
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from fastdec.errors import UserError

SPLITS = ('train', 'dev', 'test')
SHAPE = (32, 32, 3)
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
WRONG = (
  *(OSError, EOFError, KeyError, ValueError, RuntimeError, MemoryError, NotImplementedError),
  *(zipfile.BadZipFile, zlib.error),
)


def load(path: str, black_corners: bool) -> dict[str, UInt8[np.ndarray, 'n 32 32 3']]:
  """Reads the images of each split that the file has.

  Args:
    black_corners: with images that have one, or without, see `cornered`.

  Raises:
    UserError: no file, one that is not an npz or is damaged, one without any of the arrays, or an
      array of another type or shape, or without images.
  """
  if not path:
    raise UserError(
      "images of kind 'npz' name no file: set path to an .npz file with arrays train, dev and test"
    )
  # np.load would take other files too
  with reading(path), open(path, 'rb') as opened, np.lib.npyio.NpzFile(opened) as file:
    names = file.files
    found = [split for split in SPLITS if split in names]
    for split in found:
      _check(file.zip, split, path)  # before an array takes memory
    arrays = {split: file[split] for split in found}
  if not arrays:
    given = f'{path} has arrays {", ".join(names) or "of no name"}'
    raise UserError(f'{given}: name them train, dev and test; one or two may be missing')
  for split, images in arrays.items():
    if not black_corners:
      arrays[split] = images[~cornered(images)]
      if not len(arrays[split]):
        raise UserError(
          f"each image of array '{split}' of {path} has a black corner: set black_corners to True"
        )
  return arrays


def cornered(images: UInt8[np.ndarray, 'n h w 3']) -> Bool[np.ndarray, 'n']:
  """Finds the images with a corner that is exactly black: photographs turned into their frame."""
  corners = images[:, [0, 0, -1, -1], [0, -1, 0, -1]]
  return (corners == 0).all(-1).any(-1)


def _check(archive: Any, name: str, path: str) -> None:
  """Reads the header of an array in a zip file.

  Raises:
    UserError: it is of another type or shape, or without images.
    ValueError: it is no array, or the file has more or fewer bytes of it than the header says.
  """
  member = f'{name}.npy'
  if member not in archive.namelist():
    raise ValueError(f"its member '{name}' is no array")
  with archive.open(member) as opened:
    version = np.lib.format.read_magic(opened)
    if version not in HEADERS:
      raise ValueError(f"the header of its array '{name}' is of version {version}")
    shape, _, dtype = HEADERS[version](opened)
    size = opened.tell() + math.prod(shape)
  if dtype != np.uint8 or shape[1:] != SHAPE:
    given = f"array '{name}' of {path} is {dtype}{list(shape)}"
    raise UserError(
      f'{given}: give uint8[n, 32, 32, 3], n colour images of 32 x 32 pixels without alpha'
    )
  if not shape[0]:
    raise UserError(
      f"array '{name}' of {path} has no images: give at least one, or leave the array out"
    )
  if size != (there := archive.getinfo(member).file_size):
    raise ValueError(f"its array '{name}' has {size} bytes by its header, and {there} are there")


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
  """Says in our words what Python and NumPy say of files that are not an npz."""
  try:
    yield
  except WRONG as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(
      f'cannot read {path} ({reason}): give a whole .npz file, as numpy.savez writes it'
    ) from error
