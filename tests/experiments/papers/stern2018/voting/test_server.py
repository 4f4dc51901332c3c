"""The launcher of the human evaluation: mistakes, and a server that is killed in the middle of
voting."""

import collections
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import signal
import socket
import sqlite3
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

from experiments.papers.stern2018.voting.store import FILE, Votes
from experiments.papers.stern2018.voting.study import Study
from tests.experiments.papers.stern2018.voting.human_eval import (
  PAIRS,
  Client,
  files,
  free_port,
  images,
  server,
)

BASELINE = 'dev-k1-regular-exact.npz'


@pytest.fixture
def workdir(tmp_path):
  return images(tmp_path / 'run')


@pytest.fixture
def refused(launch, tmp_path):
  """refused(words in the message, *flags) checks what every mistake has in common."""

  def refused(words, *flags):
    before = files(tmp_path)
    ended = launch('human_eval', *flags)
    assert (ended.code, ended.out, ended.err.count('\n')) == (2, '', 1), ended
    for word in words:
      assert word in ended.err
    assert files(tmp_path) == before

  return refused


def test_flags_that_cannot_be(refused, workdir):
  here = f'--workdir={workdir}'
  refused(['neither --serve nor --report', 'give --serve'], here)
  refused(['both --serve and --report', 'give --serve'], here, '--serve', '--report')
  refused(['--port=65536', '[0, 65535]'], here, '--serve', '--port=65536')
  refused(['--port=-1', '[0, 65535]'], here, '--serve', '--port=-1')
  refused(
    ['cannot serve on 203.0.113.1:0', '--host'], here, '--serve', '--host=203.0.113.1', '--port=0'
  )
  refused(['there are no votes', '--serve'], here, '--report')
  refused(['--workdir is missing'], '--serve')


@pytest.mark.parametrize('do', ['--serve', '--report'])
def test_images_that_cannot_be_compared(refused, tmp_path, do):
  refused(['no folder', 'experiments.table2'], do, f'--workdir={tmp_path}/nowhere')
  refused(['no images of fine-tuned models', 'experiments.table2'], do, f'--workdir={tmp_path}')
  workdir = images(tmp_path / 'run')
  (workdir / 'images' / BASELINE).rename(tmp_path / 'baseline.npz')
  refused(['lacks the baseline', 'experiments.table2'], do, f'--workdir={workdir}')
  images(workdir, split='test')
  refused(['splits dev, test', 'a study shows one'], do, f'--workdir={workdir}')


