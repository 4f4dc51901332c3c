"""The leaderboard: only exact cells count, and a row stands there because it is better than all
before."""

from experiments.leaderboard import improvements, of_blockwise, of_draft, scores
from fastdec.evaluation import rows

WHEN = {'commit': 'a', 'date': '2018-11-07', 'cpus': 2}


def a_row(k, rule='exact', **figures):
  key = {'k': k, 'regime': 'finetune', 'rule': rule, 'mean_block_size': 1.5}
  return key | figures | WHEN


def score(tokens, speedup, date, commit='a'):
  return {'tokens': tokens, 'speedup': speedup, 'date': date, 'commit': commit}


def test_a_row_beats_all_before_in_tokens_or_against_greedy_decoding():
  found = improvements([
    score(3.0, 1.1, '2018-11-09'),
    score(2.0, 2.0, '2018-11-07'),
    score(1.5, 2.5, '2018-11-07'),  # shorter blocks, faster
    score(1.9, 2.2, '2018-11-08', 'b'),  # neither
    score(2.5, None, '2018-11-08', 'c'),  # not timed
    score(2.9, 1.2, '2018-11-09'),  # not the best of its commit
  ])  # fmt: skip
  assert [one['tokens'] for one in found] == [2.0, 1.5, 2.5, 3.0]


def test_only_what_is_exact_counts():
  assert of_blockwise(a_row(1)) is None
  assert of_blockwise(a_row(4, 'top-2')) is None
  tree = 'blockwise, fine tuning, k = 4, a tree of 8 nodes'
  assert of_blockwise(a_row(4, 'tree-8'))['what'] == tree
  key = {'drafter': 'eagle', 'tree': 0, 'batch': 1, 'tokens': 3.0, 'ms_per_token': 0.2}
  assert of_draft({**key, 'temperature': 1.0} | WHEN) is None
  assert of_draft({**key, 'temperature': 0.0} | WHEN)['tokens'] == 3.0


def test_outputs_that_part_count_where_near_ties_were_looked_at(tmp_path):
  counted = {}
  for lines in ('some', 'faces32'):
    rows.append(tmp_path / f'{lines}.jsonl', a_row(2, same_as_greedy=1.0))
    rows.append(tmp_path / f'{lines}.jsonl', a_row(4, same_as_greedy=0.9))
    found = scores(tmp_path, lines, 'faces32', of_blockwise, '')
    counted[lines] = [score['same'] for score in found]
  assert counted == {'some': [1.0], 'faces32': [1.0, 0.9]}


def test_milliseconds_are_those_of_a_token():
  times = {'calls_per_output': 5.0, 'ms_per_output': 4.0, 'greedy_ms_per_output': 25.0}
  found = of_blockwise(a_row(4, mean_block_size=2.0, **times))
  assert found['ms'] == 0.4 and found['plain_ms'] == 2.5
