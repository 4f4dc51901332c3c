"""Files are regular, bounded, and written whole or not at all; one process has a lock."""

import contextlib
import errno
import io
import json
import math
import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from fastdec.cli.prompts import read_prompts
from fastdec.errors import UserError
from fastdec.files import (
  json_of,
  lock,
  parse_json,
  place,
  place_for_folder,
  place_to_write,
  read_json,
  read_stdin,
  to_json,
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


def test_the_new_file_replaces_the_old(tmp_path):
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


def test_only_a_file_or_a_folder_is_replaced(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  (tmp_path / 'file').write_text('mine')
  for path in (tmp_path / 'pipe', tmp_path):
    with pytest.raises(UserError, match='it exists and is not a regular file'):
      write_text(path, 'a')
  for path in (tmp_path / 'pipe', tmp_path / 'file', pathlib.Path(), pathlib.Path('..')):
    with pytest.raises(UserError, match='cannot become a folder'), whole_folder(path):
      pass
  assert sorted(path.name for path in tmp_path.iterdir()) == ['file', 'pipe']
  assert (tmp_path / 'pipe').is_fifo() and (tmp_path / 'file').read_text() == 'mine'


@pytest.mark.parametrize('name, file, folder', [
  ('new', '', ''), ('deep/new', '', ''), ('.', 'is a folder', ''),
  ('there', '', 'cannot become a folder'), ('there/new', 'Not a directory', 'Not a directory'),
  ('pipe', 'not a regular file', 'cannot become'),
  ('locked/new', 'Permission denied', 'Permission denied'),
])  # fmt: skip
def test_a_place_to_write_is_checked_before_the_work(tmp_path, monkeypatch, name, file, folder):
  os.mkfifo(tmp_path / 'pipe')
  (tmp_path / 'there').touch()
  (tmp_path / 'locked').mkdir()
  make = os.mkdir

  def mkdir(path, *args):
    if pathlib.Path(path).parent.name == 'locked':  # root may write it
      raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    make(path, *args)

  monkeypatch.setattr(os, 'mkdir', mkdir)
  for check, reason in ((place_to_write, file), (place_for_folder, folder)):
    with pytest.raises(UserError, match=reason) if reason else contextlib.nullcontext():
      assert check(tmp_path / name) == tmp_path / name
  assert len([*tmp_path.rglob('*')]) == 3


@pytest.mark.skipif(not pathlib.Path('/proc/self').exists(), reason='there is no /proc')
def test_a_folder_that_takes_no_files_is_refused_whatever_its_rights():
  for check in (place_to_write, place_for_folder):
    with pytest.raises(UserError, match=r'cannot write /proc/x/y \(.*\): give a name in a folder'):
      check('/proc/x/y')


def test_standard_input_is_bounded(monkeypatch):
  for data, most in ((b'abc', 3), (b'abcd', 4)):
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(data)))
    assert read_stdin(most) == data
  monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(b'abcd')))
  with pytest.raises(UserError, match='more than 3 bytes'):
    read_stdin(3)
  monkeypatch.setattr(sys, 'stdin', None)
  with pytest.raises(UserError, match='standard input is closed'):
    read_stdin()


def fill(path, content):
  with whole_folder(path) as partial:
    (partial / 'deep').mkdir()
    (partial / 'deep' / 'file').write_text(content)


def content(path):
  file = path / 'deep' / 'file'
  return file.read_text() if file.exists() else None


@pytest.fixture
def steps(monkeypatch):
  """Records each step of writing: (function, file's name or inode, what `look` saw before and
  after it)."""
  steps = types.SimpleNamespace(done=[], look=lambda: None)

  def record(module, name):
    function = getattr(module, name)

    def step(path, *args, **kwargs):
      which = os.fstat(path).st_ino if name == 'fsync' else os.path.basename(path)
      before = steps.look()
      result = function(path, *args, **kwargs)
      steps.done.append((name, which, before, steps.look()))
      return result

    monkeypatch.setattr(module, name, step)

  for module, name in ((os, 'rename'), (os, 'replace'), (os, 'fsync'), (shutil, 'rmtree')):
    record(module, name)
  return steps


def test_at_every_step_the_old_folder_or_the_new_is_whole(tmp_path, steps):
  """The process is killed at any time."""
  fill(tmp_path / 'model', 'old')
  steps.done.clear()
  steps.look = lambda: [content(tmp_path / name) for name in ('model', 'model.old')]
  fill(tmp_path / 'model', 'new')
  seen = [state for *_, before, after in steps.done for state in (before, after)]
  assert all('old' in state or state[0] == 'new' for state in seen), seen
  assert [None, 'old'] in seen and seen[-1] == ['new', None]
  assert [path.name for path in tmp_path.iterdir()] == ['model']


def test_data_is_on_the_disk_before_its_new_name_is(tmp_path, steps):
  with whole_file(tmp_path / 'file') as file:
    inode = os.fstat(file.fileno()).st_ino
  done = [step[:2] for step in steps.done]
  folder = ('fsync', tmp_path.stat().st_ino)
  assert done[0] == ('fsync', inode) and done[1][0] == 'replace' and done[2:] == [folder]
  steps.done.clear()
  fill(tmp_path / 'model', 'new')
  done = [step[:2] for step in steps.done]
  renamed = done.index(('rename', 'model.partial'))
  for path in (tmp_path / 'model' / 'deep' / 'file', tmp_path / 'model'):
    assert ('fsync', path.stat().st_ino) in done[:renamed]
  assert folder in done[renamed:]


