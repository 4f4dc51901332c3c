"""The leaderboard of docs/results: exact tokens a call and the clock against greedy decoding, a row
an improvement.

It is drawn from the lines of the pages: nothing is kept for it alone. A row is the best of one
commit, where it beats all before it in tokens a call, or in how many times as fast as greedy
decoding by the same model it is: milliseconds of models of different widths say nothing of how they
are decoded. Only what writes the model's own greedy output counts: all of it, or all up to near
ties of two logits, where those were looked at.
"""

import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from experiments.drafters import DRAFTERS
from experiments.lab import rows
from experiments.lab.report import Column, Drawn, Table
from experiments.lab.rows import Row
from experiments.stern2018.tables import REGIMES, UNTRAINED


class Score(NamedTuple):
  """An exact measurement."""

  what: str
  page: str
  tokens: float  # a call
  ms: float | None  # a token
  plain_ms: float | None  # a token, by greedy decoding in turn with it
  speedup: float  # how many times as fast as that: the median of rounds; 0 where it was not timed
  same: float | None  # share of outputs that are greedy decoding's
  date: str
  commit: str
  cpus: int | str
  data: str = ''


class Source(NamedTuple):
  """A file of lines, and what is read of it."""

  lines: str
  page: str  # that shows them
  score: Callable[[Row], Score | None]
  model: str = ''  # what else a row says of the model
  # no exact cell was written without a look at where outputs part: at near ties alone
  ties: bool = False

  def scores(self, folder: pathlib.Path) -> Iterator[Score]:
    """Yields the scores of a file."""
    for row in rows.read(folder / self.lines):
      score = self.score(row) if row.get('error') is None and 'date' in row else None
      if score is not None and (self.ties or score.same == 1):
        yield score._replace(what=', '.join(filter(None, (score.what, self.model))), page=self.page)


def _score(what: str, tokens: float, ms: Any, plain_ms: Any, same: Any, row: Row) -> Score:
  when = row['date'], row['commit'], row.get('cpus', '')
  return Score(what, '', tokens, ms, plain_ms, row.get('speedup') or 0.0, same, *when)


def of_blockwise(row: Row) -> Score | None:
  """The score of heads with exact acceptance, in a chain or a tree."""
  k, rule, tokens = row['k'], row['rule'], row.get('mean_block_size')
  if k == 1 or tokens is None or not (rule == 'exact' or rule.startswith('tree-')):
    return None
  name = REGIMES[row['regime']].lower()
  what = f'linear {name}' if row['regime'] in UNTRAINED else f'blockwise, {name}'
  what += f', k = {k}'
  if rule != 'exact':
    what += f', a tree of {rule.removeprefix("tree-")} nodes'
  ms = plain_ms = None
  names = 'ms_per_output', 'greedy_ms_per_output', 'calls_per_output'
  if all(row.get(name) is not None for name in names):
    count = tokens * row['calls_per_output']
    ms, plain_ms = row['ms_per_output'] / count, row['greedy_ms_per_output'] / count
  return _score(what, tokens, ms, plain_ms, row.get('same_as_greedy'), row)


def of_draft(row: Row) -> Score | None:
  """The score of a drafter on a frozen base, one text at a time."""
  if row['temperature'] or row['batch'] != 1 or row.get('tokens') is None:
    return None
  what = DRAFTERS[row['drafter']]
  if row['tree']:
    what += f', a tree of {row["tree"]} nodes'
  else:
    what += f', a chain of {row["short"]}' if row.get('short') else ', a chain'
  ms, plain_ms = row.get('ms_per_token'), row.get('plain_ms_per_token')
  return _score(what, row['tokens'], ms, plain_ms, row.get('same_as_plain'), row)


SOURCES = {
  'Multi30k, test_2016_flickr': (
    Source('multi30k-older.jsonl', 'multi30k', of_blockwise, 'a base of 128 of 2 layers'),
    Source('multi30k.jsonl', 'multi30k', of_blockwise, 'heads that see more, a base of 128'),
    Source('multi30k-256.jsonl', 'multi30k', of_blockwise, 'heads that see more, a base of 256'),
    Source('multi30k-384.jsonl', 'multi30k', of_blockwise, 'heads that see more, a base of 384'),
    Source('multi30k-256-plain.jsonl', 'multi30k', of_blockwise, 'a base of 256'),
    Source('drafts.jsonl', 'drafts', of_draft, 'a base of 128'),
    Source('drafts-long.jsonl', 'drafts', of_draft, '15,000 steps, a base of 128'),
    Source(
      'drafts-rnn.jsonl', 'drafts', of_draft, 'a bias that remembers, 12,000 steps, a base of 128'
    ),
    Source('drafts-lengths.jsonl', 'multi30k', of_draft, '15,000 steps, a base of 128'),
    Source('drafts-384.jsonl', 'drafts', of_draft, 'a base of 384'),
  ),
  'faces32': (
    Source('faces32-older.jsonl', 'faces32', of_blockwise, 'heads as in the paper'),
    Source('faces32-unmoved.jsonl', 'faces32', of_blockwise, 'heads that see more'),
    Source(
      'faces32-untold.jsonl', 'faces32', of_blockwise, 'heads that see more, intensities moved'
    ),
    Source('faces32-near.jsonl', 'faces32', of_blockwise, 'a base told a forecast of six pixels'),
    Source(
      'faces32.jsonl', 'faces32', of_blockwise, 'a base told a forecast of 24 pixels', ties=True
    ),
  ),
  'faces16': (Source('faces16.jsonl', 'faces16', of_blockwise),),
}
COLUMNS = (
  Column('data', 'data', names_row=True),
  Column('date', 'date', names_row=True),
  Column('what', 'what', names_row=True),
  Column('tokens a call', 'tokens', '.2f'),
  Column('ms a token', 'ms', '.3f'),
  Column('greedy', 'plain_ms', '.3f'),
  Column('times greedy', lambda score: f'{score.speedup:.2f}' if score.speedup else '–'),
  Column('same %', 'same', '.1f', scale=100),
  Column('cores', lambda score: str(score.cpus)),
  Column('commit', lambda score: score.commit[:12]),
  Column('page', lambda score: f'[{score.page}]({score.page}.md)'),
)


def leaderboard(folder: pathlib.Path) -> Drawn:
  """The table, from the lines in docs/results."""
  found: list[Score] = []
  for data, sources in SOURCES.items():
    scores = [score for source in sources for score in source.scores(folder)]
    found += [score._replace(data=data) for score in improvements(scores)]
  return Table('', COLUMNS).of(found)


def improvements(scores: Iterable[Score]) -> list[Score]:
  """In the order of their days, within one by tokens: the best of each commit, where it is better
  than all above."""
  by_commit: dict[tuple[str, str], list[Score]] = {}
  for score in scores:
    by_commit.setdefault((score.date, score.commit), []).append(score)
  found: list[Score] = []
  for _, several in sorted(
    by_commit.items(), key=lambda item: (item[0][0], max(one.tokens for one in item[1]))
  ):
    longest = max(several, key=lambda score: score.tokens)
    fastest = max(several, key=lambda score: score.speedup)
    better = []
    if all(longest.tokens > one.tokens for one in found):
      better.append(longest)
    is_fastest = fastest.speedup and all(fastest.speedup > one.speedup for one in found)
    if is_fastest and fastest not in better:
      better.append(fastest)
    found += better
  return found
