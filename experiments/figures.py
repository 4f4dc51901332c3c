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


class Pick(NamedTuple):
  """Rows of a file that a page shows."""

  lines: str  # docs/results/<lines>.jsonl; the page with the whole table has its first word
  data: str
  what: str  # of a row, by its fields: 'k = {k}'
  where: Mapping[str, Any]  # fields of the rows; a list of values allows each


TEXT, CAPTIONS, CODE = 'Multi30k, translation', 'captions', 'code'
FACES = 'faces, 32 x 32 pixels'

CHAIN, TREE, DEEP = 'a chain of {gamma}', 'a tree of {tree} nodes', '{gamma} deep'
GREEDY = {'temperature': 0, 'batch': 1}
EAGLE = {'drafter': 'eagle', 'tree': 0, **GREEDY}
EAGLE_TREE = EAGLE | {'tree': 32}
BLOCK = {'drafter': 'block', 'tree': 0, **GREEDY}
BLOCK_2 = BLOCK | {'drafter': 'block-2'}
BLOCK_2_TREE = BLOCK_2 | {'tree': 32}
PAPERS = {'regime': 'both', 'rule': 'exact', 'k': [4, 8, 10]}
TUNED = {'regime': 'finetune', 'rule': 'exact', 'k': [2, 4, 8]}
HEADS = {'regime': 'both', 'rule': ['tree-8', 'tree-32'], 'k': 8}
SMALL, AT_ONCE = {'draft': 'small', 'gamma': 3, 'batch': [1, 32]}, 'γ = {gamma}, {batch} at once'
GROWN = {'batch': 1, 'tree': ['fastest', 'calibrated']}
AHEAD = {'method': 'lookahead', 'window': 15, 'ngram': 5, 'guesses': 15, 'batch': 1, 'pool': 'all'}
WINDOW = 'window 15, n-grams of 5, 15 guesses'
LOOKUP = {'draft': 'lookup', 'gamma': 3}
COPIES = {'method': 'lookup', 'batch': 1, 'ngram': 3}
CORPUS, EARLIER = COPIES | {'pool': 'corpus'}, 'a pool of earlier outputs'
NEAR = {'regime': 'forecast', 'rule': 'distance-2'}
PICKS = {
  'blockwise': (
    Pick('multi30k-384', TEXT, 'k = {k}, a base of 384', TUNED),
    Pick('multi30k', TEXT, 'k = {k}, both, a base of 128', PAPERS),
    Pick('multi30k', TEXT, 'k = {k}, both, {rule}', PAPERS | {'rule': 'top-2', 'k': 8}),
  ),
  'speculative': (
    Pick('speculative-translation', TEXT, AT_ONCE, SMALL),
    Pick('speculative-lm', CAPTIONS, AT_ONCE, SMALL | {'temperature': 0}),
    Pick('speculative-lm', CAPTIONS, 'γ = {gamma}, temperature 1', SMALL | {'temperature': 1}),
  ),
  'medusa': (
    Pick('medusa', CAPTIONS, 'Medusa-1, {nodes} nodes', GROWN | {'stage': 'medusa-1'}),
    Pick('medusa', CAPTIONS, 'Medusa-2, {nodes} nodes', GROWN | {'stage': 'medusa-2'}),
    Pick('multi30k', TEXT, "Stern's heads, k = {k}, {rule}", HEADS),
  ),
  'eagle': (
    Pick('drafts-long', TEXT, CHAIN, EAGLE),
    Pick('drafts-long', TEXT, TREE, EAGLE_TREE),
    Pick('drafts-deep', TEXT, f'{TREE}, {DEEP}', EAGLE_TREE | {'gamma': 11}),
    Pick('drafts-384', TEXT, f'{CHAIN}, a base of 384', EAGLE),
    Pick('drafts-lm', CAPTIONS, CHAIN, EAGLE),
    Pick('drafts-lm', CAPTIONS, TREE, EAGLE_TREE),
  ),
  'block': (
    Pick('drafts', TEXT, f'one layer, {CHAIN}', BLOCK),
    Pick('drafts-rnn', TEXT, f'two layers, {CHAIN}', BLOCK_2),
    Pick('drafts-rnn', TEXT, f'two layers, {TREE}', BLOCK_2_TREE),
    Pick('drafts-lm-rnn', CAPTIONS, f'two layers, {CHAIN}', BLOCK_2),
    Pick('drafts-lm-rnn', CAPTIONS, f'two layers, {TREE}', BLOCK_2_TREE),
  ),
  'lookahead': (
    Pick('lookahead-code', CODE, WINDOW, AHEAD),
    Pick('lookahead-lm', CAPTIONS, WINDOW, AHEAD),
    Pick('lookahead-lm', CAPTIONS, f'{WINDOW}, and {EARLIER}', AHEAD | {'pool': 'written'}),
    Pick('lookahead-translation', TEXT, WINDOW, AHEAD),
    Pick('lookahead-code', CODE, 'Jacobi, {nodes} nodes', {'method': 'jacobi', 'batch': 1}),
  ),
  'lookup': (
    Pick('lookahead-code', CODE, '{nodes} nodes', COPIES | {'pool': 'all'}),
    Pick('lookahead-code', CODE, f'{{nodes}} nodes, {EARLIER}', COPIES | {'pool': 'written'}),
    Pick('lookahead-code', CODE, '{nodes} nodes, a pool of training text', CORPUS),
    Pick('speculative-lm', CAPTIONS, AT_ONCE, LOOKUP),
    Pick('speculative-translation', TEXT, 'γ = {gamma}', LOOKUP | {'batch': 1}),
  ),
  'forecast': (
    Pick('faces32', FACES, 'k = {k}, exact', NEAR | {'rule': 'exact', 'k': [4, 10]}),
    Pick('faces32', FACES, 'k = {k}, within 2', NEAR | {'k': [4, 8, 10]}),
  ),
  'readme': (
    Pick('multi30k-384', TEXT, 'blocks of {k}, exact', TUNED | {'k': 4}),
    Pick('faces32', FACES, 'blocks of {k}, within 2 intensities', NEAR | {'k': 8}),
    Pick('speculative-lm', CAPTIONS, 'prompt lookup, {batch} at once', LOOKUP | {'batch': 32}),
    Pick('drafts-deep', TEXT, f'EAGLE, {TREE}, {DEEP}', EAGLE_TREE | {'gamma': 11}),
  ),
}


