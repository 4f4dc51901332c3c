"""The human evaluation over HTTP: what raters see, that votes are neither lost nor doubled, refused
requests, and the table."""

import base64
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from experiments.lab import rows
from experiments.stern2018 import vote
from fastdec.files import lock
from tests.experiments.conftest import ROOT

PAIRS = 12  # of `workdir`: 3 pictures, 2 k, 2 rules
TELLING = r'finetun|regular|exact|distance|baseline|blockwise|npz|\bdev\b'


def write(folder, count=3, seed=0, split='dev', base=0):
  """Writes random pictures as table2 leaves them, and one that is none of the study's."""
  rng = np.random.default_rng(seed)
  inputs = rng.integers(256, size=(count, 8, 8, 3), dtype=np.uint8)
  (folder / 'images').mkdir(parents=True, exist_ok=True)
  methods = [f'k{k}-finetune-{rule}' for k in (2, 10) for rule in ('exact', 'distance-2')]
  for method in ['k1-regular-exact', 'k4-regular-distance-2', *methods]:
    output = rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
    path = folder / 'images' / f'{split}-{method}.npz'
    np.savez(path, input=inputs, output=output, base=np.full((1, 8), base, np.uint8))


@pytest.fixture
def workdir(tmp_path):
  write(tmp_path)
  return tmp_path


@contextlib.contextmanager
def serving(workdir):
  """A server in this process: its port."""
  with vote.Server(vote.Study(workdir), workdir / 'votes.jsonl') as server:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()


def ask(port, path, body=None, **headers):
  """The status and the content of an answer."""
  connection = http.client.HTTPConnection('127.0.0.1', port, timeout=600)
  connection.request('GET' if body is None else 'POST', path, body, headers)
  answer = connection.getresponse()
  return answer.status, answer.read().decode()


def facts(port, rater):
  """The facts in the page of a rater."""
  status, page = ask(port, f'/?rater={rater}')
  assert status == 200
  return json.loads(re.search('id="facts">(.*?)</script>', page)[1])


def choose(port, rater, pair, side='left', **headers):
  return ask(port, '/vote', json.dumps({'rater': rater, 'pair': pair, 'side': side}), **headers)[0]


def pixels(address):
  bitmap = base64.b64decode(address.removeprefix('data:image/bmp;base64,'))
  side = int.from_bytes(bitmap[18:22], 'little')
  return np.frombuffer(bitmap[54:], np.uint8).reshape(side, side, 3)[::-1, :, ::-1]


def votes(workdir):
  return rows.read(workdir / 'votes.jsonl')


def test_a_rater_sees_each_pair_once_and_what_counts_is_the_side_of_the_fine_tuned_model(workdir):
  study = vote.Study(workdir)
  with serving(workdir) as port:
    for pair in facts(port, 'ada')['pairs']:
      side = study.pairs('ada')[pair['pair']][3]
      assert choose(port, 'ada', pair['pair'], side) == 204
      line = votes(workdir)[-1]
      k, rule, image = line['k'], line['rule'], line['image']
      np.testing.assert_array_equal(pixels(pair['input']), study.inputs[image])
      np.testing.assert_array_equal(pixels(pair[side]), study.outputs[k, rule][image])
      (other,) = {'left', 'right'} - {side}
      np.testing.assert_array_equal(pixels(pair[other]), study.baseline[image])
    assert facts(port, 'ada') == {'rater': 'ada', 'done': PAIRS, 'total': PAIRS, 'pairs': []}
  assert len({(line['k'], line['rule'], line['image']) for line in votes(workdir)}) == PAIRS
  assert all(line['preferred'] and line['rater'] == 'ada' for line in votes(workdir))


def test_order_and_sides_are_a_raters_own_and_stay(workdir):
  study, again = vote.Study(workdir), vote.Study(workdir)
  assert list(study.pairs('ada').items()) == list(again.pairs('ada').items())
  orders = [study.pairs(f'rater-{n}').values() for n in range(500)]
  lefts = collections.Counter(pair[:3] for order in orders for pair in order if pair[3] == 'left')
  firsts = collections.Counter(next(iter(order))[:3] for order in orders)
  assert len(lefts) == len(firsts) == PAIRS  # 5 standard deviations:
  assert all(abs(n - 250) < 56 for n in lefts.values())
  assert all(abs(n - 500 / PAIRS) < 31 for n in firsts.values())


