"""The leaderboard: only exact cells count, and a row stands there because it is better than all
before."""

from experiments.lab import cells
from experiments.papers.drafts.cells import DraftCell
from experiments.papers.leaderboard import Score, Source, improvements, of_blockwise, of_draft
from experiments.papers.stern2018.cells import BlockwiseCell
from tests.experiments.measured import CONDITIONS, a_cell

WHEN = {**CONDITIONS, 'date': '2018-11-07', 'cpus': 2}


def score(tokens, ms, date, commit='a'):
  return Score(f'{tokens}', '', tokens, ms, 1.0, 1 / ms if ms else 0.0, 1.0, date, commit, 2)


def test_a_row_beats_all_before_in_tokens_or_against_greedy_decoding():
  found = improvements([
    score(3.0, 0.9, '2018-11-09'),
    score(2.0, 0.5, '2018-11-07'),
    score(1.5, 0.4, '2018-11-07'),  # shorter blocks, faster
    score(1.9, 0.45, '2018-11-08', 'b'),  # neither
    score(2.5, None, '2018-11-08', 'c'),  # not timed
    # of a model that is faster anyhow
    score(1.8, 0.3, '2018-11-08', 'd')._replace(plain_ms=0.6, speedup=2.0),
    score(2.9, 0.8, '2018-11-09'),  # not the best of its commit
  ])  # fmt: skip
  assert [one.what for one in found] == ['2.0', '1.5', '2.5', '3.0']


def test_only_what_is_exact_counts():
  assert of_blockwise(a_cell(1, conditions=WHEN)) is None
  assert of_blockwise(a_cell(4, rule='top-2', conditions=WHEN)) is None
  assert (
    of_blockwise(a_cell(4, rule='tree-8', conditions=WHEN)).what == 'blockwise, fine tuning, k = 4,'
    ' a tree of 8 nodes'
  )
  sampled, exact = (
    DraftCell('eagle', 0, t, 1, tokens=3.0, ms_per_token=0.2, conditions=WHEN) for t in (1.0, 0.0)
  )
  assert of_draft(sampled) is None and of_draft(exact).tokens == 3.0


def test_outputs_that_part_count_where_near_ties_were_looked_at(tmp_path):
  cells.append(tmp_path / 'some.jsonl', a_cell(2, same_as_greedy=1.0, conditions=WHEN))
  cells.append(tmp_path / 'some.jsonl', a_cell(4, same_as_greedy=0.9, conditions=WHEN))
  counted = {
    ties: [
      score.same
      for score in Source('some.jsonl', 'faces32', BlockwiseCell, of_blockwise, ties=ties).scores(
        tmp_path
      )
    ]
    for ties in (False, True)
  }
  assert counted == {False: [1.0], True: [1.0, 0.9]}


def test_milliseconds_are_those_of_a_token():
  found = of_blockwise(
    a_cell(4, mean_block_size=2.0, calls_per_output=5.0, ms_per_output=4.0, conditions=WHEN)
  )
  assert found.ms == 0.4 and found.plain_ms == 2.5 and found.date == '2018-11-07'
