"""Checkpoints are known to be damaged before they are read."""

import zlib
from pathlib import Path

from fastdec.errors import UserError
from fastdec.files import read_json, write_json

SUMS = 'sums.json'


def write_sums(folder: Path) -> None:
  """Adds the CRC-32 of every file of a checkpoint."""
  write_json(folder / SUMS, _sums(folder))


def damage_of(folder: Path) -> str | None:
  """What is wrong with the files of a checkpoint, None where nothing is; TensorStore is loud about
  damaged files.

  A run that is killed between Orbax's renaming and the writing of the sums leaves a good checkpoint
  without them. A power cut may also leave an empty file in their place: sums that cannot be read
  are none.
  """
  try:
    found = _sums(folder)
  except OSError as error:
    return str(error)
  try:
    expected = read_json(folder / SUMS)
  except UserError:
    expected = {}
  for name, value in expected.items():
    if found.get(name) != value:
      return f'{name} is damaged' if name in found else f'{name} is missing'
  return None


def _sums(folder: Path) -> dict[str, int]:
  files = (path for path in sorted(folder.rglob('*')) if path.is_file() and path != folder / SUMS)
  return {str(path.relative_to(folder)): zlib.crc32(path.read_bytes()) for path in files}