@pytest.mark.parametrize(
  'arrays, words',
  [
    (
      {'input': np.zeros((3, 8, 8, 3), np.uint8)},
      ['shows other pictures than the baseline dev-k1-regular-exact.npz'],
    ),
    ({'input': None}, ['cannot be shown, input is not a file']),
    (
      {'output': np.zeros((3, 32, 32, 3))},
      ["'output' is float64[3, 32, 32, 3]", 'uint8[n, 32, 32, 3]'],
    ),
    ({'output': np.zeros((3, 32, 32), np.uint8)}, ["'output' is uint8[3, 32, 32]"]),
    ({'output': np.zeros((2, 32, 32, 3), np.uint8)}, ["'output' is uint8[2, 32, 32, 3]"]),
    ({'output': np.array([None] * 3)}, ['cannot be read', 'allow_pickle']),
    (None, ['cannot be read', 'experiments.table2']),
  ],
  ids=['other pictures', 'no input', 'float', 'no channels', 'fewer', 'objects', 'cut short'],
)
def test_a_file_of_images_that_cannot_be_shown(refused, workdir, arrays, words):
  path = workdir / 'images' / 'dev-k2-finetune-exact.npz'
  if arrays is None:
    os.truncate(path, path.stat().st_size // 2)
  else:
    with np.load(path) as there:
      changed = dict(there) | arrays
    np.savez(path, **{name: array for name, array in changed.items() if array is not None})
  refused([path.name, *words], '--serve', f'--workdir={workdir}')


@pytest.mark.parametrize('do', ['--serve', '--report'])
def test_a_votes_file_that_is_not_this_studys(refused, workdir, do):
  (workdir / FILE).write_text('not a database, ' * 100)
  refused(
    [FILE, 'cannot be read as a votes file', 'move it elsewhere'],
    do,
    f'--workdir={workdir}',
    '--port=0',
  )
  (workdir / FILE).unlink()
  Votes(workdir / FILE, Study.of(workdir).digest, new=True)
  refused(['holds no votes yet'], '--report', f'--workdir={workdir}')
  images(workdir, seed=1)
  refused(
    [FILE, 'another study', 'put those images back, or move'],
    do,
    f'--workdir={workdir}',
    '--port=0',
  )


def test_a_server_is_this_machines_alone_keeps_its_port_and_ends_with_ctrl_c(
  refused, workdir, tmp_path
):
  with server(workdir) as (process, address):
    assert address.startswith('http://127.0.0.1:')
    port = address.rstrip('/').rsplit(':')[-1]
    other = images(tmp_path / 'other')
    words = [f'cannot serve on 127.0.0.1:{port} (Address already in use)', '--port']
    refused(words, f'--workdir={other}', '--serve', f'--port={port}')
    assert Client(address).state() == {'done': 0, 'total': PAIRS, 'place': 0}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out.startswith('\nEnded')
    assert 'Traceback' not in err  # a loaded machine may be warned of threads that end late


@pytest.fixture(scope='module')
def address(tmp_path_factory):
  """Where a server is that several tests share."""
  with server(images(tmp_path_factory.mktemp('shared'))) as (_, address):
    yield address


@pytest.mark.parametrize(
  'path, body, status, words',
  [
    ('nothing', None, 404, 'nothing at this address'),
    ('page/../web.py', None, 404, 'nothing at this address'),
    ('state', None, 400, 'a name of 1 to 60 characters'),
    ('state?rater=' + 'x' * 61, None, 400, 'a name of 1 to 60 characters'),
    (f'picture/{PAIRS}/left', None, 404, 'no such picture'),
    ('picture/0/both', None, 404, 'no such picture'),
    ('vote', b'[]', 400, 'object of JSON'),
    ('vote', b'no JSON', 400, 'object of JSON'),
    ('vote', b'[' * 1000, 400, 'object of JSON'),
    ('vote', b'{"place": 0, "side": "left"}', 400, 'a name'),
    ('vote', b'{"rater": "Ada", "place": 0, "side": "both"}', 400, 'left or right'),
    ('vote', b' ' * 1001, 413, 'at most 1000 bytes'),
  ],
)
def test_a_request_that_cannot_be_is_refused_with_a_sentence(address, path, body, status, words):
  if path.startswith('picture'):
    path += '?rater=Ada'
  with pytest.raises(urllib.error.HTTPError) as refused:
    Client(address).request(path, body)
  assert refused.value.code == status and words in json.loads(refused.value.read())['error']
  assert Client(address).state()['done'] == 0


def test_a_body_is_refused_before_it_is_read(address):
  host, port = address.removeprefix('http://').rstrip('/').split(':')
  with socket.create_connection((host, int(port)), timeout=20) as connection:
    connection.sendall(
      f'POST /vote HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {2**40}\r\n\r\n'.encode()
    )
    assert connection.recv(100).startswith(b'HTTP/1.1 413')


def resident(process):
  """Bytes of memory that a process holds."""
  pages = int(pathlib.Path(f'/proc/{process.pid}/statm').read_text().split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE')


def test_large_bodies_and_slow_senders_cost_neither_memory_nor_disk(workdir):
  def begin(length, body):
    connection = socket.create_connection((host, int(port)), timeout=20)
    with contextlib.suppress(ConnectionError):  # it is refused while it sends
      head = f'POST /vote HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {length}\r\n\r\n'
      connection.sendall(head.encode() + body)
    return connection

  with server(workdir) as (process, address), contextlib.ExitStack() as opened:
    host, port = address.removeprefix('http://').rstrip('/').split(':')
    Client(address, 'Ada').state()
    before, files_before = resident(process), files(workdir)
    opened.enter_context(begin(40 * 2**20, bytes(40 * 2**20)))
    for _ in range(100):
      opened.enter_context(begin(1000, b'{"rater'))  # and no more of it
    # others are answered
    assert Client(address, 'Ada').state() == {'done': 0, 'total': PAIRS, 'place': 0}
    assert resident(process) - before < 16 * 2**20 and files(workdir) == files_before
    kept = [
      os.readlink(one)
      for one in pathlib.Path(f'/proc/{process.pid}/fd').iterdir()
      if one.is_symlink()
    ]
    assert not [name for name in kept if '(deleted)' in name]  # as temporary files are


def test_a_request_from_another_page_or_under_another_name_is_refused(address):
  """A page elsewhere may send a vote here, and may have its own name resolved to this machine."""
  vote = json.dumps({'rater': 'Eve', 'place': 0, 'side': 'left'}).encode()
  own = address.rstrip('/')
  for headers in ({'Origin': 'http://evil.example'}, {'Host': 'evil.example'}, {'Origin': 'null'}):
    with pytest.raises(urllib.error.HTTPError, match='403'):
      Client(address).request('vote', vote, **headers)
  assert Client(address, 'Eve').state()['done'] == 0
  Client(address).request('vote', vote, Origin=own)
  assert Client(address, 'Eve').state()['done'] == 1


def test_pictures_are_alike_in_all_but_their_pixels(address):
  left, right = (
    urllib.request.urlopen(f'{address}picture/0/{side}?rater=Ada', timeout=20)
    for side in ('left', 'right')
  )
  assert left.read() != right.read()
  assert {**left.headers, 'Date': ''} == {**right.headers, 'Date': ''}
  assert left.headers['Cache-Control'] == 'no-store'


def test_a_vote_that_is_not_kept_is_not_acknowledged(workdir):
  with server(workdir) as (_, address):
    (workdir / FILE).rename(workdir / 'gone')
    with pytest.raises(urllib.error.HTTPError, match='503'):
      Client(address).vote(0, 'left')
  assert not (workdir / FILE).exists()


def test_no_acknowledged_vote_is_lost_or_doubled_when_the_server_is_killed(tmp_path):
  workdir, port, names = (
    images(tmp_path / 'run', count=200),
    free_port(),
    ['Ada', 'Bob', 'Cy', 'Di'],
  )
  halfway = threading.Event()
  acknowledged = collections.Counter()

  def rate(name):
    """Votes until the server is gone; the last request may have been done or not."""
    client = Client(address, name)
    try:
      for place in itertools.count():
        assert client.vote(place, 'left')['done'] == place + 1
        acknowledged[name] += 1
        # SQLite's lock is not fair: one may come late
        if all(acknowledged[other] >= 10 for other in names):
          halfway.set()
    except (urllib.error.URLError, ConnectionError, http.client.HTTPException):
      return

  with (
    server(workdir, port) as (process, address),
    concurrent.futures.ThreadPoolExecutor(len(names)) as pool,
  ):
    working = [pool.submit(rate, name) for name in names]
    assert halfway.wait(timeout=60)
    process.kill()
    for work in working:
      work.result(timeout=30)

  with sqlite3.connect(workdir / FILE) as db:  # the disk, before anybody repairs it
    assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)
    counted = dict(db.execute('SELECT rater, count(*) FROM votes GROUP BY rater').fetchall())
  for name in names:
    assert acknowledged[name] <= counted[name] <= acknowledged[name] + 1  # one was under way

  with server(workdir, port) as (_, address):
    for name in names:
      client = Client(address, name)
      # asked again: once is enough
      assert client.state()['done'] == client.vote(0, 'left')['done'] == counted[name]
