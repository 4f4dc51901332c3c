"""Images in a file of arrays, as `numpy.savez_compressed` writes it: train, dev and test, uint8[n,
32, 32, 3]."""

import contextlib
import functools
import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

from fastdec.data import builders
from fastdec.errors import UserError

SPLITS = ('train', 'dev', 'test')
SHAPE = (32, 32, 3)


def from_file(path: str, black_corners: bool) -> tuple[str, dict[str, builders.ReadRows]]:
  """A hash of the content, and what reads the images of each split that it has; of the arrays only
  headers are read.

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
  with _reading(path), open(path, 'rb') as file:
    key = hashlib.file_digest(file, 'sha256').hexdigest()
    with zipfile.ZipFile(file) as archive:
      names = [name.removesuffix('.npy') for name in archive.namelist()]
      splits = [split for split in SPLITS if split in names]
      if not splits:
        given = f'{path} has arrays {", ".join(names) or "of no name"}'
        raise UserError(f'{given}: name them train, dev and test; one or two may be missing')
      for split in splits:
        _check(_header(archive, split), split, path)
  if not black_corners:
    key = hashlib.sha256(f'{key} without black corners'.encode()).hexdigest()
  return key, {split: functools.partial(_rows, path, split, black_corners) for split in splits}


def cornered(images: UInt8[np.ndarray, 'n h w 3']) -> Bool[np.ndarray, 'n']:
  """Which images have a corner that is exactly black, as a photograph has that was turned into its
  frame."""
  corners = images[:, [0, 0, -1, -1], [0, -1, 0, -1]]
  return (corners == 0).all(-1).any(-1)


class _Header(NamedTuple):
  shape: tuple[int, ...]
  dtype: np.dtype


def _header(archive: zipfile.ZipFile, name: str) -> _Header:
  with archive.open(f'{name}.npy') as member:
    version = np.lib.format.read_magic(member)
    read = (
      np.lib.format.read_array_header_1_0
      if version == (1, 0)
      else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(member)
  return _Header(shape, dtype)


def _check(header: _Header, name: str, path: str) -> None:
  if header.dtype != np.uint8 or header.shape[1:] != SHAPE or len(header.shape) != 4:
    given = f"array '{name}' of {path} is {header.dtype}{list(header.shape)}"
    raise UserError(
      f'{given}: give uint8[n, 32, 32, 3], n colour images of 32 x 32 pixels without alpha'
    )
  if not header.shape[0]:
    raise UserError(
      f"array '{name}' of {path} has no images: give at least one, or leave the array out"
    )


def _rows(
  path: str, name: str, black_corners: bool
) -> Iterator[tuple[UInt8[np.ndarray, '32 32 3']]]:
  with _reading(path), np.load(path, allow_pickle=False) as arrays:
    images = arrays[name]
  if not black_corners:
    images = images[~cornered(images)]
  if not len(images):
    raise UserError(
      f"each image of array '{name}' of {path} has a black corner: set black_corners to True"
    )
  yield from ((image,) for image in images)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  """What Python and NumPy say of files that are not an npz, in our words."""
  try:
    yield
  except UserError:
    raise
  except (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
  ) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(
      f'cannot read {path} ({reason}): give a whole .npz file, as numpy.savez writes it'
    ) from error
