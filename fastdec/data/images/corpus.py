"""Images of 32 x 32 or 16 x 16 pixels, and their 8 x 8 inputs (Stern et al. 2018, section 7.2).

CelebA's images are read from the files that TFDS prepared, each when it is needed, then cropped and
shrunk. All others are in memory.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Int32, UInt8

from fastdec import extras
from fastdec.data.images import celeba, npz
from fastdec.data.images.resizing import SIDE, SIDES, shrink
from fastdec.errors import UserError

with extras.explained():
  import grain

Image = UInt8[np.ndarray, 'h h 3']
Split = UInt8[np.ndarray, 'n h h 3'] | celeba.Faces
Batch = dict[str, UInt8[np.ndarray, 'r 8 8 3'] | Int32[np.ndarray, 'r t']]


@dataclasses.dataclass(frozen=True)
class ImageData:
  """A source of images.

  Fields:
    kind: 'embedded', those of `fastdec.data.images.embedded`; 'npz', a file; or 'tfds', CelebA (see
      `fastdec.data.images.celeba`).
    path: of kind 'npz', a file with arrays train, dev and test, uint8[n, 32, 32, 3]; one or two may
      be missing.
    folder: of kind 'tfds', the data_dir of the prepared celeb_a ('': TFDS's default).
    max_train: the most training images to read (None: all).
    side: pixels a side of the images to write, 32 or 16; images are shrunk to 16.
    black_corners: of kind 'npz', False leaves out images with a corner that is exactly black.
      Photographs that were rotated have such corners, and a model that learns from them begins dark
      images with black.
  """

  kind: Literal['embedded', 'npz', 'tfds'] = 'embedded'
  path: str = ''
  folder: str = ''
  max_train: int | None = None
  side: int = SIDE
  black_corners: bool = True


@dataclasses.dataclass(frozen=True)
class Images:
  """Images in splits; `open_images` makes one.

  Fields:
    key: a hash of the content.
    splits: the images of each split, by index; one may be missing. CelebA's images are read one by
      one when they are needed; all others are an array.
    dropped: the number of images of each split that were left out for a black corner.
  """

  key: str
  splits: Mapping[str, Split]
  dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)

  @property
  def counts(self) -> dict[str, int]:
    """Number of images of each split."""
    return {name: len(split) for name, split in self.splits.items()}

  def split(self, name: str) -> Split:
    """Returns the images of a split, by index.

    Raises:
      UserError: the split does not exist.
    """
    if name not in self.splits:
      raise UserError(f"the images have no split '{name}': they have {', '.join(self.splits)}")
    return self.splits[name]

  def array(self, name: str, count: int | None = None) -> UInt8[np.ndarray, 'n h h 3']:
    """Reads the first `count` images of a split (None: all).

    Raises:
      UserError: the split does not exist, or has fewer images.
    """
    split = self.split(name)
    if count is None:
      count = len(split)
    if not 1 <= count <= len(split):
      raise UserError(
        f"split '{name}' has {len(split)} images, not {count}: give 1 to {len(split)}"
      )
    return np.stack([split[i] for i in range(count)])


def open_images(data: ImageData) -> Images:
  """Reads the images into memory, or opens CelebA.

  Raises:
    UserError: fields contradict each other; the file is not an npz, is damaged, or lacks the
      arrays; an array is empty or has a wrong dtype or shape; TFDS has not prepared CelebA.
  """
  _check(data)
  if data.kind == 'tfds':
    key, faces = celeba.from_tfds(data.folder, data.max_train, data.side)
    content = f'{key} {data.max_train} {data.side}'
    return Images(hashlib.sha256(content.encode()).hexdigest(), faces)
  dropped = {}
  if data.kind == 'embedded':
    from fastdec.data.images import embedded  # scikit-image takes a second to load

    arrays = {split: embedded.generate(split) for split in embedded.SIZES}
  else:
    arrays, dropped = npz.load(data.path, data.black_corners)
  digest = hashlib.sha256()
  for split, images in arrays.items():
    if split == 'train':
      images = images[: data.max_train]
    if data.side != SIDE:  # one by one, because the sums of all would take eight times the memory
      images = np.stack([shrink(image, data.side) for image in images])
    arrays[split] = images
    digest.update(f'{split} {images.shape}\n'.encode())
    digest.update(images.tobytes())
  return Images(digest.hexdigest(), arrays, dropped)


def image_batches(
  images: Images, split: str, rows: int, seed: int, mirrored: bool = False, moved: int = 0
) -> grain.MapDataset:
  """Makes endless training batches, by index.

  Every epoch is a new shuffle, in which each image comes once. An epoch may end inside a batch. A
  batch has:

    source          uint8[r, 8, 8, 3]     the small image, which the model reads
    target          int32[r, h * h * 3]   the intensities to write in raster scan, a pixel's red,
                                          green and blue one after the other
    target_segment  int32[r, h * h * 3]   ones, since each row is one example

  Args:
    rows: images in a batch.
    mirrored: mirrors half of the images, drawn each time, left to right.
    moved: adds a random number, at most this large, to every intensity, so that backgrounds are not
      exactly constant.

  Raises:
    UserError: the split does not exist, or has fewer images than a batch.
  """
  source: Any = images.split(split)  # grain's types know no arrays
  if not 1 <= rows <= len(source):
    raise UserError(
      f"a batch of {rows} images of split '{split}' is not possible: it has {len(source)}, give 1"
      f' to {len(source)}'
    )
  data = grain.MapDataset.source(source).seed(seed).shuffle().repeat()
  if mirrored:
    data = data.random_map(_mirror_half)
  if moved:
    data = data.random_map(functools.partial(_move, moved))
  return data.batch(rows, drop_remainder=True).map(
    lambda images: _make_batch(shrink(images), images)
  )


def written_batches(
  source: UInt8[np.ndarray, 'n 8 8 3'], written: UInt8[np.ndarray, 'n h h 3'], rows: int, seed: int
) -> grain.MapDataset:
  """Makes batches as `image_batches` does, from small images and a model's enlargements of them.

  Raises:
    UserError: there are fewer images than rows, or rows is below 1.
  """
  if not 1 <= rows <= len(source):
    raise UserError(
      f'a batch of {rows} written images is not possible: there are {len(source)}, give 1 to that'
    )
  pairs = []
  for small, large in zip(source, written, strict=True):
    pairs.append({'source': small, 'written': large})
  data = grain.MapDataset.source(pairs).seed(seed).shuffle().repeat()
  return data.batch(rows, drop_remainder=True).map(
    lambda batch: _make_batch(batch['source'], batch['written'])
  )


def _mirror_half(image: Image, rng: np.random.Generator) -> Image:
  return image[:, ::-1] if rng.integers(2) else image


def _move(most: int, image: Image, rng: np.random.Generator) -> Image:
  moved = image + rng.integers(-most, most, image.shape, endpoint=True)
  return np.clip(moved, 0, 255).astype(np.uint8)


def _make_batch(
  source: UInt8[np.ndarray, 'r 8 8 3'], images: UInt8[np.ndarray, 'r h h 3']
) -> Batch:
  target = images.reshape(len(images), -1).astype(np.int32)
  return {'source': source, 'target': target, 'target_segment': np.ones_like(target)}


def _check(data: ImageData) -> None:
  if data.kind not in ('embedded', 'npz', 'tfds'):
    raise UserError(
      f"images of kind '{data.kind}' are not known: set kind to embedded, npz or tfds"
    )
  if data.path and data.kind != 'npz':
    raise UserError(
      f"images of kind '{data.kind}' were given the file {data.path}: set kind to"
      ' npz, or leave path out'
    )
  if data.folder and data.kind != 'tfds':
    raise UserError(
      f"images of kind '{data.kind}' were given the folder {data.folder}: set kind to tfds, or"
      ' leave folder out'
    )
  if data.max_train is not None and data.max_train < 1:
    raise UserError(f'max_train is {data.max_train}: give at least 1, or None for all')
  if not data.black_corners and data.kind != 'npz':
    raise UserError(
      f"images of kind '{data.kind}' cannot be chosen by their corners: set black_corners to True"
    )
  if data.side not in SIDES:
    allowed = ' or '.join(map(str, SIDES))
    raise UserError(
      f'images of {data.side} x {data.side} pixels are not possible: set side to {allowed}'
    )
