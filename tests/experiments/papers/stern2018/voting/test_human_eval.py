"""The human evaluation without a browser: studies, what raters see, and votes that are neither lost nor doubled."""

import collections
import concurrent.futures
import csv
import io
import itertools
import secrets
import sqlite3

import numpy as np
import pytest
from PIL import Image

from experiments.papers.stern2018.voting.blind import PICTURES, Blind
from experiments.papers.stern2018.voting.store import FILE, Votes
from experiments.papers.stern2018.voting.study import Study, Trial
from fastdec.errors import UserError
from tests.experiments.papers.stern2018.voting.human_eval import PAIRS, files, images


@pytest.fixture
def workdir(tmp_path):
  return images(tmp_path / 'run')


@pytest.fixture
def study(workdir):
  return Study.of(workdir)


@pytest.fixture
def votes(workdir, study):
  return Votes(workdir / FILE, study.digest, new=True)


@pytest.fixture
def blind(study, votes):
  return Blind(votes.secret, study.trials)


def new_id():
  return secrets.token_hex(16)


def test_a_study_asks_every_picture_of_every_fine_tuned_method(study):
  methods = [(2, 'distance-2'), (2, 'exact'), (10, 'distance-2'), (10, 'exact')]
  assert study.trials == [Trial(*method, image) for method in methods for image in range(3)]


def test_a_study_is_its_pixels_not_its_files(study, workdir):
  for path in (workdir / 'images').iterdir():
    with np.load(path) as arrays:
      np.savez_compressed(path, **arrays)
  assert Study.of(workdir).digest == study.digest
  images(workdir, seed=1)
  assert Study.of(workdir).digest != study.digest


def test_a_rater_keeps_order_and_sides_and_others_have_others(study, blind):
  again = Blind(blind._secret, study.trials)
  assert blind.order('ada') == again.order('ada')
  assert sorted(shown.trial for shown in blind.order('ada')) == study.trials
  assert len({blind.order(f'rater {n}') for n in range(20)}) == 20
  assert blind.order('ada') != Blind(b'another secret', study.trials).order('ada')


def test_method_1_is_on_each_side_and_in_each_place_about_as_often(study, blind):
  orders = [blind.order(f'rater {n}') for n in range(500)]
  sides = collections.Counter((shown.trial, shown.side) for order in orders for shown in order)
  firsts = collections.Counter(order[0].trial for order in orders)
  for trial in study.trials:  # 5 standard deviations
    assert abs(sides[trial, 'left'] - 250) < 56
    assert abs(firsts[trial] - 500 / PAIRS) < 31


def test_every_picture_of_every_trial_and_rater_has_its_own_address(blind):
  keys = list(itertools.product(('ada', 'bob'), range(PAIRS), PICTURES))
  tokens = [blind.token(*key) for key in keys]
  assert len(set(tokens)) == len(keys)
  for (rater, place, name), token in zip(keys, tokens, strict=True):
    assert blind.picture(rater, place, token) == name
    assert blind.picture('eve', place, token) is blind.picture(rater, place + 1, token) is None
  assert blind.picture('ada', 0, 'é') is None


def test_votes_are_there_after_opening_the_file_again(workdir, study, votes, blind):
  ada, vote = votes.join('Ada'), new_id()
  shown = blind.order(ada)[0]
  votes.vote(vote, ada, shown, shown.side)
  again = Votes(workdir / FILE, study.digest)
  assert again.secret == votes.secret and again.of(ada) == {shown.trial: vote}
  (k, rule, _), result = shown.trial, again.results()
  assert result == {(k, rule): result[k, rule]} and result[k, rule].preferred == (True,)


def test_what_counts_is_the_side_of_method_1(votes, blind):
  ada = votes.join('Ada')
  expected = collections.defaultdict(list)
  for shown in sorted(blind.order(ada)):
    votes.vote(new_id(), ada, shown, 'left')
    expected[shown.trial[:2]].append(shown.side == 'left')
  assert {method: list(result.preferred) for method, result in votes.results().items()} == expected


