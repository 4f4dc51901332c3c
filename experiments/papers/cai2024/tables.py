"""Tables of Medusa from measured cells, what Cai et al. 2024 publish beside, before they are drawn."""

from collections.abc import Iterable

from experiments.lab.cells import conditions_note, latest, repetition_note
from experiments.lab.report import MISSING, Entry, Table, text
from experiments.papers.cai2024 import published
from experiments.papers.cai2024.cells import TREES, MedusaCell
from fastdec.evaluation.tree_calibration import TOPS, Calibration

NOTES = (
  'Tokens: per call of the model; of a batch, per step, which goes on until its last row ends. Call: what a call on the'
  ' tree takes, heads included, in calls of plain greedy decoding of the same model. New: tokens per call of a row,'
  ' over prompts that begin no text of the training. Speed-up: over plain greedy decoding in turn, whole texts, and in'
  ' brackets the slowest and fastest round; calls alone: without the prompt.',
  "Same: texts that are plain greedy decoding's, token for token; the others part at near ties (float32 rounding)."
  ' Typical acceptance is not lossless. NLL: of held-out text by the model itself: Medusa-2 trains it too.',
)
CONDITIONS = (
  'text', 'split', 'timed', 'max_len', 'repeats', 'prompt', 'calibrated', 'config', 'seed', 'dtype', 'device',
  'processor', 'cpus', 'xla_flags', 'commit',
)  # fmt: skip


def speed_table(cells: Iterable[MedusaCell]) -> Table:
  """Every cell, then the published figures."""
  found = sorted(latest(cells).values(), key=lambda cell: (cell.stage, cell.batch, list(TREES).index(cell.tree)))
  rows = [_row(cell) for cell in found]
  for stage, model, speedup, tokens, overhead in published.SPEEDS:
    row = (stage.capitalize(), f'{model} (paper)', '64', '1', text(tokens, '.2f'), MISSING, text(overhead, '.2f'))
    rows.append(tuple(map(Entry, (*row, f'{speedup:.2f}×', MISSING, MISSING, MISSING))))
  header = ('Heads', 'Tree', 'Nodes', 'Batch', 'Tokens', 'New', 'Call', 'Speed-up', 'Calls alone', 'Same %', 'NLL')
  seen = {cell.conditions.get('seen_prompts') for cell in found if cell.error is None} - {None}
  begun = [f'Of the prompts, {100 * max(seen):.0f} % begin a text of the training too.'] if seen else []
  return Table(
    'Medusa', header, tuple(rows), (*NOTES, *begun, *repetition_note(found), *conditions_note(found, CONDITIONS))
  )


def _row(cell: MedusaCell) -> tuple[Entry, ...]:
  start = (cell.stage.capitalize(), TREES[cell.tree])
  if cell.error is not None:
    failed = f'failed: {" ".join(cell.error.split())}'
    return tuple(map(Entry, (*start, MISSING, str(cell.batch), failed, *[MISSING] * 6)))
  spread = f'({cell.spread[0]:.2f} .. {cell.spread[1]:.2f})' if cell.spread else ''
  same = None if cell.same_as_plain is None else 100 * cell.same_as_plain
  call = None if cell.speedup_calls is None else cell.tokens_per_call / cell.speedup_calls
  return (
    *map(Entry, (*start, str(cell.nodes), str(cell.batch), text(cell.tokens_per_call, '.2f'))),
    Entry(text(cell.tokens_unseen, '.2f')), Entry(text(call, '.2f')),
    Entry(text(cell.speedup, '.2f', '×'), spread), Entry(text(cell.speedup_calls, '.2f', '×')),
    Entry(text(same, '.1f')), Entry(text(cell.nll, '.3f')),
  )  # fmt: skip


HEADS_NOTE = (
  'Right: the token that the model itself writes is among the first choices, over all tokens of its texts; in'
  ' parentheses {name}, Medusa-1 (Cai et al. 2024).'
)


WIDTHS_NOTE = (
  'The tokens that the tree of so many nodes writes a call, as counted on these texts, and what a call takes at'
  ' batch 1, heads included; 1 node: greedy decoding without heads.'
)


def heads_table(found: Calibration, of: str = 'Heads', beside: str = 'Vicuna 7B') -> Table:
  """How often each head is right, the published heads' accuracies beside."""
  accuracy, rows = published.ACCURACY[beside], []
  for i in range(len(found.right[1])):
    theirs = [f'({100 * value:.0f})' for value in accuracy[i]] if i < len(accuracy) else [''] * len(TOPS)
    ours = (text(100 * found.right[top][i], '.1f') for top in TOPS)
    rows.append((Entry(f'{i + 1}'), *map(Entry, ours, theirs)))
  notes = (HEADS_NOTE.format(name=beside), f'Counted at {found.positions:,} tokens.')
  return Table(f'{of}: how often each head is right', ('Head', *(f'Top-{top} %' for top in TOPS)), tuple(rows), notes)


def widths_table(found: Calibration, of: str = 'Heads') -> Table:
  """What trees of growing size promise; the chosen one is marked."""
  nodes = sorted(found.tokens)
  rows = []
  for n in nodes:
    tokens, ms = found.tokens[n], found.milliseconds.get(n)
    speed = MISSING if ms is None else f'{1e3 * tokens / ms:,.0f}'
    mark = f'{n} (chosen)' if n == found.nodes else str(n)
    rows.append(tuple(map(Entry, (mark, f'{tokens:.2f}', text(ms, '.2f'), speed))))
  header = ('Nodes', 'Tokens a call', 'ms a call', 'Tokens a second')
  return Table(f'{of}: trees of growing size', header, tuple(rows), (WIDTHS_NOTE,))
