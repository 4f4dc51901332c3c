"""Files that appear whole or not at all."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import IO

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
