"""Files that appear whole or not at all."""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import IO, Any

from fastdec.errors import UserError


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[IO[bytes]]:
  """A file to write, under a temporary name until it is on the disk; its folder is made if need be.

  Raises:
    UserError: it cannot be written; what was there before stays.
  """
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(partial, 'wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  except OSError as error:
    raise UserError(f'cannot write {path} ({error.strerror or error}): make room, or give another folder') from error
  finally:
    with contextlib.suppress(OSError):
      partial.unlink(missing_ok=True)


def read_json(file: pathlib.Path) -> dict[str, Any]:
  """The JSON object in a file.

  Raises:
    UserError: there is none.
  """
  try:
    content = json.loads(file.read_text())
  except FileNotFoundError:
    raise UserError(f'{file.parent} has no {file.name}: give a whole model folder') from None
  except ValueError:
    raise UserError(f'{file} is not JSON: restore the file') from None
  if not isinstance(content, dict):
    raise UserError(f'{file} is no JSON object: restore the file')
  return content