def test_nothing_in_a_page_tells_the_methods_apart(workdir):
  with serving(workdir) as port:
    _, page = ask(port, '/?rater=ada')
    assert not re.search(TELLING, re.sub('base64,[^"]*', '', page), re.IGNORECASE)
    pairs = facts(port, 'ada')['pairs']
  assert len({len(pair[side]) for pair in pairs for side in ('left', 'right')}) == 1


def test_a_page_has_some_pairs_and_the_next_page_the_next(workdir, monkeypatch):
  monkeypatch.setattr(vote, 'PAGE_PAIRS', 5)
  seen = []
  with serving(workdir) as port:
    while pairs := facts(port, 'ada')['pairs']:
      assert len(pairs) <= 5
      for pair in pairs:
        seen.append(pair['pair'])
        assert choose(port, 'ada', pair['pair']) == 204
  assert seen == list(vote.Study(workdir).pairs('ada'))


def test_the_first_vote_counts_and_belongs_to_its_rater_and_pictures(workdir):
  with serving(workdir) as port:
    name = facts(port, 'ada')['pairs'][0]['pair']
    assert [choose(port, 'ada', name, side) for side in ('left', 'left', 'right')] == [204] * 3
    (line,) = votes(workdir)
    assert line['preferred'] == (vote.Study(workdir).pairs('ada')[name][3] == 'left')
    assert choose(port, 'bob', name) == 400 and len(votes(workdir)) == 1
  write(workdir, seed=1)
  with serving(workdir) as port:
    assert facts(port, 'ada')['done'] == 0 and choose(port, 'ada', name) == 400


def test_requests_that_cannot_be_are_refused_and_nothing_is_written(workdir):
  with serving(workdir) as port:
    name = facts(port, 'ada')['pairs'][0]['pair']
    assert ask(port, '/')[0] == 200 and ask(port, '/?rater=')[0] == 200
    for path in ('/vote.py', '/../vote.py', '/?rater=A%20b', f'/?rater={"x" * 41}', '/?name=ada'):
      assert ask(port, path)[0] == 404
    for body in ('', '[]', '{', '[' * 900, '{"rater": "ada"}', b'\xff', '{"pair": []}'):
      assert ask(port, '/vote', body)[0] == 400
    for pair, side in ((name, 'both'), (name, 0), ('0' * 16, 'left'), (0, 'left'), ([], 'left')):
      assert choose(port, 'ada', pair, side) == 400
    assert choose(port, 1, next(iter(vote.Study(workdir).pairs('1')))) == 400  # a rater is a word
    assert ask(port, '/vote', ' ' * 1000)[0] == 413 and ask(port, '/other', '{}')[0] == 413
    # A page from elsewhere may send a vote, or have its own name resolved to this machine.
    for headers in (
      {'Origin': 'http://evil.example'},
      {'Origin': 'null'},
      {'Host': 'evil.example'},
    ):
      assert choose(port, 'ada', name, **headers) == 403
    assert not votes(workdir)
    assert choose(port, 'ada', name, Origin=f'http://127.0.0.1:{port}') == 204


def test_the_page_takes_nothing_from_elsewhere(workdir):
  with serving(workdir) as port:
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=600)
    connection.request('GET', '/?rater=ada')
    answer = connection.getresponse()
    policy, page = answer.headers['Content-Security-Policy'], answer.read().decode()
  nonce = re.search("script-src 'nonce-(.*?)'", policy)[1]
  assert policy.startswith("default-src 'none'") and "'unsafe" not in policy
  assert page.count(f'nonce="{nonce}"') == 2 and 'http' not in page and ' onclick' not in page


def test_a_vote_that_cannot_be_kept_is_not_acknowledged(workdir, monkeypatch):
  def full(*_):
    raise OSError('the disk is full')

  with serving(workdir) as port:
    first, second = (pair['pair'] for pair in facts(port, 'ada')['pairs'][:2])
    assert choose(port, 'ada', first) == 204
    with monkeypatch.context() as patched:
      patched.setattr(vote, 'append', full)
      assert choose(port, 'ada', second) == 503
    assert len(votes(workdir)) == facts(port, 'ada')['done'] == 1
    assert choose(port, 'ada', second) == 204 and len(votes(workdir)) == 2


