"""The human evaluation without a server: studies, what raters see, and votes that are neither lost
nor doubled."""

import collections
import concurrent.futures
import csv
import io
import sqlite3
import types

import numpy as np
import pytest
from PIL import Image

from experiments.papers.stern2018.voting import web
from experiments.papers.stern2018.voting.store import FILE, Votes
from experiments.papers.stern2018.voting.study import Study, Trial
from experiments.papers.stern2018.voting.web import Ballots, Refused
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
def ballots(study, votes):
  return Ballots(study, votes)


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


def test_a_rater_keeps_order_and_sides_and_others_have_others(study, votes, ballots):
  assert ballots.order('ada') == Ballots(study, votes).order('ada')
  assert sorted(shown.trial for shown in ballots.order('ada')) == study.trials
  assert len({ballots.order(f'rater {n}') for n in range(20)}) == 20
  assert ballots.order('ada') != Ballots(study, types.SimpleNamespace(seed='another')).order('ada')


def test_method_1_is_on_each_side_and_in_each_place_about_as_often(study, ballots):
  orders = [ballots.order(f'rater {n}') for n in range(500)]
  sides = collections.Counter((shown.trial, shown.side) for order in orders for shown in order)
  firsts = collections.Counter(order[0].trial for order in orders)
  for trial in study.trials:  # 5 standard deviations
    assert abs(sides[trial, 'left'] - 250) < 56
    assert abs(firsts[trial] - 500 / PAIRS) < 31


def decoded(content):
  return np.asarray(Image.open(io.BytesIO(content)))


def test_a_rater_sees_the_trials_in_order_until_none_is_left(ballots, study, votes):
  state = ballots.state('ada')
  for place, ((k, rule, image), side) in enumerate(ballots.order('ada')):
    assert state == {'done': place, 'total': PAIRS, 'place': place}
    shown = {
      name: decoded(ballots.picture('ada', str(place), name)) for name in ('input', 'left', 'right')
    }
    np.testing.assert_array_equal(shown['input'], study.inputs[image])
    np.testing.assert_array_equal(shown.pop(side), study.outputs[k, rule][image])
    np.testing.assert_array_equal(
      shown[{'left': 'right', 'right': 'left'}[side]], study.baseline[image]
    )
    state = ballots.vote('ada', place, side)
  assert state == {'done': PAIRS, 'total': PAIRS, 'place': None}
  assert all(preferred for given in votes.results().values() for preferred, _ in given)


def test_a_picture_takes_as_many_bytes_whatever_it_shows():
  noise = np.random.default_rng(0).integers(256, size=(32, 32, 3), dtype=np.uint8)
  assert len(web.png(noise)) == len(web.png(np.zeros_like(noise)))
  np.testing.assert_array_equal(decoded(web.png(noise)), noise)


def test_what_counts_is_the_side_of_method_1(votes, ballots):
  expected = collections.defaultdict(list)
  for place, shown in enumerate(ballots.order('ada')):
    ballots.vote('ada', place, 'left')
    expected[shown.trial[:2]].append((shown.side == 'left', 'ada'))
  assert votes.results() == expected


def test_a_vote_that_comes_twice_is_one_and_the_first_counts(votes, ballots):
  shown = ballots.order('ada')[0]
  for side in ('left', 'left', 'right'):  # asked again, and from a second window
    assert ballots.vote('ada', 0, side)['done'] == 1
  assert votes.of('ada') == {shown.trial} and votes.results() == {
    shown.trial[:2]: [(shown.side == 'left', 'ada')]
  }


def test_votes_are_there_after_opening_the_file_again(workdir, study, votes, ballots):
  ballots.vote('ada', 0, 'left')
  again = Votes(workdir / FILE, study.digest, new=True)
  assert (
    again.seed == votes.seed
    and again.of('ada') == votes.of('ada')
    and again.results() == votes.results()
  )


def test_raters_vote_at_once(workdir, study, votes, ballots):
  def rate(rater):
    own = Ballots(study, Votes(workdir / FILE, study.digest))  # as in a process of its own
    for place in range(PAIRS):
      own.vote(rater, place, 'right')

  # two of them as the same person, in two windows
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(rate, ['Ada', 'Bob', 'Cy', 'Ada']))
  results = votes.results()
  assert sum(map(len, results.values())) == 3 * PAIRS
  assert all({rater for _, rater in given} == {'Ada', 'Bob', 'Cy'} for given in results.values())


@pytest.mark.parametrize(
  'place, side', [(PAIRS, 'left'), (-1, 'left'), (True, 'left'), (None, 'left'), (0, 'both')]
)
def test_a_vote_that_cannot_be_is_refused(ballots, votes, place, side):
  with pytest.raises(Refused, match='left or right'):
    ballots.vote('ada', place, side)
  assert not votes.results()


def test_a_file_of_another_study_or_of_anything_else_stays_as_it_is(
  workdir, study, votes, tmp_path
):
  with pytest.raises(UserError, match='another study'):
    Votes(workdir / FILE, '0' * 64, new=True)
  (tmp_path / 'text').write_text('no database at all ' * 100)
  with sqlite3.connect(tmp_path / 'before') as db:  # as an earlier version made it
    db.execute('CREATE TABLE study (digest TEXT NOT NULL, secret BLOB NOT NULL)')
  before = files(tmp_path)
  for name in ('text', 'before'):
    with pytest.raises(UserError, match='cannot be read as a votes file, or is from before'):
      Votes(tmp_path / name, study.digest, new=True)
  with pytest.raises(UserError, match='no votes in'):
    Votes(tmp_path / 'nothing', study.digest)
  assert files(tmp_path) == before


def test_the_report_is_the_papers_table_with_ours_beside(launch, workdir, ballots):
  for rater in ('Ada', 'Bob'):
    for place, shown in enumerate(ballots.order(rater)):
      ballots.vote(rater, place, shown.side if shown.trial.k == 2 else 'left')
  ended = launch('human_eval', f'--workdir={workdir}', '--report')
  assert ended.code == 0 and 'Votes in all: 24; raters: 2.' in ended.out
  page = (workdir / 'table3.md').read_text()
  assert '100.0' in page and '52.8' in page and '50.3' in page
  rows = list(csv.DictReader((workdir / 'table3.csv').open()))
  assert [(row['k'], row['rule'], row['votes'], row['raters']) for row in rows] == [
    (k, rule, '6', '2') for k in ('2', '10') for rule in ('distance-2', 'exact')
  ]
  assert rows[1]['percent'] == rows[1]['low'] == rows[1]['high'] == '100.00'
