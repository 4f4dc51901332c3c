"""TFDS sets: our images, prepared once as array records and read back without TensorFlow, and sets
that TFDS prepared.

Preparation is safe to kill, and safe to run twice at once.
"""

import contextlib
import hashlib
import io
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from fastdec import extras
from fastdec.errors import UserError
from fastdec.files import locked

with extras.explained():
  import tensorflow_datasets as tfds
  from google.protobuf import json_format

ReadRows = Callable[[], Iterable[tuple[Any, ...]]]
PathLike = str | os.PathLike[str]


class RowBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes rows, in order. One subclass for each kind of content, so that each has a name on disk.

  Args:
    splits: for each split, what yields its rows: a value for each of FEATURES.
  """

  VERSION = tfds.core.Version('1.0.0')
  FEATURES: ClassVar[dict[str, Any]]
  # else TFDS looks beside it for checksums of downloads, by a package it does not require
  code_path = None

  def __init__(self, splits: Mapping[str, ReadRows], data_dir: PathLike):
    self._splits = splits
    super().__init__(data_dir=data_dir)

  def _info(self) -> tfds.core.DatasetInfo:
    features = tfds.features.FeaturesDict(self.FEATURES)
    return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

  def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
    return {split: self._generate_examples(read) for split, read in self._splits.items()}

  def _generate_examples(self, read: ReadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    for index, row in enumerate(read()):
      yield index, dict(zip(self.FEATURES, row, strict=True))


class ImageBuilder(RowBuilder, skip_registration=True):
  """Images of 32 x 32 pixels."""

  FEATURES: ClassVar = {
    'image': tfds.features.Tensor(shape=(32, 32, 3), dtype=np.uint8, encoding='zlib')
  }


class NpzImages(ImageBuilder, skip_registration=True):
  """Images from a file of arrays."""


class EmbeddedImages(ImageBuilder, skip_registration=True):
  """Windows of the photographs that come with scikit-image."""


def prepared(
  builder_class: type[RowBuilder], splits: Mapping[str, ReadRows], folder: pathlib.Path
) -> RowBuilder:
  """The builder with its set on disk; TFDS writes to a folder named incomplete, and renames it at
  the end.

  Raises:
    UserError: the folder cannot be written.
  """
  builder = builder_class(splits, folder)
  if builder.data_path.exists():
    return builder
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / 'lock'):
      for leftover in folder.glob('*/incomplete.*'):
        shutil.rmtree(leftover)
      builder = builder_class(splits, folder)
      if not builder.data_path.exists():
        tfds.disable_progress_bar()
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS announces a download
          builder.download_and_prepare(file_format='array_record')
  except OSError as error:
    reason = error.strerror or error
    raise UserError(
      f'cannot keep prepared data in {folder} ({reason}): make room, or give another folder'
    ) from error
  return builder


def from_tfds(
  name: str, folder: str, splits: Mapping[str, str], remedy: str = ''
) -> tuple[str, pathlib.Path, dict[str, Any]]:
  """What TFDS prepared under a folder ('': its own): a hash of what it is, where, and each split's
  data source.

  Args:
    splits: our names, and those of TFDS.
    remedy: what else the user may do where it is not prepared.

  Raises:
    UserError: it is not prepared there, or not as array records.
  """
  builder: Any = tfds.builder(name, data_dir=folder or None, file_format='array_record')
  try:
    rows = {split: builder.as_data_source(named) for split, named in splits.items()}
  # what TFDS says of what is not there
  except (KeyError, ValueError, NotImplementedError, AssertionError) as error:
    root = folder or builder.data_path.parents[name.count('/') + 1]
    command = f'tfds build {name} --file_format=array_record --data_dir={root}'
    given = f'{name} is not prepared as array records in {root}'
    raise UserError(
      f"{given}: run `pip install 'fastdec[prepare]'` and `{command}`{remedy}"
    ) from error
  digest = hashlib.sha256(
    f'{builder.info.full_name} {[len(source) for source in rows.values()]}'.encode()
  )
  for file in sorted(pathlib.Path(builder.data_path).glob('*')):  # none, where the data is mocked
    digest.update(f'{file.name} {file.stat().st_size}\n'.encode())
  return digest.hexdigest(), pathlib.Path(builder.data_path), rows


@contextlib.contextmanager
def damage(folder: pathlib.Path, content: str) -> Iterator[None]:
  """What array_record and TFDS say of damaged files, in our words.

  Raises:
    UserError: the files in the folder, with this content ('text'), are damaged.
  """
  try:
    yield
  except (RuntimeError, json_format.ParseError) as error:
    given = f'the prepared {content} {folder} is damaged'
    raise UserError(f'{given}: remove the folder, and let it be made again') from error
