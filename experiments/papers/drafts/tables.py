"""Tables of `experiments.drafts` from measured cells, before they are drawn."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from experiments.lab.cells import latest, repetition_note
from experiments.lab.columns import CALLS_ALONE, MACHINE, SAME, SAME_NOTE, SPEED_UP
from experiments.lab.report import Column, Drawn, Table, text
from experiments.papers.drafts import published
from experiments.papers.drafts.cells import CHAINS, DRAFTERS, DraftCell

NOTES = (
  'Nodes: what the target scores a call, the root included. Parameters: of the drafter. Training:'
  ' tokens of the'
  " target's side, and seconds. Tokens: per call of a row, over all texts; speeds are over some of"
  ' them.',
  "Draft: milliseconds that a call takes more than the target's own on as many nodes. Speed-up:"
  ' over plain decoding of'
  ' the same model in turn, whole texts, and in brackets the slowest and fastest round; calls'
  ' alone: without prompts.',
  SAME_NOTE,
)
ACCEPTED_NOTES = (
  'How often the guess at each place of a chain is accepted where all before it are, in per cent.'
  ' The guess at which a'
  ' text ends is not counted.',
)
CONDITIONS = ('task', 'split', 'timed', 'max_len', 'repeats', 'calibrated', *MACHINE)


def _shape(cell: DraftCell) -> str:
  if cell.tree:
    return f'tree of {cell.tree}'
  if cell.short:
    return f'chain of {cell.short}'
  return 'chain' if cell.nodes is None else f'chain of {cell.nodes - 1}'


def _order(cell: DraftCell) -> tuple:
  return cell.temperature, cell.batch, list(DRAFTERS).index(cell.drafter), cell.tree, -cell.short


SPEEDS = Table(
  'Drafters side by side',
  (
    Column('Drafter', lambda cell: DRAFTERS[cell.drafter], names_row=True),
    Column('Draft', _shape, names_row=True),
    Column('T', 'temperature', 'g', names_row=True),
    Column('Batch', 'batch', names_row=True),
    Column('Nodes', 'nodes'),
    Column('Parameters', 'parameters', ','),
    Column('Training tokens', 'training_tokens', ','),
    Column('s', 'training_seconds', ',.0f'),
    Column('Tokens', 'tokens', '.2f'),
    Column('Draft ms', 'draft_ms', '.2f'),
    Column('Call ms', 'call_ms', '.2f'),
    SPEED_UP,
    CALLS_ALONE,
    SAME,
  ),
  NOTES,
  CONDITIONS,
  sort=_order,
)


def speed_table(cells: Iterable[DraftCell], plans: Iterable[DraftCell] = ()) -> Drawn:
  """Greedy decoding or sampling, then every cell; below, what has not been measured, and what trees
  are worth against chains.

  Args:
    cells: what is known.
    plans: what the table is to have.
  """
  known = latest(cells)
  found = list(known.values())
  measured = [cell for cell in found if cell.error is None]
  missing = [plan for plan in plans if plan.key not in known]
  notes = (*_missing_note(missing), *_trees_note(measured), *repetition_note(measured))
  return SPEEDS.of(found, above=_plain(measured), notes=notes)


def all_plans(cells: Iterable[DraftCell]) -> list[DraftCell]:
  """Each drafter of these cells, as a chain and as each tree, at each temperature and batch size
  that is among them."""
  found = list(cells)
  drafters = [drafter for drafter in DRAFTERS if drafter in {cell.drafter for cell in found}]
  trees = sorted({cell.tree for cell in found} | {0})
  conditions = sorted({(cell.temperature, cell.batch) for cell in found})
  plans = []
  for drafter in drafters:
    shapes = [0] if drafter in CHAINS else trees
    plans += [DraftCell(drafter, tree, *condition) for tree in shapes for condition in conditions]
  return plans


def _plain(cells: Sequence[DraftCell]) -> list[Mapping[str, str]]:
  """A row for plain decoding at each temperature and batch size: what the others stand beside, in
  the median."""
  rows = []
  for temperature, batch in sorted({(cell.temperature, cell.batch) for cell in cells}):
    beside = [
      cell.plain_ms for cell in cells if (cell.temperature, cell.batch) == (temperature, batch)
    ]
    known = [value for value in beside if value is not None]
    row = {
      'Drafter': 'sampling' if temperature else 'greedy',
      'Draft': 'none',
      'T': f'{temperature:g}',
    }
    row |= {
      'Batch': str(batch),
      'Nodes': '1',
      'Parameters': '0',
      'Tokens': '1.00',
      'Speed-up': '1.00×',
    }
    rows.append(row | {'Call ms': text(statistics.median(known) if known else None, '.2f')})
  return rows


def below_their_chain(cells: Iterable[DraftCell]) -> tuple[list[str], int]:
  """Trees that write fewer tokens a call than the chain of as many nodes of the same drafter, at
  temperature 0; and how many pairs there are to compare."""
  known = [
    cell for cell in cells if cell.error is None and cell.temperature == 0 and not cell.short
  ]
  at_zero = {(cell.drafter, cell.tree): cell for cell in known}
  worse, pairs = [], 0
  for (drafter, tree), cell in sorted(at_zero.items()):
    chain = at_zero.get((drafter, 0))
    if (
      not tree
      or chain is None
      or tree != chain.nodes
      or cell.tokens is None
      or chain.tokens is None
    ):
      continue
    pairs += 1
    if cell.tokens < chain.tokens:
      worse.append(f'{DRAFTERS[drafter]} {cell.tokens:.3f} against {chain.tokens:.3f}')
  return worse, pairs


def _missing_note(plans: Iterable[DraftCell]) -> list[str]:
  """A sentence that names the plans, by drafter, temperature and batch size."""
  shapes: dict[tuple[str, float, int], list[str]] = {}
  for plan in sorted(plans, key=_order):
    shapes.setdefault((plan.drafter, plan.temperature, plan.batch), []).append(_shape(plan))
  named = [
    f'{DRAFTERS[drafter]} at temperature {temperature:g} and batch {batch} ({", ".join(found)})'
    for (drafter, temperature, batch), found in shapes.items()
  ]
  return [f'Not measured: {"; ".join(named)}.'] if named else []


def _trees_note(cells: Iterable[DraftCell]) -> list[str]:
  worse, pairs = below_their_chain(cells)
  if not pairs:
    return []
  if not worse:
    return [
      f'At equal nodes no tree writes fewer tokens a call than its chain, of {pairs} compared'
      ' (temperature 0).'
    ]
  return [
    f'At equal nodes {len(worse)} of {pairs} trees write fewer tokens a call than their chain:'
    f' {"; ".join(worse)}.'
  ]


def acceptance_table(cells: Iterable[DraftCell]) -> Drawn:
  """The chains, place by place."""
  found = [
    cell
    for cell in latest(cells).values()
    if cell.error is None and cell.is_whole_chain and cell.accepted
  ]
  # batch sizes are counted together
  once = {(cell.drafter, cell.temperature): cell for cell in found}
  places = max((len(cell.accepted or ()) for cell in found), default=0)

  def at(place: int) -> Column:
    def share(cell: DraftCell) -> float | None:
      accepted = cell.accepted or ()
      return accepted[place] if place < len(accepted) else None

    return Column(str(place + 1), share, '.1f', scale=100)

  columns = (
    Column('Drafter', lambda cell: DRAFTERS[cell.drafter]),
    Column('T', 'temperature', 'g'),
    Column('Tokens', 'tokens', '.2f'),
    *map(at, range(places)),
  )
  return Table('Acceptance by position', columns, ACCEPTED_NOTES, sort=_order).of(once.values())


PUBLISHED = Table(
  'Published',
  (
    Column('Drafter', 'drafter'),
    Column('Target', 'target'),
    Column('Draft', 'draft'),
    Column('T', 'temperature', 'd'),
    Column('Text', 'text'),
    Column('Tokens', 'tokens', '.2f'),
    Column('Speed-up', 'speedup', '.2f', '×'),
    Column('Source', 'source'),
  ),
  (
    'Large language models on accelerators, at batch 1: other models and other text, so no goal for'
    ' the rows above.',
  ),
)


def published_table() -> Drawn:
  """What others reached."""
  return PUBLISHED.of(published.ROWS)
