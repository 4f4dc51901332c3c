"""Figures of the pages of docs/methods and of the README: rows of docs/results, a few of each
method.

  <!-- table: methods.eagle from ../results -->
"""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.lab import rows
from experiments.lab.report import SPEED_UP, Column, Drawn, Table
from experiments.lab.rows import Row

TEXT, CAPTIONS, CODE = 'Multi30k, translation', 'captions', 'code'
FACES = 'faces, 32 x 32 pixels'


class Pick(NamedTuple):
  """Rows of a file that stand on a page."""

  data: str
  what: str  # of a row, by its fields: 'k = {k}'
  lines: str  # docs/results/<lines>.jsonl
  page: str  # that has the whole table
  where: Mapping[str, Any]  # fields of the rows; a list of values allows each


def _drafter(name: str, **where: Any) -> dict[str, Any]:
  return {'drafter': name, 'temperature': 0, 'batch': 1, **where}


CHAIN, TREE = 'a chain of {gamma}', 'a tree of {tree} nodes'
PAPERS = {'regime': 'both', 'rule': 'exact', 'k': [4, 8, 10]}
WIDE = {'regime': 'finetune', 'rule': 'exact', 'k': [2, 4, 8]}
SMALL = {'draft': 'small', 'gamma': 3, 'batch': [1, 32]}
LOOKAHEAD = {'method': 'lookahead', 'window': 15, 'ngram': 5, 'guesses': 15, 'batch': 1}
WINDOW = 'window 15, n-grams of 5, 15 guesses'
PICKS = {
  'blockwise': (
    Pick(TEXT, 'k = {k}, a base of 384', 'multi30k-384', 'multi30k', WIDE),
    Pick(TEXT, 'k = {k}, both, a base of 128', 'multi30k', 'multi30k', PAPERS),
    Pick(TEXT, 'k = {k}, both, {rule}', 'multi30k', 'multi30k', PAPERS | {'rule': 'top-2', 'k': 8}),
  ),
  'speculative': (
    Pick(TEXT, 'γ = {gamma}, {batch} at once', 'speculative-translation', 'speculative', SMALL),
    Pick(
      CAPTIONS, 'γ = {gamma}, {batch} at once', 'speculative-lm', 'speculative',
      SMALL | {'temperature': 0},
    ),
    Pick(
      CAPTIONS, 'γ = {gamma}, temperature 1', 'speculative-lm', 'speculative',
      SMALL | {'temperature': 1},
    ),
  ),
  'medusa': (
    Pick(
      CAPTIONS, 'Medusa-1, {nodes} nodes', 'medusa', 'medusa',
      {'stage': 'medusa-1', 'batch': 1, 'tree': ['fastest', 'calibrated']},
    ),
    Pick(
      CAPTIONS, 'Medusa-2, {nodes} nodes', 'medusa', 'medusa',
      {'stage': 'medusa-2', 'batch': 1, 'tree': ['fastest', 'calibrated']},
    ),
    Pick(
      TEXT, "Stern's heads, k = {k}, {rule}", 'multi30k', 'multi30k',
      {'regime': 'both', 'k': 8, 'rule': ['tree-8', 'tree-32']},
    ),
  ),
  'eagle': (
    Pick(TEXT, CHAIN, 'drafts-long', 'drafts', _drafter('eagle', tree=0)),
    Pick(TEXT, TREE, 'drafts-long', 'drafts', _drafter('eagle', tree=32)),
    Pick(TEXT, f'{CHAIN}, a base of 384', 'drafts-384', 'drafts', _drafter('eagle', tree=0)),
    Pick(CAPTIONS, CHAIN, 'drafts-lm', 'drafts', _drafter('eagle', tree=0)),
    Pick(CAPTIONS, TREE, 'drafts-lm', 'drafts', _drafter('eagle', tree=32)),
  ),
  'block': (
    Pick(TEXT, f'one layer, {CHAIN}', 'drafts', 'drafts', _drafter('block', tree=0)),
    Pick(TEXT, f'two layers, {CHAIN}', 'drafts-rnn', 'drafts', _drafter('block-2', tree=0)),
    Pick(TEXT, f'two layers, {TREE}', 'drafts-rnn', 'drafts', _drafter('block-2', tree=32)),
    Pick(CAPTIONS, f'two layers, {CHAIN}', 'drafts-lm-rnn', 'drafts', _drafter('block-2', tree=0)),
    Pick(CAPTIONS, f'two layers, {TREE}', 'drafts-lm-rnn', 'drafts', _drafter('block-2', tree=32)),
  ),
  'lookahead': (
    Pick(CODE, WINDOW, 'lookahead-code', 'lookahead', LOOKAHEAD | {'pool': 'all'}),
    Pick(CAPTIONS, WINDOW, 'lookahead-lm', 'lookahead', LOOKAHEAD | {'pool': 'all'}),
    Pick(
      CAPTIONS, f'{WINDOW}, and a pool of earlier outputs', 'lookahead-lm', 'lookahead',
      LOOKAHEAD | {'pool': 'written'},
    ),
    Pick(TEXT, WINDOW, 'lookahead-translation', 'lookahead', LOOKAHEAD | {'pool': 'all'}),
    Pick(
      CODE, 'Jacobi, {nodes} nodes', 'lookahead-code', 'lookahead',
      {'method': 'jacobi', 'batch': 1},
    ),
  ),
  'lookup': (
    Pick(
      CODE, '{nodes} nodes', 'lookahead-code', 'lookahead',
      {'method': 'lookup', 'batch': 1, 'ngram': 3},
    ),
    Pick(
      CAPTIONS, 'γ = {gamma}, {batch} at once', 'speculative-lm', 'speculative',
      {'draft': 'lookup', 'gamma': 3},
    ),
    Pick(
      TEXT, 'γ = {gamma}', 'speculative-translation', 'speculative',
      {'draft': 'lookup', 'gamma': 3, 'batch': 1},
    ),
  ),
  'forecast': (
    Pick(
      FACES, 'k = {k}, exact', 'faces32', 'faces32',
      {'regime': 'forecast', 'rule': 'exact', 'k': [4, 10]},
    ),
    Pick(
      FACES, 'k = {k}, within 2', 'faces32', 'faces32',
      {'regime': 'forecast', 'rule': 'distance-2', 'k': [4, 8, 10]},
    ),
  ),
  'readme': (
    Pick(TEXT, 'blocks of {k}, exact', 'multi30k-384', 'multi30k', WIDE | {'k': 4}),
    Pick(
      FACES, 'blocks of {k}, within 2 intensities', 'faces32', 'faces32',
      {'regime': 'forecast', 'rule': 'distance-2', 'k': 8},
    ),
    Pick(
      CAPTIONS, 'prompt lookup, {batch} at once', 'speculative-lm', 'speculative',
      {'draft': 'lookup', 'batch': 32},
    ),
    Pick(TEXT, f'EAGLE, {TREE}', 'drafts-long', 'drafts', _drafter('eagle', tree=32)),
  ),
}  # fmt: skip


