"""TFDS sets of pairs of lines, prepared once as array records and read back without TensorFlow.

Preparation is safe to kill, and safe to run twice at once.
"""

import contextlib
import fcntl
import io
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds

from fastdec.data.lines import Pair
from fastdec.errors import UserError

ReadPairs = Callable[[], Iterable[Pair]]
PathLike = str | os.PathLike[str]


class PairBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Writes pairs of lines, in order. One subclass for each kind of text, so that each has a name on disk.

  Args:
    splits: for each split, what yields its pairs.
  """

  VERSION = tfds.core.Version('1.0.0')
  code_path = None  # else TFDS looks beside it for checksums of downloads, by a package it does not require

  def __init__(self, splits: Mapping[str, ReadPairs], data_dir: PathLike):
    self._splits = splits
    super().__init__(data_dir=data_dir)

  def _info(self) -> tfds.core.DatasetInfo:
    features = tfds.features.FeaturesDict({'source': tfds.features.Text(), 'target': tfds.features.Text()})
    return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

  def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
    return {split: self._generate_examples(read) for split, read in self._splits.items()}

  def _generate_examples(self, read: ReadPairs) -> Iterator[tuple[int, dict[str, str]]]:
    for index, (source, target) in enumerate(read()):
      yield index, {'source': source, 'target': target}


class FileText(PairBuilder, skip_registration=True):
  """Pairs from text files."""


class ArchiveText(PairBuilder, skip_registration=True):
  """Pairs from the archives of WMT14."""


class EmbeddedText(PairBuilder, skip_registration=True):
  """The corpus that comes with the package."""


def prepared(builder_class: type[PairBuilder], splits: Mapping[str, ReadPairs], folder: pathlib.Path) -> PairBuilder:
  """The builder with its set on disk; TFDS writes to a folder named incomplete, and renames it at the end.

  Raises:
    UserError: the folder cannot be written.
  """
  builder = builder_class(splits, folder)
  if builder.data_path.exists():
    return builder
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / 'lock', 'w') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)  # the system lets go of it when a process is killed
      for leftover in folder.glob('*/incomplete.*'):
        shutil.rmtree(leftover)
      builder = builder_class(splits, folder)
      if not builder.data_path.exists():
        tfds.disable_progress_bar()
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS announces a download
          builder.download_and_prepare(file_format='array_record')
  except OSError as error:
    reason = error.strerror or error
    raise UserError(f'cannot keep prepared text in {folder} ({reason}): make room, or give another folder') from error
  return builder
