"""Shards: whole or not there, each made by one process at a time."""

import errno
import json
import os
import subprocess
import sys
import textwrap

import pytest

from experiments.lab.shards import Shards
from fastdec import files
from fastdec.errors import UserError
from fastdec.files import locked

RECORDS = [['a line', 'eine Zeile'], [], None, ['\u2028 "ä" \\']]


@pytest.fixture
def shards(tmp_path):
  return Shards(tmp_path / 'parts', size=4, total=10)


def test_the_last_shard_has_what_is_left(shards):
  assert [list(shards.span(shard)) for shard in range(len(shards))] == [
    [0, 1, 2, 3],
    [4, 5, 6, 7],
    [8, 9],
  ]


def test_what_is_written_is_read(shards):
  assert shards.read(1) is None and not shards.exists(1)
  shards.write(1, RECORDS)
  assert shards.read(1) == RECORDS and shards.read(0) is None
  assert [path.name for path in shards.folder.iterdir()] == ['00001.jsonl']


@pytest.mark.parametrize(
  'harm', ['cut', 'cut at a line', 'emptied', 'a letter', 'another shard', 'no JSON']
)
def test_what_is_damaged_is_not_read(shards, harm):
  shards.write(1, RECORDS)
  path = shards.folder / '00001.jsonl'
  whole = path.read_bytes()
  lines = whole.splitlines(keepends=True)
  path.write_bytes({
    'cut': whole[:-20],
    'cut at a line': b''.join(lines[:-1]),
    'emptied': b'',
    'a letter': whole.replace(b'eine', b'Eine'),
    'another shard': b''.join(lines[1:]),
    'no JSON': whole + b'\xff',
  }[harm])  # fmt: skip
  assert shards.read(1) is None and shards.exists(1)


def test_what_is_known_to_be_whole_is_not_read_again_until_it_changes(shards, monkeypatch):
  shards.write(1, RECORDS)
  loads, parsed = json.loads, []
  monkeypatch.setattr(json, 'loads', lambda text: parsed.append(text) or loads(text))
  assert shards.is_whole(1) and parsed and not shards.is_whole(0)
  parsed.clear()
  assert shards.is_whole(1) and not parsed
  os.truncate(shards.folder / '00001.jsonl', 10)
  assert not shards.is_whole(1)
  shards.write(1, RECORDS[::-1])
  assert shards.is_whole(1)


def test_a_shard_of_another_size_is_not_read(shards):
  shards.write(1, RECORDS)
  assert Shards(shards.folder, size=3, total=10).read(1) is None


def test_a_claim_excludes_other_processes_and_ends_with_its_process(shards):
  program = textwrap.dedent(f"""
    import pathlib, sys, time
    from experiments.lab.shards import Shards
    with Shards(pathlib.Path({str(shards.folder)!r}), 4, 10).claim(1) as is_ours:
      print(is_ours, flush=True)
      time.sleep(60)
  """)
  process = subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == 'True\n'
  with shards.claim(1) as is_ours, shards.claim(0) as other:
    assert (is_ours, other) == (False, True)
  process.kill()
  process.wait()
  with shards.claim(1) as is_ours:
    assert is_ours


def test_a_full_disk_leaves_what_was_there(shards, monkeypatch):
  shards.write(1, RECORDS)

  def full(file):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(files.os, 'fsync', full)
  with pytest.raises(UserError, match='No space left on device'):
    shards.write(1, RECORDS[::-1])
  assert shards.read(1) == RECORDS
  assert [path.name for path in shards.folder.iterdir()] == ['00001.jsonl']


def test_a_lock_needs_a_folder(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='cannot write'), locked(tmp_path / 'file' / 'lock'):
    pass
