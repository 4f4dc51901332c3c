"""Tables 1 and 4 of Stern et al. 2018 from measured cells, the paper's figures beside ours, before
they are drawn."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from experiments.lab.cells import latest
from experiments.lab.report import MISSING, Column, Drawn, Entry, Table, between, text
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell, Key
from experiments.papers.stern2018.entries import (
  CONDITIONS,
  ROUNDS_NOTE,
  SAME,
  SAME_NOTE,
  SPEED_NOTE,
  SPEED_UP,
  TOP_1,
  TOP_1_NOTE,
  TOP_1_OWN,
  TRAINING,
  K,
  heads_note,
  in_order,
  one_run_note,
  rank,
  regimes,
)
from experiments.stern2018 import published

TABLE1_NOTE = (
  "BLEU / mean accepted block size; in parentheses or below, the paper's (WMT14 en-de,"
  ' newstest2013).'
)
TOP_N_NOTE = "† The paper's top-2 and top-3 figures are for Both, that is with distillation too."
MIN_NOTE = 'min n: at least n tokens a call (section 5.3); the paper gives no figures.'
OWN_NOTE = (
  'Regular and Fine tuning: heads trained on what the base itself writes for the training sources;'
  ' not in the paper.'
)
TREE = 'tree-32'  # the column of Table 1 that the paper does not have
TREE_NOTE = (
  f'{TREE}: exact acceptance on a tree of 32 nodes, grown on another split; not in the paper.'
)
TABLE4_NOTES = (
  "Ours: trained on distilled text, heads and base together. In parentheses or below, the paper's"
  ' Table 4: WMT14 en-de,'
  ' newstest2014, rivals as it quotes them (NAT: not autoregressive, FT: fine-tuned, NPD: best of s'
  ' candidates).',
  'T2T BLEU: tokenised, compounds split, as Tensor2Tensor reports it.',
  'Rounds: the least and the largest speed-up of rounds.',
)


class Line(NamedTuple):
  """What the cells of a line have in common."""

  k: int
  rule: str = ''


def table1(cells: Iterable[BlockwiseCell]) -> Drawn:
  """BLEU / mean accepted block size, by k and by regime, in the paper's layout; see `columns`."""
  found = _accepting(cells)
  shown = columns(found)
  notes = [TABLE1_NOTE]
  if any(_is_footnoted(*column) for column in shown):
    notes.append(TOP_N_NOTE)
  if any(rule == TREE for _, rule in shown):
    notes.append(TREE_NOTE)
  notes += [*_own_note(found.values()), *heads_note(found.values()), *one_run_note(found.values())]
  figures = [_beside_the_papers(_heading(*column), found, *column) for column in shown]
  table = Table('Blockwise parallel decoding, Table 1', (K, *figures), notes, CONDITIONS)
  return table.of([Line(k) for k in sorted({k for k, _, _ in found})], cells=found.values())


def columns(found: Iterable[Key]) -> list[tuple[str, str]]:
  """(regime, rule) of the columns of Table 1: the regimes that were run with exact acceptance, in
  the paper's order, then the last of them with top-n, which in the paper is Both, and on the tree
  of 32 nodes, which it has not."""
  keys = list(found)
  run = regimes(keys)
  top = {
    rule for _, regime, rule in keys if rule.startswith('top-') and regime == run[-1] != 'regular'
  }
  tree = {rule for _, regime, rule in keys if rule == TREE and regime == run[-1]}
  more = (*sorted(top, key=rank), *tree)
  return [*((regime, 'exact') for regime in run), *((run[-1], rule) for rule in more)]


def rules_table(cells: Iterable[BlockwiseCell]) -> Drawn:
  """BLEU / mean accepted block size of every rule that is not lossless, by k and regime."""
  found = _accepting(cells)
  lines = {
    Line(k, rule) for k, _, rule in found if rule != 'exact' and not rule.startswith('tree-')
  }
  label = Column('k, rule', lambda line: f'{line.k}, {line.rule.replace("-", " ")}', names_row=True)
  figures = [_beside_the_papers(REGIMES[regime], found, regime) for regime in regimes(found)]
  notes = [TABLE1_NOTE]
  if any(line.rule.startswith('min-') for line in lines):
    notes.append(MIN_NOTE)
  notes += _own_note(found.values())
  table = Table(
    'Other rules of acceptance',
    (label, *figures),
    notes,
    sort=lambda line: (rank(line.rule), line.k),
  )
  return table.of(lines)


WALL_CLOCK = Table(
  'Wall clock and heads',
  (
    K,
    TRAINING,
    Column('Rule', 'rule', names_row=True),
    Column('Greedy ms', 'greedy_ms_per_output', '.1f'),
    Column('Block ms', 'ms_per_output', '.1f'),
    SPEED_UP,
    Column('Calls', 'calls_per_output', '.1f'),
    SAME,
    TOP_1,
    TOP_1_OWN,
  ),
  (SPEED_NOTE, ROUNDS_NOTE, SAME_NOTE, TOP_1_NOTE),
)


