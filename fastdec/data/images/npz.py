"""Images in a file of arrays, as `numpy.savez_compressed` writes it.

The arrays are train, dev and test, each uint8[n, 32, 32, 3].
"""

import contextlib
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from fastdec.errors import UserError
from fastdec.files import open_file

SPLITS = ('train', 'dev', 'test')
SHAPE = (32, 32, 3)
MOST = 2**32  # bytes of an array
PathLike = str | os.PathLike[str]
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
WRONG = (
  *(OSError, EOFError, LookupError, ValueError, TypeError, OverflowError, MemoryError),
  *(SyntaxError, RuntimeError, tokenize.TokenError, zipfile.BadZipFile, zlib.error, struct.error),
)


def read(
  path: PathLike, shapes: Mapping[str, tuple[int, ...]], of: str, is_whole: bool = True
) -> dict[str, UInt8[np.ndarray, 'n ...']]:
  """Reads arrays of bytes from an npz, each checked by its header before it takes memory.

  Args:
    path: the file.
    shapes: of each array that is wanted, the axes after the first; -1 allows any length.
    of: what an entry of an array is, for messages.
    is_whole: all of the arrays must be there; otherwise one or more.

  Raises:
    UserError: no npz, or a damaged one, or one without the arrays; an array of another type or
      shape, or without entries.
  """
  # np.load would take other files too
  with reading(path), open_file(path) as opened, np.lib.npyio.NpzFile(opened) as file:
    names = file.files
    found = [name for name in shapes if name in names]
    if not found or (is_whole and len(found) < len(shapes)):
      given = f'{path} has arrays {", ".join(names) or "of no name"}'
      some = '' if is_whole else '; some may be missing'
      raise UserError(f'{given}: name them {", ".join(shapes)}{some}')
    for name in found:
      _check(file.zip, name, shapes[name], f"array '{name}' of {path}", of)
    return {name: file[name] for name in found}


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
  shapes: dict[str, tuple[int, ...]] = {split: SHAPE for split in SPLITS}
  of = 'colour images of 32 x 32 pixels without alpha'
  arrays = read(path, shapes, of, is_whole=False)
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


def _check(archive: Any, name: str, axes: tuple[int, ...], given: str, of: str) -> None:
  """Reads the header of an array in a zip file; `given` and `of` are for messages.

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
  fits = len(shape) == 1 + len(axes) and all(
    want in (-1, have) for have, want in zip(shape[1:], axes, strict=True)
  )
  if dtype != np.uint8 or not fits:
    wanted = ', '.join(['n', *('h' if size == -1 else str(size) for size in axes)])
    raise UserError(f'{given} is {dtype}{list(shape)}: give uint8[{wanted}], n {of}')
  if 0 in shape:
    raise UserError(f'{given} holds no images: give at least one, or leave the array out')
  if size != (there := archive.getinfo(member).file_size):
    raise ValueError(f"its array '{name}' has {size} bytes by its header, and {there} are there")
  if size > MOST:
    raise ValueError(f"its array '{name}' has {size:,} bytes, and {MOST:,} are the most")


@contextlib.contextmanager
def reading(path: PathLike) -> Iterator[None]:
  """Says in our words what Python and NumPy say of files that are not an npz."""
  try:
    yield
  except UserError:
    raise
  except WRONG as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(
      f'cannot read {path} ({reason}): give a whole .npz file, as numpy.savez writes it'
    ) from error
