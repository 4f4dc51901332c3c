"""A file, or a folder, is written whole or not at all; a lock is one process's at a time."""

import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from fastdec.errors import UserError
from fastdec.files import (
  locked,
  parse_json,
  read_json,
  whole_file,
  whole_folder,
  write_json,
  write_text,
)


@pytest.mark.parametrize(
  ('failure', 'raised'),
  [
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), UserError),
    (KeyboardInterrupt(), KeyboardInterrupt),
  ],
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
  assert [(file.name, file.read_bytes()) for file in (tmp_path / 'deep').iterdir()] == [
    ('file', b'new')
  ]


def test_what_a_killed_process_left_goes_and_what_others_write_stays(tmp_path):
  script = f"""
    import os, pathlib, signal
    from fastdec.files import whole_file
    with whole_file(pathlib.Path({str(tmp_path / 'file')!r})) as file:
      file.write(b'half')
      file.flush()
      os.kill(os.getpid(), signal.SIGKILL)
  """
  killed = subprocess.run([sys.executable, '-c', textwrap.dedent(script)])
  (left,) = tmp_path.iterdir()
  assert killed.returncode == -signal.SIGKILL and left.name.endswith('.partial')
  stay = {f'file.{platform.node()}.{os.getppid()}.partial', 'file.elsewhere.1.partial'}
  stay |= {f'file.{platform.node()}.{number}.partial' for number in ('x', '9' * 30, '-1', '0')}
  for name in stay:
    (tmp_path / name).touch()
  write_text(tmp_path / 'file', 'whole')
  assert {path.name for path in tmp_path.iterdir()} == {'file', *stay}


def fill(path, content):
  with whole_folder(path) as partial:
    (partial / 'deep').mkdir()
    (partial / 'deep' / 'file').write_text(content)


def content(path):
  file = path / 'deep' / 'file'
  return file.read_text() if file.exists() else None


@pytest.fixture
def watched(monkeypatch):
  """Calls a function before and after every step by which a folder could be lost; notes what is
  done."""
  done, watch = [], []

  def watching(module, name, told):
    does = getattr(module, name)

    def step(path, *args, **kwargs):
      for look in watch:
        look()
      result = does(path, *args, **kwargs)
      done.append((name, told(path)))
      for look in watch:
        look()
      return result

    monkeypatch.setattr(module, name, step)

  watching(os, 'rename', lambda path: os.path.basename(path))
  watching(os, 'replace', lambda path: os.path.basename(path))
  watching(os, 'fsync', lambda file: os.fstat(file).st_ino)
  watching(shutil, 'rmtree', lambda path: os.path.basename(path))
  return done, watch


def test_at_every_step_the_old_folder_or_the_new_is_whole(tmp_path, watched):
  """Whenever the process is killed."""
  fill(tmp_path / 'model', 'old')
  _, watch = watched
  places = [tmp_path / name for name in ('model', 'model.old')]
  seen = []
  watch.append(lambda: seen.append([content(place) for place in places]))
  fill(tmp_path / 'model', 'new')
  assert all('old' in there or there[0] == 'new' for there in seen), seen
  assert [None, 'old'] in seen and seen[-1] == ['new', None]
  assert [path.name for path in tmp_path.iterdir()] == ['model']


def test_what_is_renamed_is_on_the_disk_and_then_its_new_name_is(tmp_path, watched):
  done, _ = watched
  with whole_file(tmp_path / 'file') as file:
    inode = os.fstat(file.fileno()).st_ino
  assert (
    done[0] == ('fsync', inode)
    and done[1][0] == 'replace'
    and done[2:] == [('fsync', tmp_path.stat().st_ino)]
  )
  done.clear()
  fill(tmp_path / 'model', 'new')
  inodes = [
    path.stat().st_ino for path in (tmp_path / 'model' / 'deep' / 'file', tmp_path / 'model')
  ]
  renamed = done.index(('rename', 'model.partial'))
  assert all(('fsync', inode) in done[:renamed] for inode in inodes)
  assert ('fsync', tmp_path.stat().st_ino) in done[renamed:]


def killed_between_the_renames(tmp_path):
  fill(tmp_path / 'model', 'old')
  fill(tmp_path / 'other', 'new')
  (tmp_path / 'model').rename(tmp_path / 'model.old')
  (tmp_path / 'other').rename(tmp_path / 'model.partial')


def test_writing_again_after_a_kill_loses_nothing_whether_it_works_or_not(tmp_path):
  killed_between_the_renames(tmp_path)
  with (
    pytest.raises(UserError, match=r'No space left on device\): make room'),
    whole_folder(tmp_path / 'model'),
  ):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  assert content(tmp_path / 'model') == 'old'
  fill(tmp_path / 'model', 'newer')
  assert content(tmp_path / 'model') == 'newer' and [path.name for path in tmp_path.iterdir()] == [
    'model'
  ]


def test_text_and_json_are_written_whole_and_read_back(tmp_path):
  write_text(tmp_path / 'page.md', 'größer\n')
  write_json(tmp_path / 'config.json', {'a': [1, 2]})
  assert (tmp_path / 'page.md').read_bytes() == 'größer\n'.encode()
  assert read_json(tmp_path / 'config.json') == {'a': [1, 2]}
  assert sorted(path.name for path in tmp_path.iterdir()) == ['config.json', 'page.md']


@pytest.mark.parametrize('text', ['[' * 10**5, '{"a":' * 10**5, b'[' * 10**5, '{', '1' * 5000])
def test_what_is_no_json_is_a_value_error_however_deep(text):
  with pytest.raises(ValueError):
    parse_json(text)


def test_a_lock_is_had_once_and_free_again_after_its_block(tmp_path):
  path = tmp_path / 'deep' / 'lock'
  with locked(path) as is_mine:
    assert is_mine
    with locked(path, wait=False) as again:  # another opening of the file is as another process
      assert not again
  with locked(path, wait=False) as is_mine:
    assert is_mine
