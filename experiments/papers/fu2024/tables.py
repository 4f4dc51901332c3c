"""Tables of lookahead from measured cells, what Fu et al. 2024 publish below, before they are
drawn."""

import dataclasses
from collections.abc import Iterable

from experiments.lab.cells import latest, repetition_note
from experiments.lab.columns import CALLS_ALONE, MACHINE, SAME, SAME_NOTE, SPEED_UP
from experiments.lab.report import Column, Drawn, Table, text
from experiments.papers.fu2024 import published
from experiments.papers.fu2024.cells import METHODS, POOLS, LookaheadCell

NOTES = (
  'W, N, G: columns of the window, tokens of an n-gram, guesses verified a call; of Jacobi N is the'
  ' block size, of'
  ' prompt lookup N the longest suffix and G the tokens copied. Nodes: tokens of a call, (W + G)(N'
  ' - 1) of lookahead.'
  ' Tokens: per call of a row, over all texts; speeds are over some of them. Speed-up: over plain'
  ' greedy decoding in'
  ' turn, whole texts, and in brackets the slowest and fastest round; calls alone: without the'
  ' prompt.',
  'Pool: what n-grams are learnt of. Earlier outputs: what the model has written for the dev set;'
  ' corpus: its training'
  ' text.',
  SAME_NOTE,
  'The paper emits at most N - 1 tokens a call and verifies nothing in the first N - 2 calls; here'
  ' it is N, from the'
  ' first call on. Its figures are of Llama models on an A100, where wide calls cost little.',
)
CONDITIONS = ('task', 'split', 'sentences', 'timed', 'max_len', 'repeats', 'prompt', *MACHINE)


def _order(cell: LookaheadCell) -> tuple:
  places = list(METHODS).index(cell.method), cell.batch, list(POOLS).index(cell.pool)
  return *places, cell.window, cell.ngram, cell.guesses


def _pool(cell: LookaheadCell) -> str:
  if cell.method == 'jacobi':
    return ''
  return (
    POOLS[cell.pool] if cell.method == 'lookahead' else POOLS[cell.pool].removeprefix('window, ')
  )


SPEEDS = Table(
  'Lookahead decoding',
  (
    Column('Method', lambda cell: METHODS[cell.method], names_row=True),
    Column('W', 'window', names_row=True),
    Column('N', 'ngram', names_row=True),
    Column('G', 'guesses', names_row=True),
    Column('Pool of', _pool, names_row=True),
    Column('Batch', 'batch', names_row=True),
    Column('Nodes', 'nodes'),
    Column('Tokens', 'tokens', '.2f'),
    dataclasses.replace(SPEED_UP, missing='not measured'),
    CALLS_ALONE,
    SAME,
  ),
  NOTES,
  CONDITIONS,
  sort=_order,
)


def speed_table(cells: Iterable[LookaheadCell]) -> Drawn:
  """Every cell, then the published figures."""
  below = []
  for row in published.ABLATION:
    sizes = row.sizes or ('', '', '')
    shown = dict(zip('WNG', map(str, sizes), strict=True))
    figures = {'Tokens': text(row.tokens, '.2f'), 'Speed-up': f'{row.speedup:.2f}×'}
    below.append({'Method': f'{row.what} (paper)', 'Batch': '1'} | shown | figures)
  for where, speedup in published.SPEEDUPS:
    below.append(
      {'Method': f'lookahead on {where} (paper)', 'Batch': '1', 'Speed-up': f'{speedup}×'}
    )
  found = list(latest(cells).values())
  return SPEEDS.of(found, below=below, notes=repetition_note(found))