def test_writing_again_after_a_kill_loses_nothing_whether_it_works_or_not(tmp_path):
  fill(tmp_path / 'model', 'old')
  fill(tmp_path / 'other', 'new')
  (tmp_path / 'model').rename(tmp_path / 'model.old')  # killed between the two renames
  (tmp_path / 'other').rename(tmp_path / 'model.partial')
  with (
    pytest.raises(UserError, match=r'No space left on device\): make room'),
    whole_folder(tmp_path / 'model'),
  ):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  assert content(tmp_path / 'model') == 'old'
  fill(tmp_path / 'model', 'newer')
  assert content(tmp_path / 'model') == 'newer'
  assert [path.name for path in tmp_path.iterdir()] == ['model']


def test_text_and_json_are_written_whole_and_read_back(tmp_path):
  write_text(tmp_path / 'page.md', 'größer\n')
  write_json(tmp_path / 'config.json', {'a': [1, 2]})
  assert (tmp_path / 'page.md').read_bytes() == 'größer\n'.encode()
  assert read_json(tmp_path / 'config.json') == {'a': [1, 2]}
  assert sorted(path.name for path in tmp_path.iterdir()) == ['config.json', 'page.md']


NUMBERS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, np.float64('nan')])
VALUES = st.recursive(
  st.none() | st.booleans() | st.integers() | NUMBERS | st.text(),
  lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
)


@hypothesis.given(VALUES)
def test_no_json_has_a_number_that_is_not_finite(value):
  def refuse(word):
    raise AssertionError(word)

  assert json.loads(to_json(value), parse_constant=refuse) == json_of(value)


def test_one_function_writes_json():
  """Others hash it, check it, or write it to a process of ours."""
  others = [
    'fastdec/cli/prompts.py', 'fastdec/files.py', 'fastdec/hub/tokenizers/chat.py',
    'fastdec/hub/tokenizers/rendering.py', 'fastdec/laws/expression.py',
    'fastdec/laws/json_schema.py', 'fastdec/text/generator.py', 'fastdec/training/stage.py',
    'fastdec/training/written.py',
  ]  # fmt: skip
  root, found = pathlib.Path(__file__).parent.parent, []
  for folder in ('benchmarks', 'experiments', 'fastdec'):
    for file in sorted((root / folder).rglob('*.py')):
      if re.search(r'\bjson\.dumps?\(|import dumps?\b', file.read_text()):
        found.append(str(file.relative_to(root)))
  assert found == others


def test_a_character_in_two_halves_is_whole(tmp_path):
  assert parse_json(r'"\ud83d\ude00 \\ud83d"') == '😀 \\ud83d'


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  (tmp_path / 'sparse').touch()
  os.truncate(tmp_path / 'sparse', 2**40)
  with socket.socket(socket.AF_UNIX) as server:
    server.bind(os.path.relpath(tmp_path / 'socket'))
  for path, reason in {
    tmp_path / 'pipe': 'a pipe or a device',
    tmp_path / 'sparse': '1,099,511,627,776 bytes',
    tmp_path / 'socket': 'a pipe or a device',
    pathlib.Path('/dev/zero'): 'a pipe or a device',
    tmp_path: 'Is a directory',
    tmp_path / ('x' * 5000): 'File name too long',
    tmp_path / 'a\0': 'no file can have this name',
    tmp_path / '\ud800': 'no file can have this name',
  }.items():
    for read in (read_json, read_prompts):
      with pytest.raises(UserError, match=f'cannot read .*{reason}'):
        read(path)
  (tmp_path / 'link').symlink_to('file')
  (tmp_path / 'file').write_text('a')
  assert read_prompts(tmp_path / 'link') == ['a']


@pytest.mark.parametrize('name', ['x' * 5000, 'x' * 300, 'a/' * 2000, 'a\0', '\ud800', ''])
def test_an_impossible_file_name_is_refused(name):
  with pytest.raises(UserError, match=r"no file can be called '.{0,90}: give another name"):
    place(name)


@pytest.mark.parametrize('path', [5, None, ['a']])
def test_a_place_is_a_path(path):
  with pytest.raises(UserError, match='is not a path: give the name'):
    place(path)
  assert place('\udcff') == place(pathlib.Path('\udcff')) == pathlib.Path('\udcff')


def test_a_message_is_cut_and_obeyed_by_no_terminal():
  assert (
    str(UserError('say\x1b[2J \ud800 \u202e so:\nöß')) == r'say\x1b[2J \ud800 \u202e so:' '\nöß'
  )
  message = str(UserError(f'no field {"x" * 10**6}: known are a, b'))
  assert len(message) < 2100 and message.endswith('x: known are a, b')


@pytest.mark.parametrize('text', ['[' * 10**5, '{"a":' * 10**5, b'[' * 10**5, '{', '1' * 5000])
def test_invalid_json_is_a_value_error_however_deep(text):
  with pytest.raises(ValueError):
    parse_json(text)


def test_a_lock_is_had_once_and_free_again_after_its_block(tmp_path):
  path = tmp_path / 'deep' / 'lock'
  with lock(path) as is_mine:
    assert is_mine
    with lock(path, wait=False) as again:  # another opening of the file is as another process
      assert not again
  with lock(path, wait=False) as is_mine:
    assert is_mine
