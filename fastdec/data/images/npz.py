"""Images in a file of arrays, as `numpy.savez_compressed` writes it.

The arrays are train, dev and test, each uint8[n, 32, 32, 3].
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import UInt8

from fastdec.errors import UserError
from fastdec.files import PathLike, open_file

SPLITS = ('train', 'dev', 'test')
SHAPE = (32, 32, 3)


def read(
  path: PathLike, shapes: Mapping[str, tuple[int, ...]], entry: str, is_whole: bool = True
) -> dict[str, UInt8[np.ndarray, 'n ...']]:
  """Reads arrays of bytes from an npz.

  Args:
    path: the file.
    shapes: by array, its axes after the first; -1 allows any length.
    entry: describes the entries of an array, for messages.
    is_whole: requires all of the arrays; otherwise one or more.

  Raises:
    UserError: the file is not an npz, is damaged, or lacks the arrays; an array is empty, or has a
      wrong type or shape.
  """
  some = '' if is_whole else '; some may be missing'
  arrays = {}
  try:
    # not np.load, which would open other kinds of files too
    with open_file(path) as opened, np.lib.npyio.NpzFile(opened) as file:
      names = [name for name in shapes if name in file.files]
      if not names or (is_whole and len(names) < len(shapes)):
        raise UserError(
          f'{path} has arrays {", ".join(file.files) or "of no name"}: name them'
          f' {", ".join(shapes)}{some}'
        )
      for name in names:
        arrays[name] = np.asarray(file[name])
        _check(arrays[name], shapes[name], f"array '{name}' of {path}", entry)
  except UserError:
    raise
  except Exception as error:  # zipfile, zlib and NumPy raise a dozen kinds for damaged files
    reason = getattr(error, 'strerror', None) or error
    raise UserError(
      f'cannot read {path} ({reason}): give a whole .npz file, as numpy.savez writes it'
    ) from error
  return arrays


def load(
  path: str, black_corners: bool
) -> tuple[dict[str, UInt8[np.ndarray, 'n 32 32 3']], dict[str, int]]:
  """Reads the images of each split that the file has, and counts those that are left out.

  Args:
    black_corners: False leaves out images with a corner that is exactly black: photographs that
      were rotated.

  Raises:
    UserError: the path is empty; or see `read`.
  """
  if not path:
    raise UserError(
      "images of kind 'npz' name no file: set path to an .npz file with arrays train, dev and test"
    )
  entry = 'colour images of 32 x 32 pixels without alpha'
  arrays = read(path, dict.fromkeys(SPLITS, SHAPE), entry, is_whole=False)
  dropped: dict[str, int] = {}
  if black_corners:
    return arrays, dropped
  for split, images in arrays.items():
    corners = images[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    arrays[split] = images[(corners != 0).any(-1).all(-1)]
    dropped[split] = len(images) - len(arrays[split])
    if not len(arrays[split]):
      raise UserError(
        f"each image of array '{split}' of {path} has a black corner: set black_corners to True"
      )
  return arrays, dropped


def _check(values: np.ndarray, axes: tuple[int, ...], array: str, entry: str) -> None:
  """Raises UserError unless an array has bytes, these axes after the first, and an entry."""
  # Compare the axes after the first with those that are wanted; -1 allows any length.
  shape, dtype = values.shape, values.dtype
  wanted, fits = ['n'], dtype == np.uint8 and len(shape) == 1 + len(axes)
  for i, allowed in enumerate(axes, start=1):
    wanted.append(str(allowed).replace('-1', 'h'))
    fits = fits and allowed in (-1, shape[i])
  if not fits:
    raise UserError(f'{array} is {dtype}{list(shape)}: give uint8[{", ".join(wanted)}], n {entry}')
  if 0 in shape:
    raise UserError(f'{array} holds no images: give at least one, or leave the array out')