TOKENS = 'mean_block_size', 'tokens', 'tokens_per_call'  # names of one figure
SAME = 'same_as_greedy', 'same_as_plain'
COLUMNS = (
  Column('data', 'data', names_row=True),
  Column('settings', 'what', names_row=True),
  Column('tokens a call', lambda row: _first(row, TOKENS), '.2f'),
  Column('times greedy', 'speedup', '.2f', beside=SPEED_UP.beside),
  Column('same %', lambda row: _first(row, SAME), '.1f', scale=100),
  Column('machine', lambda row: f'{row["processor"].partition("(")[0]}, {row["cpus"]} core'),
  Column('page', lambda row: f'[{row["page"]}]({row["page"]}.md)'),
)


def table(folder: pathlib.Path, method: str) -> Drawn:
  """Draws a method's table from the lines in docs/results."""
  picked = []
  for lines, data, what, where in PICKS[method]:
    page = lines.partition('-')[0]
    for row in rows.read(folder / f'{lines}.jsonl'):
      is_picked = not rows.is_failure(row)
      for name, wanted in where.items():
        several = wanted if isinstance(wanted, list) else [wanted]
        is_picked &= row.get(name) in several
      if is_picked:
        picked.append({**row, 'data': data, 'what': what.format(**row), 'page': page})
  return Table('', COLUMNS).of(picked)


def _first(row: Row, names: tuple[str, ...]) -> Any:
  """The first of some figures that a row has."""
  return next((row[name] for name in names if row.get(name) is not None), None)
