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

from experiments.lab import cells
from experiments.lab.report import Column, Drawn, Table
from experiments.papers.drafts.cells import DRAFTERS, DraftCell
from experiments.papers.stern2018.cells import REGIMES, UNTRAINED, BlockwiseCell


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
  kind: type[cells.Cell]
  score: Callable[[Any], Score | None]
  model: str = ''  # what else a row says of the model
  # no exact cell was written without a look at where outputs part: at near ties alone
  ties: bool = False

  def scores(self, folder: pathlib.Path) -> Iterator[Score]:
    """What counts of a file."""
    for cell in cells.read(folder / self.lines, self.kind):
      score = None if cell.error is not None or 'date' not in cell.conditions else self.score(cell)
      if score is not None and (self.ties or score.same == 1):
        yield score._replace(what=', '.join(filter(None, (score.what, self.model))), page=self.page)


def _score(what: str, tokens: float, ms: Any, plain_ms: Any, same: Any, cell: Any) -> Score:
  there = cell.conditions
  return Score(
    what,
    '',
    tokens,
    ms,
    plain_ms,
    cell.speedup or 0.0,
    same,
    there['date'],
    there['commit'],
    there.get('cpus', ''),
  )


def of_blockwise(cell: BlockwiseCell) -> Score | None:
  """Of heads with exact acceptance, in a chain or a tree."""
  if (
    cell.k == 1
    or cell.mean_block_size is None
    or not (cell.rule == 'exact' or cell.rule.startswith('tree-'))
  ):
    return None
  name = REGIMES[cell.regime].lower()
  kind = f'linear {name}' if cell.regime in UNTRAINED else f'blockwise, {name}'
  what = f'{kind}, k = {cell.k}'
  if cell.rule != 'exact':
    what += f', a tree of {cell.rule.removeprefix("tree-")} nodes'
  ms = plain_ms = None
  if (
    cell.ms_per_output is not None
    and cell.greedy_ms_per_output is not None
    and cell.calls_per_output is not None
  ):
    tokens = cell.mean_block_size * cell.calls_per_output
    ms, plain_ms = cell.ms_per_output / tokens, cell.greedy_ms_per_output / tokens
  return _score(what, cell.mean_block_size, ms, plain_ms, cell.same_as_greedy, cell)


def of_draft(cell: DraftCell) -> Score | None:
  """Of a drafter on a frozen base, one text at a time."""
  if cell.temperature or cell.batch != 1 or cell.tokens is None:
    return None
  what = DRAFTERS[cell.drafter] + (
    f', a tree of {cell.tree} nodes'
    if cell.tree
    else f', a chain{f" of {cell.short}" if cell.short else ""}'
  )
  return _score(
    what, cell.tokens, cell.ms_per_token, cell.plain_ms_per_token, cell.same_as_plain, cell
  )


SOURCES = {
  'Multi30k, test_2016_flickr': (
    Source(
      'multi30k-older.jsonl', 'multi30k', BlockwiseCell, of_blockwise, 'a base of 128 of 2 layers'
    ),
    Source(
      'multi30k.jsonl',
      'multi30k',
      BlockwiseCell,
      of_blockwise,
      'heads that see more, a base of 128',
    ),
    Source(
      'multi30k-256.jsonl',
      'multi30k',
      BlockwiseCell,
      of_blockwise,
      'heads that see more, a base of 256',
    ),
    Source(
      'multi30k-384.jsonl',
      'multi30k',
      BlockwiseCell,
      of_blockwise,
      'heads that see more, a base of 384',
    ),
    Source('multi30k-256-plain.jsonl', 'multi30k', BlockwiseCell, of_blockwise, 'a base of 256'),
    Source('drafts.jsonl', 'drafts', DraftCell, of_draft, 'a base of 128'),
    Source('drafts-long.jsonl', 'drafts', DraftCell, of_draft, '15,000 steps, a base of 128'),
    Source(
      'drafts-rnn.jsonl',
      'drafts',
      DraftCell,
      of_draft,
      'a bias that remembers, 12,000 steps, a base of 128',
    ),
    Source('drafts-lengths.jsonl', 'multi30k', DraftCell, of_draft, '15,000 steps, a base of 128'),
    Source('drafts-384.jsonl', 'drafts', DraftCell, of_draft, 'a base of 384'),
  ),
  'faces32': (
    Source('faces32-older.jsonl', 'faces32', BlockwiseCell, of_blockwise, 'heads as in the paper'),
    Source('faces32-unmoved.jsonl', 'faces32', BlockwiseCell, of_blockwise, 'heads that see more'),
    Source(
      'faces32-untold.jsonl',
      'faces32',
      BlockwiseCell,
      of_blockwise,
      'heads that see more, intensities moved',
    ),
    Source(
      'faces32-near.jsonl',
      'faces32',
      BlockwiseCell,
      of_blockwise,
      'a base told a forecast of six pixels',
    ),
    Source(
      'faces32.jsonl',
      'faces32',
      BlockwiseCell,
      of_blockwise,
      'a base told a forecast of 24 pixels',
      ties=True,
    ),
  ),
  'faces16': (Source('faces16.jsonl', 'faces16', BlockwiseCell, of_blockwise),),
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
  rows: list[Score] = []
  for data, sources in SOURCES.items():
    scores = [score for source in sources for score in source.scores(folder)]
    rows += [score._replace(data=data) for score in improvements(scores)]
  return Table('', COLUMNS).of(rows)


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
    rows = []
    if all(longest.tokens > one.tokens for one in found):
      rows.append(longest)
    if (
      fastest.speedup
      and all(fastest.speedup > one.speedup for one in found)
      and fastest not in rows
    ):
      rows.append(fastest)
    found += rows
  return found