@contextlib.contextmanager
def launched(workdir):
  """The command as its own process: yields process and port, and kills it."""
  command = [sys.executable, '-m', 'experiments.human_eval', '--serve', '--port=0']
  process = subprocess.Popen(
    [*command, f'--workdir={workdir}'], cwd=ROOT, stdout=subprocess.PIPE, text=True
  )
  try:
    yield process, int(re.search(r'http://127\.0\.0\.1:(\d+)/', process.stdout.readline())[1])
  finally:
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_no_acknowledged_vote_is_lost_or_doubled_when_the_server_is_killed(tmp_path):
  write(tmp_path, count=200)
  raters, acknowledged = ('ada', 'bob', 'cy'), collections.Counter()

  def rate(port, rater):
    """Votes until the server is gone; whether the last vote was kept is not known then."""
    with contextlib.suppress(ConnectionError, http.client.HTTPException):
      for pair in facts(port, rater)['pairs']:
        assert choose(port, rater, pair['pair']) == 204
        acknowledged[rater] += 1

  with launched(tmp_path) as (process, port), concurrent.futures.ThreadPoolExecutor() as pool:
    working = [pool.submit(rate, port, rater) for rater in raters]
    deadline = time.monotonic() + 600
    while min(acknowledged[rater] for rater in raters) < 10:
      assert time.monotonic() < deadline
      time.sleep(0.01)
    process.kill()
    for work in working:
      work.result(timeout=600)
  kept = collections.Counter(line['rater'] for line in votes(tmp_path))
  assert all(0 <= kept[rater] - acknowledged[rater] <= 1 for rater in raters)

  with (tmp_path / 'votes.jsonl').open('a') as file:
    file.write('{"pair": "0123')  # as a kill in the middle of writing leaves it
  with launched(tmp_path) as (process, port):
    for rater in raters:
      page = facts(port, rater)
      assert page['done'] == kept[rater]
      assert choose(port, rater, page['pairs'][0]['pair']) == 204
    assert len(votes(tmp_path)) == sum(kept.values()) + 3
    process.send_signal(signal.SIGINT)
    assert '\nEnded' in process.communicate(timeout=600)[0] and process.returncode == 0


def test_mistakes_are_answered_in_a_sentence(launch, tmp_path):
  def refused(words, *flags):
    ended = launch('human_eval', f'--workdir={tmp_path}', *flags)
    assert (ended.code, ended.out, ended.err.count('\n')) == (2, '', 1), ended
    assert words in ended.err

  refused('--serve to vote, or --report')
  refused('lacks the baseline or fine-tuned models', '--serve')
  write(tmp_path)
  refused('these pictures have no votes yet', '--report')
  (tmp_path / 'votes.jsonl').write_text('{"rater": 1}\n')
  refused("votes.jsonl lacks the field 'pair'", '--report')
  (tmp_path / 'votes.jsonl').unlink()
  with serving(tmp_path) as port:
    refused('Address already in use', '--serve', f'--port={port}')
  with lock(tmp_path / 'votes.jsonl'):
    refused('another server writes to', '--serve', '--port=0')
  write(tmp_path, seed=1, split='test')
  refused('shows other pictures', '--serve')
  write(tmp_path, split='test', base=1)
  refused('comes from a different base', '--serve')
  for path in (tmp_path / 'images').iterdir():
    os.truncate(path, 1000)
  refused('cannot be read', '--serve')


def test_the_report_is_the_papers_table_with_our_figures(launch, workdir):
  study = vote.Study(workdir)
  with serving(workdir) as port:
    for rater in ('ada', 'bob'):
      for name, (k, _, _, side) in study.pairs(rater).items():
        choose(port, rater, name, side if k == 2 else 'left')
  ended = launch('human_eval', f'--workdir={workdir}', '--report')
  assert ended.code == 0
  lines = (workdir / 'table3.md').read_text().splitlines()
  assert lines[2].startswith('| fine-tuning, distance-2, k = 2 | regular, exact, k = 1 |')
  assert '| 100.0 [100.0, 100.0] | 52.8 [50.8, 54.9] | 6 | 2 |' in lines[3]
  assert lines[6] in ended.out.splitlines() and lines[6] == ''


def test_the_interval_is_that_of_resampled_votes():
  chosen = np.arange(200) < 110
  rng = np.random.default_rng(1)
  means = 100 * np.array([rng.choice(chosen, len(chosen)).mean() for _ in range(4000)])
  percent, *interval = vote.measure_preference(list(chosen))
  assert percent == pytest.approx(55)
  assert interval == pytest.approx(np.percentile(means, (5, 95)), abs=0.6)
