"""Data sets that TFDS prepared as array records, read without TensorFlow.

TFDS is imported by the functions: it takes a second to load, and only these sets need it.
"""

import contextlib
import hashlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from fastdec import extras
from fastdec.errors import UserError


def from_tfds(
  name: str, folder: str, splits: Mapping[str, str], remedy: str = ''
) -> tuple[str, pathlib.Path, dict[str, Any]]:
  """Opens a set under a folder ('': TFDS's own).

  Args:
    splits: TFDS's name of each split, by ours.
    remedy: the end of the message for a set that is not prepared.

  Returns:
    A hash of its name and sizes, its folder, and the data source of each split.

  Raises:
    UserError: it is not prepared there as array records.
  """
  with extras.explained():
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import constants

  builder: Any = None
  try:
    builder = tfds.builder(name, data_dir=folder or None, file_format='array_record')
    rows = {split: builder.as_data_source(theirs) for split, theirs in splits.items()}
  # TFDS raises any of these for a missing set.
  except (KeyError, ValueError, NotImplementedError, AssertionError) as error:
    root = folder or constants.DATA_DIR
    if builder is None:  # the set is in another format, which TFDS does not convert
      remedy = f', once {root}/{name.partition("/")[0]} is removed or elsewhere{remedy}'
    command = f'tfds build {name} --file_format=array_record --data_dir={root}'
    raise UserError(
      f'{name} is not prepared as array records in {root}: run `pip install'
      f" 'fastdec[prepare]'` and `{command}`{remedy}"
    ) from error
  sizes = list(map(len, rows.values()))
  digest = hashlib.sha256(f'{builder.info.full_name} {sizes}'.encode())
  for file in sorted(pathlib.Path(builder.data_path).glob('*')):  # none if tests mock the data
    digest.update(f'{file.name} {file.stat().st_size}\n'.encode())
  return digest.hexdigest(), pathlib.Path(builder.data_path), rows


@contextlib.contextmanager
def damage(folder: pathlib.Path, content: str) -> Iterator[None]:
  """Turns the errors of array_record and TFDS for damaged files into a UserError.

  Args:
    folder: the folder of the set.
    content: 'text' or 'images', for the message.
  """
  with extras.explained():
    from google.protobuf import json_format

  try:
    yield
  except (RuntimeError, json_format.ParseError) as error:
    raise UserError(
      f'the prepared {content} {folder} is damaged: remove the folder, and let it be made again'
    ) from error
