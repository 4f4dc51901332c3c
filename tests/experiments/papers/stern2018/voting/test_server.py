"""The launcher of the human evaluation: mistakes, and a server that is killed in the middle of voting."""

import collections
import concurrent.futures
import http.client
import itertools
import os
import signal
import sqlite3
import sys
import threading
import urllib.error

import numpy as np
import pytest

from experiments.papers.stern2018 import voting
from experiments.papers.stern2018.voting.store import FILE, Votes
from experiments.papers.stern2018.voting.study import Study
from tests.experiments.papers.stern2018.voting.human_eval import PAIRS, Client, files, free_port, images, server

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
  refused(['cannot serve on 203.0.113.1:0', '--host'], here, '--serve', '--host=203.0.113.1', '--port=0')
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
    ({'input': np.zeros((3, 8, 8, 3), np.uint8)}, ['shows other pictures than the baseline dev-k1-regular-exact.npz']),
    ({'input': None}, ['cannot be shown, input is not a file']),
    ({'output': np.zeros((3, 32, 32, 3))}, ["'output' is float64[3, 32, 32, 3]", 'uint8[n, 32, 32, 3]']),
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
  refused([FILE, 'cannot be read as a votes file', 'move it elsewhere'], do, f'--workdir={workdir}', '--port=0')
  (workdir / FILE).unlink()
  Votes(workdir / FILE, Study.of(workdir).digest, new=True)
  refused(['holds no votes yet'], '--report', f'--workdir={workdir}')
  images(workdir, seed=1)
  refused([FILE, 'another study', 'put those images back, or move'], do, f'--workdir={workdir}', '--port=0')


def test_a_missing_framework_is_one_sentence(refused, workdir, monkeypatch):
  monkeypatch.setitem(sys.modules, 'waitress', None)
  monkeypatch.delitem(sys.modules, 'experiments.papers.stern2018.voting.web', raising=False)
  monkeypatch.delattr(voting, 'web', raising=False)
  refused(['waitress is not installed', "pip install 'fastdec[human-eval]'"], '--serve', f'--workdir={workdir}')


def test_a_server_is_this_machines_alone_keeps_its_port_and_ends_with_ctrl_c(refused, workdir, tmp_path):
  with server(workdir) as (process, address):
    assert address.startswith('http://127.0.0.1:')
    port = address.rstrip('/').rsplit(':')[-1]
    other = images(tmp_path / 'other')
    words = [f'cannot serve on 127.0.0.1:{port} (Address already in use)', '--port']
    refused(words, f'--workdir={other}', '--serve', f'--port={port}')
    assert Client(address).state() == {'rater': None, 'total': PAIRS}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out.startswith('\nEnded')
    assert 'Traceback' not in err  # a loaded machine may be warned of threads that end late


def test_no_acknowledged_vote_is_lost_or_doubled_when_the_server_is_killed(tmp_path):
  workdir, port, names = images(tmp_path / 'run', count=200), free_port(), ['Ada', 'Bob', 'Cy', 'Di']
  halfway = threading.Event()
  acknowledged, sent = collections.defaultdict(dict), []

  def rate(client, name, worker):
    """Votes until the server is gone, and undoes every fifth; its last request may have been done or not."""
    state = client.post('rater', name=name)
    try:
      for number in itertools.count():
        vote, place = f'{worker:04}{number:012}', state['trial']['place']
        sent.append(vote)
        if len(sent) > 60:
          halfway.set()
        state = client.post('vote', id=vote, place=place, side='left')
        assert state['last'] == vote
        if number % 5 < 4:
          acknowledged[name][vote] = place
        else:
          state = client.post('undo', id=vote)
    except (urllib.error.URLError, ConnectionError, http.client.HTTPException):
      return

  with server(workdir, port) as (process, address), concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
    working = [pool.submit(rate, Client(address), name, worker) for worker, name in enumerate(names)]
    halfway.wait(timeout=30)
    process.kill()
    for work in working:
      work.result(timeout=30)

  with sqlite3.connect(workdir / FILE) as db:  # the disk, before anybody repairs it
    assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)
    counted = db.execute(
      'SELECT votes.id, name, k, rule, image FROM votes JOIN raters ON raters.id = rater WHERE undone IS NULL'
    ).fetchall()
  ids, trials = {vote for vote, *_ in counted}, {tuple(trial) for _, *trial in counted}
  assert len(ids) == len(trials) == len(counted)
  for votes in acknowledged.values():
    assert votes.keys() <= ids
  assert len(ids - set().union(*acknowledged.values())) <= len(names)  # under way when the server was killed

  with server(workdir, port) as (_, address):
    client = Client(address)
    for name in names:
      done = client.post('rater', name=name)['done']
      assert done == sum(rater == name for _, rater, *_ in counted)
      vote, place = acknowledged[name].popitem()
      assert client.post('vote', id=vote, place=place, side='left')['done'] == done  # asked again: once is enough