def test_a_vote_that_comes_twice_is_one(votes, blind):
  ada, vote = votes.join('Ada'), new_id()
  shown = blind.order(ada)[0]
  votes.vote(vote, ada, shown, 'left')
  votes.vote(vote, ada, shown, 'left')
  votes.vote(new_id(), ada, shown, 'right')  # from a second window
  (result,) = votes.results().values()
  assert votes.of(ada) == {shown.trial: vote} and result.preferred == (shown.side == 'left',)


def test_undo_takes_back_one_vote_for_good(votes, blind):
  ada, bob, first, second = votes.join('Ada'), votes.join('Bob'), new_id(), new_id()
  one, two = blind.order(ada)[:2]
  votes.vote(first, ada, one, 'left')
  votes.vote(second, ada, two, 'left')
  votes.undo(second, bob)
  assert list(votes.of(ada)) == [one.trial, two.trial]
  votes.undo(second, ada)
  votes.undo(second, ada)
  votes.vote(second, ada, two, 'left')  # a request that comes late
  assert votes.of(ada) == {one.trial: first}
  votes.vote(third := new_id(), ada, two, 'right')
  assert votes.of(ada) == {one.trial: first, two.trial: third}


def test_a_name_is_one_rater_and_no_name_is_a_new_one(votes):
  ada = votes.join(' Ada  Lovelace ')
  assert votes.join('Ada Lovelace') == ada and votes.name(ada) == 'Ada Lovelace'
  nobody = votes.join('')
  assert votes.join('  ') != nobody and votes.name(nobody) == ''
  assert votes.name('eve') is None


def test_raters_come_at_once(workdir, study, votes):
  own = [Votes(workdir / FILE, study.digest) for _ in range(8)]  # as in processes of their own
  with concurrent.futures.ThreadPoolExecutor(len(own)) as pool:
    raters = list(pool.map(lambda file: [file.join(f'rater {n}') for n in range(10)], own))
  assert len(set(raters[0])) == 10 and all(row == raters[0] for row in raters)


def test_raters_vote_at_once(workdir, study, votes, blind):
  def rate(name):
    own = Votes(workdir / FILE, study.digest)  # as in a process of its own
    rater = own.join(name)
    for shown in blind.order(rater):
      own.vote(new_id(), rater, shown, 'right')

  with concurrent.futures.ThreadPoolExecutor(4) as pool:  # two of them as the same person, in two windows
    list(pool.map(rate, ['Ada', 'Bob', 'Cy', 'Ada']))
  results = votes.results()
  assert sum(len(result.preferred) for result in results.values()) == 3 * PAIRS
  assert {len(result.raters) for result in results.values()} == {3}


def test_a_file_of_another_study_or_of_anything_else_stays_as_it_is(workdir, study, votes, tmp_path):
  with pytest.raises(UserError, match='another study'):
    Votes(workdir / FILE, '0' * 64, new=True)
  (tmp_path / 'text').write_text('no database at all ' * 100)
  sqlite3.connect(tmp_path / 'other').execute('CREATE TABLE other (x)')
  before = files(tmp_path)
  for name in ('text', 'other'):
    with pytest.raises(UserError, match='cannot be read as a votes file'):
      Votes(tmp_path / name, study.digest, new=True)
  with pytest.raises(UserError, match='no votes in'):
    Votes(tmp_path / 'nothing', study.digest)
  assert files(tmp_path) == before


@pytest.fixture
def browse(study, votes):
  """A Flask test client: browse() is a browser that has not been here yet."""
  web = pytest.importorskip('experiments.papers.stern2018.voting.web')
  return web.make_app(study, votes).test_client


def begin(client, name='Ada'):
  return client.post('/rater', json={'name': name}).json


def test_the_server_shows_the_trials_in_order_until_none_is_left(browse, study, votes, blind):
  client = browse()
  assert client.get('/state').json == {'rater': None, 'total': PAIRS}
  state, ada = begin(client), votes.join('Ada')
  for place, ((k, rule, image), side) in enumerate(blind.order(ada)):
    assert (state['done'], state['trial']['place']) == (place, place)
    shown = {name: decoded(client.get(state['trial'][name]).data) for name in PICTURES}
    np.testing.assert_array_equal(shown['input'], study.inputs[image])
    np.testing.assert_array_equal(shown.pop(side), study.outputs[k, rule][image])
    np.testing.assert_array_equal(shown.popitem()[1], study.baseline[image])
    state = client.post('/vote', json={'id': f'{place:032}', 'place': place, 'side': side}).json
  assert state == {'rater': 'Ada', 'done': PAIRS, 'total': PAIRS, 'last': f'{PAIRS - 1:032}', 'trial': None}
  assert all(all(result.preferred) for result in votes.results().values())
  state = client.post('/undo', json={'id': state['last']}).json
  assert (state['done'], state['last'], state['trial']['place']) == (PAIRS - 1, f'{PAIRS - 2:032}', PAIRS - 1)


