"""A file is written whole or not at all; a lock is one process's at a time."""

import errno
import os

import pytest

from fastdec.errors import UserError
from fastdec.files import locked, read_json, whole_file, write_json, write_text


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


def test_text_and_json_are_written_whole_and_read_back(tmp_path):
  write_text(tmp_path / 'page.md', 'größer\n')
  write_json(tmp_path / 'config.json', {'a': [1, 2]})
  assert (tmp_path / 'page.md').read_bytes() == 'größer\n'.encode()
  assert read_json(tmp_path / 'config.json') == {'a': [1, 2]}
  assert sorted(path.name for path in tmp_path.iterdir()) == ['config.json', 'page.md']


def test_a_lock_is_had_once_and_free_again_after_its_block(tmp_path):
  path = tmp_path / 'deep' / 'lock'
  with locked(path) as is_mine:
    assert is_mine
    with locked(path, wait=False) as again:  # another opening of the file is as another process
      assert not again
  with locked(path, wait=False) as is_mine:
    assert is_mine