def wallclock_table(cells: Iterable[BlockwiseCell]) -> Drawn:
  """Milliseconds per output against greedy decoding of the same model, and how often each head is
  right."""
  found = in_order(cell for cell in latest(cells).values() if cell.error is None)
  return WALL_CLOCK.of(found, notes=_own_note(found))


def _own_note(cells: Iterable[BlockwiseCell]) -> list[str]:
  return [OWN_NOTE] if any(cell.conditions.get('heads_text') == 'own' for cell in cells) else []


def _published_at(place: int, form: str) -> Any:
  """What stands beside a cell of Table 4: the paper's BLEU (0) or speed-up (1), for exact
  acceptance."""

  def beside(cell: BlockwiseCell) -> str:
    theirs = published.TABLE4.get(cell.k) if cell.rule == 'exact' else None
    return '' if theirs is None else form.format(theirs[place])

  return beside


def _model(cell: BlockwiseCell) -> str:
  return (
    f'Ours, greedy, k = {cell.k}'
    if cell.rule == 'exact'
    else (f'Ours, {cell.rule.replace("-", " ")}')
  )


# A rival's row has no figure of ours, and a failed one none but the reason: their places stay
# empty.
TABLE4 = Table(
  'Blockwise parallel decoding, Table 4',
  (
    Column('Model', _model, names_row=True),
    Column('sacreBLEU', lambda cell: text(cell.bleu, '.2f'), missing=''),
    Column(
      'T2T BLEU',
      lambda cell: text(cell.compound_bleu, '.2f'),
      beside=_published_at(0, '({:.2f})'),
      missing='',
    ),
    Column(
      'Speed-up',
      lambda cell: text(cell.speedup, '.2f', '×'),
      beside=_published_at(1, '({:.2f}×)'),
      missing='',
    ),
    Column('Rounds', lambda cell: between(cell.spread).strip('()') or MISSING, missing=''),
    Column(
      'Mean block',
      lambda cell: text(cell.mean_block_size, '.2f') if cell.rule == 'exact' else '',
      missing='',
    ),
  ),
  (*TABLE4_NOTES, SPEED_NOTE),
  CONDITIONS,
  sort=lambda cell: (cell.rule == 'exact', cell.k),
)


def table4(cells: Iterable[BlockwiseCell]) -> Drawn:
  """BLEU on the test set and speed-up of one sentence: published rivals, and ours for every k
  beside the paper's."""
  rivals = []
  for rival in published.RIVALS:
    speedup = '' if rival.speedup is None else f'({rival.speedup:.2f}×)'
    rivals.append(
      {
        'Model': rival.model,
        'T2T BLEU': Entry('', f'({rival.bleu:.2f})'),
        'Speed-up': Entry('', speedup),
      }
    )
  distilled = [
    cell for cell in latest(cells).values() if cell.regime == ('distil' if cell.k == 1 else 'both')
  ]
  return TABLE4.of(distilled, above=rivals)


def _accepting(cells: Iterable[BlockwiseCell]) -> dict[Key, BlockwiseCell]:
  """The cells of Table 1: beam search is Table 4's."""
  return {key: cell for key, cell in latest(cells).items() if not key[2].startswith('beam-')}


def _heading(regime: str, rule: str) -> str:
  name = REGIMES[regime] if rule == 'exact' else f'{REGIMES[regime]}, {rule}'
  return f'{name} †' if _is_footnoted(regime, rule) else name


def _is_footnoted(regime: str, rule: str) -> bool:
  """Whether the paper's figures of this column are of another way of training."""
  return regime == 'finetune' and rule.startswith('top-')


def _beside_the_papers(
  heading: str, found: Mapping[Key, BlockwiseCell], regime: str, rule: str | None = None
) -> Column:
  """A column of BLEU / mean accepted block size with Table 1's beside, of one rule or else of each
  line's own."""

  def key(line: Line) -> Key:
    return line.k, regime, rule or line.rule

  def theirs(line: Line) -> str:
    k, _, own_rule = key(line)
    figures = published.TABLE1.get(
      (k, 'both' if _is_footnoted(regime, own_rule) else regime, own_rule)
    )
    return '' if figures is None else f'({figures[0]:.2f} / {figures[1]:.2f})'

  return Column(heading, bleu_and_block, beside=theirs, cell=lambda line: found.get(key(line)))


def bleu_and_block(cell: BlockwiseCell) -> str:
  """BLEU / mean accepted block size."""
  return f'{text(cell.bleu, ".2f")} / {text(cell.mean_block_size, ".2f")}'
