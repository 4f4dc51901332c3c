"""Tables of Medusa from measured cells, what Cai et al. 2024 publish beside, before they are
drawn."""

from collections.abc import Iterable

from experiments.lab.cells import latest, repetition_note
from experiments.lab.columns import CALLS_ALONE, MACHINE, SAME, SAME_NOTE, SPEED_UP
from experiments.lab.report import Column, Drawn, Table, text
from experiments.papers.cai2024 import published
from experiments.papers.cai2024.cells import TREES, MedusaCell
from fastdec.evaluation.tree_calibration import TOPS, Calibration

NOTES = (
  'Tokens: per call of the model; of a batch, per step, which goes on until its last row ends.'
  ' Call: what a call on the'
  ' tree takes, heads included, in calls of plain greedy decoding of the same model. New: tokens'
  ' per call of a row,'
  ' over prompts that begin no text of the training. Speed-up: over plain greedy decoding in turn,'
  ' whole texts, and in'
  ' brackets the slowest and fastest round; calls alone: without the prompt.',
  f'{SAME_NOTE} Typical acceptance is not lossless. NLL: of held-out text by the model itself:'
  ' Medusa-2 trains it too.',
)
CONDITIONS = ('text', 'split', 'timed', 'max_len', 'repeats', 'prompt', 'calibrated', *MACHINE)


def _call(cell: MedusaCell) -> float | None:
  """What a call takes, in calls of plain decoding."""
  if cell.tokens_per_call is None or cell.speedup_calls is None:
    return None
  return cell.tokens_per_call / cell.speedup_calls


SPEEDS = Table(
  'Medusa',
  (
    Column('Heads', lambda cell: cell.stage.capitalize(), names_row=True),
    Column('Tree', lambda cell: TREES[cell.tree], names_row=True),
    Column('Nodes', 'nodes', names_row=True),
    Column('Batch', 'batch', names_row=True),
    Column('Tokens', 'tokens_per_call', '.2f'),
    Column('New', 'tokens_unseen', '.2f'),
    Column('Call', _call, '.2f'),
    SPEED_UP,
    CALLS_ALONE,
    SAME,
    Column('NLL', 'nll', '.3f'),
  ),
  NOTES,
  CONDITIONS,
)


def speed_table(cells: Iterable[MedusaCell]) -> Drawn:
  """Every cell, then the published figures."""
  found = sorted(
    latest(cells).values(), key=lambda cell: (cell.stage, cell.batch, list(TREES).index(cell.tree))
  )
  below = []
  for stage, model, speedup, tokens, overhead in published.SPEEDS:
    row = {'Heads': stage.capitalize(), 'Tree': f'{model} (paper)', 'Nodes': '64', 'Batch': '1'}
    row |= {
      'Tokens': text(tokens, '.2f'),
      'Call': text(overhead, '.2f'),
      'Speed-up': f'{speedup:.2f}×',
    }
    below.append(row)
  shares = (cell.conditions.get('seen_prompts') for cell in found if cell.error is None)
  seen = [share for share in shares if share is not None]
  begun = (
    [f'Of the prompts, {100 * max(seen):.0f} % begin a text of the training too.'] if seen else []
  )
  return SPEEDS.of(found, below=below, notes=(*begun, *repetition_note(found)))


HEADS_NOTE = (
  'Right: the token that the model itself writes is among the first choices, over all tokens of its'
  ' texts; in'
  ' parentheses {name}, Medusa-1 (Cai et al. 2024).'
)
WIDTHS_NOTE = (
  'Tokens: what the tree of this many nodes writes a call, as counted on these texts. ms: what a'
  ' call takes at batch 1,'
  ' heads included. 1 node is greedy decoding without heads.'
)


def heads_table(found: Calibration, of: str = 'Heads', beside: str = 'Vicuna 7B') -> Drawn:
  """How often each head is right, the published heads' accuracies beside."""
  accuracy = published.ACCURACY[beside]

  def right(place: int, top: int) -> Column:
    def theirs(head: int) -> str:
      return f'({100 * accuracy[head][place]:.0f})' if head < len(accuracy) else ''

    return Column(
      f'Top-{top} %', lambda head: found.right[top][head], '.1f', scale=100, beside=theirs
    )

  columns = [
    Column('Head', lambda head: head + 1),
    *(right(place, top) for place, top in enumerate(TOPS)),
  ]
  notes = (HEADS_NOTE.format(name=beside), f'Counted at {found.positions:,} tokens.')
  return Table(f'{of}: how often each head is right', columns, notes).of(range(len(found.right[1])))


def widths_table(found: Calibration, of: str = 'Heads') -> Drawn:
  """What trees of growing size promise; the chosen one is marked."""

  def speed(nodes: int) -> float | None:
    milliseconds = found.milliseconds.get(nodes)
    return None if milliseconds is None else 1e3 * found.tokens[nodes] / milliseconds

  columns = (
    Column('Nodes', lambda nodes: f'{nodes} (chosen)' if nodes == found.nodes else str(nodes)),
    Column('Tokens a call', lambda nodes: found.tokens[nodes], '.2f'),
    Column('ms a call', found.milliseconds.get, '.2f'),
    Column('Tokens a second', speed, ',.0f'),
  )
  return Table(f'{of}: trees of growing size', columns, (WIDTHS_NOTE,)).of(sorted(found.tokens))