def decoded(content):
  return np.asarray(Image.open(io.BytesIO(content)))


def test_pictures_are_alike_in_all_but_their_pixels(browse):
  client = browse()
  state = begin(client)
  left, right = (client.get(state['trial'][side]) for side in ('left', 'right'))
  assert left.content_length == right.content_length and left.data != right.data
  same = {'Date'}
  assert [(k, v) for k, v in left.headers if k not in same] == [(k, v) for k, v in right.headers if k not in same]
  assert 'ETag' not in left.headers and left.headers['Cache-Control'] == 'no-store'


def test_a_picture_takes_as_many_bytes_whatever_it_shows():
  web = pytest.importorskip('experiments.papers.stern2018.voting.web')
  noise = np.random.default_rng(0).integers(256, size=(32, 32, 3), dtype=np.uint8)
  assert len(web.png(noise)) == len(web.png(np.zeros_like(noise)))
  np.testing.assert_array_equal(decoded(web.png(noise)), noise)


def test_a_browser_sees_only_its_own_raters_pictures(browse):
  ada, bob = browse(), browse()
  address = begin(ada)['trial']['left']
  assert ada.get(address).status_code == 200
  assert bob.get(address).status_code == 404
  begin(bob, 'Bob')
  assert bob.get(address).status_code == 404
  ada.post('/leave')
  assert ada.get(address).status_code == 404 and ada.get('/state').json['rater'] is None
  assert begin(ada)['trial']['left'] == address


@pytest.mark.parametrize(
  'path, body',
  [
    ('/vote', {'place': 0, 'side': 'left'}),
    ('/vote', {'id': new_id(), 'place': PAIRS, 'side': 'left'}),
    ('/vote', {'id': new_id(), 'place': True, 'side': 'left'}),
    ('/vote', {'id': new_id(), 'place': 0, 'side': 'both'}),
    ('/vote', []),
    ('/undo', {'id': ''}),
    ('/rater', {'name': 'x' * 61}),
  ],
)
def test_a_request_that_cannot_be_is_refused(browse, votes, path, body):
  client = browse()
  begin(client)
  answer = client.post(path, json=body)
  assert answer.status_code == 400 and 'the field' in answer.json['error']
  assert not votes.results()


def test_a_vote_of_nobody_is_refused_and_one_that_is_not_kept_is_not_acknowledged(browse, workdir):
  client, body = browse(), {'id': new_id(), 'place': 0, 'side': 'left'}
  assert client.post('/vote', json=body).status_code == 403
  begin(client)
  (workdir / FILE).rename(workdir / 'gone')
  assert client.post('/vote', json=body).status_code == 503
  assert not (workdir / FILE).exists()


def vote_all(votes, blind, name):
  rater = votes.join(name)
  for shown in blind.order(rater):
    votes.vote(new_id(), rater, shown, shown.side if shown.trial.k == 2 else 'left')


def test_the_report_is_the_papers_table_with_ours_beside(launch, workdir, votes, blind):
  for name in ('Ada', 'Bob'):
    vote_all(votes, blind, name)
  ended = launch('human_eval', f'--workdir={workdir}', '--report')
  assert ended.code == 0 and 'Votes in all: 24; raters: 2.' in ended.out
  page = (workdir / 'table3.md').read_text()
  assert '100.0' in page and '52.8' in page and '50.3' in page
  rows = list(csv.DictReader((workdir / 'table3.csv').open()))
  assert [(row['k'], row['rule'], row['votes'], row['raters']) for row in rows] == [
    (k, rule, '6', '2') for k in ('2', '10') for rule in ('distance-2', 'exact')
  ]
  assert rows[1]['percent'] == rows[1]['low'] == rows[1]['high'] == '100.00'
