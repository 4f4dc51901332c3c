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

from experiments.drafters import DRAFTERS
from experiments.lab import rows
from experiments.lab.report import Column, Drawn, Table
from experiments.lab.rows import Row
from experiments.stern2018.tables import REGIMES, UNTRAINED

TIMES = 'ms_per_output', 'greedy_ms_per_output', 'calls_per_output'
# no exact cell of these was written without a look at where outputs part: at near ties alone
TIES = ('faces32',)


def of_blockwise(row: Row) -> Row | None:
  """The score of heads with exact acceptance, in a chain or a tree: what it is, tokens a call, the
  share of outputs that are greedy decoding's, and milliseconds a token of both."""
  k, rule, tokens = row['k'], row['rule'], row.get('mean_block_size')
  if k == 1 or tokens is None or not (rule == 'exact' or rule.startswith('tree-')):
    return None
  name = REGIMES[row['regime']].lower()
  what = f'linear {name}' if row['regime'] in UNTRAINED else f'blockwise, {name}'
  what += f', k = {k}'
  if rule != 'exact':
    what += f', a tree of {rule.removeprefix("tree-")} nodes'
  score = {'what': what, 'tokens': tokens, 'same': row.get('same_as_greedy')}
  if all(row.get(name) is not None for name in TIMES):
    count = tokens * row['calls_per_output']
    score['ms'] = row['ms_per_output'] / count
    score['plain_ms'] = row['greedy_ms_per_output'] / count
  return score


def of_draft(row: Row) -> Row | None:
  """The score of a drafter on a frozen base, one text at a time."""
  if row['temperature'] or row['batch'] != 1 or row.get('tokens') is None:
    return None
  what = DRAFTERS[row['drafter']]
  if row['tree']:
    what += f', a tree of {row["tree"]} nodes'
  else:
    what += f', a chain of {row["short"]}' if row.get('short') else ', a chain'
  score = {'what': what, 'tokens': row['tokens'], 'same': row.get('same_as_plain')}
  return score | {'ms': row.get('ms_per_token'), 'plain_ms': row.get('plain_ms_per_token')}


def scores(
  folder: pathlib.Path, lines: str, page: str, of: Callable[[Row], Row | None], model: str
) -> Iterator[Row]:
  """Yields the exact scores of a file."""
  for row in rows.read(folder / f'{lines}.jsonl'):
    score = of(row) if row.get('error') is None and 'date' in row else None
    if score is not None and (lines in TIES or score['same'] == 1):
      same = {name: row.get(name) for name in ('date', 'commit', 'cpus', 'speedup')}
      what = ', '.join(filter(None, (score['what'], model)))
      yield {**same, **score, 'what': what, 'page': page}


SOURCES = {  # of each data set: lines, page, how they are read, what else they say of the model
  'Multi30k, test_2016_flickr': (
    ('multi30k-older', 'multi30k', of_blockwise, 'a base of 128 of 2 layers'),
    ('multi30k', 'multi30k', of_blockwise, 'heads that see more, a base of 128'),
    ('multi30k-256', 'multi30k', of_blockwise, 'heads that see more, a base of 256'),
    ('multi30k-384', 'multi30k', of_blockwise, 'heads that see more, a base of 384'),
    ('multi30k-256-plain', 'multi30k', of_blockwise, 'a base of 256'),
    ('drafts', 'drafts', of_draft, 'a base of 128'),
    ('drafts-long', 'drafts', of_draft, '15,000 steps, a base of 128'),
    ('drafts-rnn', 'drafts', of_draft, 'a bias that remembers, 12,000 steps, a base of 128'),
    ('drafts-lengths', 'multi30k', of_draft, '15,000 steps, a base of 128'),
    ('drafts-384', 'drafts', of_draft, 'a base of 384'),
  ),
  'faces32': (
    ('faces32-older', 'faces32', of_blockwise, 'heads as in the paper'),
    ('faces32-unmoved', 'faces32', of_blockwise, 'heads that see more'),
    ('faces32-untold', 'faces32', of_blockwise, 'heads that see more, intensities moved'),
    ('faces32-near', 'faces32', of_blockwise, 'a base told a forecast of six pixels'),
    ('faces32', 'faces32', of_blockwise, 'a base told a forecast of 24 pixels'),
  ),
  'faces16': (('faces16', 'faces16', of_blockwise, ''),),
}
COLUMNS = (
  Column('data', 'data', names_row=True),
  Column('date', 'date', names_row=True),
  Column('what', 'what', names_row=True),
  Column('tokens a call', 'tokens', '.2f'),
  Column('ms a token', 'ms', '.3f'),
  Column('greedy', 'plain_ms', '.3f'),
  Column('times greedy', 'speedup', '.2f'),
  Column('same %', 'same', '.1f', scale=100),
  Column('cores', 'cpus'),
  Column('commit', lambda score: score['commit'][:12]),
  Column('page', lambda score: f'[{score["page"]}]({score["page"]}.md)'),
)


def leaderboard(folder: pathlib.Path) -> Drawn:
  """The table, from the lines in docs/results."""
  found: list[Row] = []
  for data, sources in SOURCES.items():
    known = [score for source in sources for score in scores(folder, *source)]
    found += [{**score, 'data': data} for score in improvements(known)]
  return Table('', COLUMNS).of(found)


def improvements(scores: Iterable[Row]) -> list[Row]:
  """In the order of their days, within one by tokens: the best of each commit, where it is better
  than all above."""
  by_commit: dict[tuple[str, str], list[Row]] = {}
  for score in scores:
    by_commit.setdefault((score['date'], score['commit']), []).append(score)
  tokens, speed = (lambda score: score['tokens']), (lambda score: score['speedup'] or 0.0)
  days = sorted(by_commit.items(), key=lambda item: (item[0][0], max(map(tokens, item[1]))))
  found: list[Row] = []
  for _, several in days:
    longest, fastest = max(several, key=tokens), max(several, key=speed)
    is_longest = tokens(longest) > max(map(tokens, found), default=0.0)
    is_fastest = speed(fastest) > max(map(speed, found), default=0.0)
    if is_longest:
      found.append(longest)
    if is_fastest and not (is_longest and fastest is longest):
      found.append(fastest)
  return found