def first(*names: str) -> Any:
  """Returns a column's field: the first of some names that a row has."""

  def field(row: Row) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)

  return field


COLUMNS = (
  Column('data', 'data', names_row=True),
  Column('settings', 'what', names_row=True),
  Column('tokens a call', first('mean_block_size', 'tokens', 'tokens_per_call'), '.2f'),
  Column('times greedy', 'speedup', '.2f', beside=SPEED_UP.beside),
  Column('same %', first('same_as_greedy', 'same_as_plain'), '.1f', scale=100),
  Column('machine', lambda row: f'{row["processor"].partition("(")[0]}, {row["cpus"]} core'),
  Column('page', lambda row: f'[{row["page"]}]({row["page"]}.md)'),
)


def table(folder: pathlib.Path, method: str) -> Drawn:
  """Draws a method's table from the lines in docs/results."""
  found = []
  for pick in PICKS[method]:
    for row in rows.read(folder / f'{pick.lines}.jsonl'):
      if row.get('error') is None and all(
        _is(row.get(name), one) for name, one in pick.where.items()
      ):
        found.append({**row, 'data': pick.data, 'what': pick.what.format(**row), 'page': pick.page})
  return Table('', COLUMNS).of(found)


def _is(value: Any, wanted: Any) -> bool:
  return value in wanted if isinstance(wanted, list) else value == wanted
