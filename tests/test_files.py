"""A file is written whole or not at all."""

import errno
import os

import pytest

from fastdec.errors import UserError
from fastdec.files import whole_file


@pytest.mark.parametrize(
  ('failure', 'raised'),
  [(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), UserError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_what_stops_writing_leaves_the_old_file_and_no_other(tmp_path, failure, raised):
  (tmp_path / 'file').write_bytes(b'old')
  with pytest.raises(raised) as caught, whole_file(tmp_path / 'file') as file:
    file.write(b'new')
    raise failure
  assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [('file', b'old')]
  assert raised is KeyboardInterrupt or 'No space left on device): make room' in str(caught.value)


def test_the_new_file_takes_the_place_of_the_old(tmp_path):
  for content in (b'old', b'new'):
    with whole_file(tmp_path / 'deep' / 'file') as file:
      file.write(content)
      assert not (tmp_path / 'deep' / 'file').exists() or content == b'new'
  assert [(file.name, file.read_bytes()) for file in (tmp_path / 'deep').iterdir()] == [('file', b'new')]
