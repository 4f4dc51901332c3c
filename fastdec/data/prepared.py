"""Sets that TFDS prepared as array records, read without TensorFlow.

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
    splits: our names, and those of TFDS.
    remedy: what else the user may do where it is not prepared.

  Returns:
    A hash of its name and sizes, its place, and the data source of each split.

  Raises:
    UserError: it is not prepared there, or not as array records.
  """
  with extras.explained():
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import constants

  builder: Any = None
  try:
    builder = tfds.builder(name, data_dir=folder or None, file_format='array_record')
    rows = {split: builder.as_data_source(named) for split, named in splits.items()}
  # what TFDS says of what is not there
  except (KeyError, ValueError, NotImplementedError, AssertionError) as error:
    root = folder or constants.DATA_DIR
    if builder is None:  # it is there in another format, which TFDS does not change
      remedy = f', once {root}/{name.partition("/")[0]} is removed or elsewhere{remedy}'
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
  """Says in our words what array_record and TFDS say of damaged files.

  Raises:
    UserError: the files in the folder, with this content ('text'), are damaged.
  """
  with extras.explained():
    from google.protobuf import json_format

  try:
    yield
  except (RuntimeError, json_format.ParseError) as error:
    given = f'the prepared {content} {folder} is damaged'
    raise UserError(f'{given}: remove the folder, and let it be made again') from error
