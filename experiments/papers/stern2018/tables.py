"""Tables 1 and 4 of Stern et al. 2018 from measured cells, the paper's figures beside ours, before they are drawn."""

from collections.abc import Iterable, Mapping

from experiments.lab.cells import conditions_note, latest
from experiments.lab.report import Entry, Table, text
from experiments.papers.stern2018 import published
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell, Key
from experiments.papers.stern2018.entries import CONDITIONS, SAME_NOTE, SPEED_NOTE, in_order, outcome, rank, regimes

TABLE1_NOTE = "BLEU / mean accepted block size; in parentheses or below, the paper's (WMT14 en-de, newstest2013)."
TOP_N_NOTE = "† The paper's top-2 and top-3 figures are for Both, that is with distillation too."
MIN_NOTE = 'min n: at least n tokens a call (section 5.3); the paper gives no figures.'
TREE = 'tree-32'  # the column of Table 1 that the paper does not have
TREE_NOTE = f'{TREE}: exact acceptance on a tree of 32 nodes, grown on another split; not in the paper.'
TABLE4_NOTES = (
  "Ours: trained on distilled text, heads and base together. In parentheses or below, the paper's Table 4: WMT14 en-de,"
  ' newstest2014, rivals as it quotes them (NAT: not autoregressive, FT: fine-tuned, NPD: best of s candidates).',
  'T2T BLEU: tokenised, compounds split, as Tensor2Tensor reports it.',
)


def table1(cells: Iterable[BlockwiseCell]) -> Table:
  """BLEU / mean accepted block size, by k and by regime, in the paper's layout.

  See `columns`.
  """
  found = _accepting(cells)
  shown = columns(found)
  rows = [(Entry(str(k)), *(_entry(found, (k, *column)) for column in shown)) for k in sorted({k for k, _, _ in found})]
  notes = [TABLE1_NOTE, *[TOP_N_NOTE] * any(_is_footnoted(*column) for column in shown)]
  notes += [*[TREE_NOTE] * any(rule == TREE for _, rule in shown), *conditions_note(found.values(), CONDITIONS)]
  header = ('k', *(_heading(*column) for column in shown))
  return Table('Blockwise parallel decoding, Table 1', header, tuple(rows), tuple(notes))


def columns(found: Iterable[Key]) -> list[tuple[str, str]]:
  """(regime, rule) of the columns of Table 1: the regimes that were run with exact acceptance, in the paper's order,
  then the last of them with top-n, which in the paper is Both, and on the tree of 32 nodes, which it has not."""
  keys = list(found)
  run = regimes(keys)
  top = {rule for _, regime, rule in keys if rule.startswith('top-') and regime == run[-1] != 'regular'}
  tree = {rule for _, regime, rule in keys if rule == TREE and regime == run[-1]}
  more = (*sorted(top, key=rank), *tree)
  return [*((regime, 'exact') for regime in run), *((run[-1], rule) for rule in more)]


def rules_table(cells: Iterable[BlockwiseCell]) -> Table:
  """BLEU / mean accepted block size of every rule that is not lossless, by k and regime."""
  found = _accepting(cells)
  run = regimes(found)
  rules = sorted({rule for _, _, rule in found if rule != 'exact' and not rule.startswith('tree-')}, key=rank)
  rows = []
  for rule in rules:
    for k in sorted({k for k, _, name in found if name == rule}):
      label = Entry(f'{k}, {rule.replace("-", " ")}')
      rows.append((label, *(_entry(found, (k, regime, rule)) for regime in run)))
  notes = (TABLE1_NOTE, *[MIN_NOTE] * any(rule.startswith('min-') for rule in rules))
  header = ('k, rule', *(REGIMES[regime] for regime in run))
  return Table('Other rules of acceptance', header, tuple(rows), notes)


def wallclock_table(cells: Iterable[BlockwiseCell]) -> Table:
  """Milliseconds per output against greedy decoding of the same model, and how often each head is right."""
  finished = [cell for cell in latest(cells).values() if cell.error is None]
  rows = []
  for cell in in_order(finished):
    accuracy = cell.head_accuracy if cell.rule == 'exact' else ()  # it does not depend on the rule
    rows.append(
      tuple(
        map(
          Entry,
          (
            str(cell.k),
            REGIMES[cell.regime],
            cell.rule,
            text(cell.greedy_ms_per_output, '.1f'),
            text(cell.ms_per_output, '.1f'),
            text(cell.speedup, '.2f', '×'),
            text(cell.calls_per_output, '.1f'),
            text(cell.same_as_greedy and 100 * cell.same_as_greedy, '.1f'),
            ' '.join(text(a and 100 * a, '.0f') for a in accuracy),
          ),
        )
      )
    )
  header = ('k', 'Training', 'Rule', 'Greedy ms', 'Block ms', 'Speed-up', 'Calls', 'Same %', 'Top-1 % of p1 .. pk')
  return Table('Wall clock and heads', header, tuple(rows), (SPEED_NOTE, SAME_NOTE))


def table4(cells: Iterable[BlockwiseCell]) -> Table:
  """BLEU on the test set and speed-up of one sentence: published rivals, and ours for every k beside the paper's."""
  found = latest(cells)
  rows = [
    (Entry(rival.model), Entry(''), *_beside('', '', rival.bleu, rival.speedup), Entry(''))
    for rival in published.RIVALS
  ]
  ours = {key: cell for key, cell in found.items() if key[1] == ('distil' if key[0] == 1 else 'both')}
  for k, regime, rule in sorted(ours, key=lambda key: (key[2] == 'exact', key[0])):
    cell, theirs = ours[k, regime, rule], published.TABLE4.get(k, (None, None)) if rule == 'exact' else (None, None)
    label = f'Ours, greedy, k = {k}' if rule == 'exact' else f'Ours, {rule.replace("-", " ")}'
    first, bleu, speedup, block = (
      ('', '', '', '')
      if cell.error is not None
      else (
        text(cell.bleu, '.2f'),
        text(cell.compound_bleu, '.2f'),
        text(cell.speedup, '.2f', '×'),
        text(cell.mean_block_size, '.2f'),
      )
    )
    first = first or _figures(cell)
    rows.append((Entry(label), Entry(first), *_beside(bleu, speedup, *theirs), Entry(block * (rule == 'exact'))))
  header = ('Model', 'sacreBLEU', 'T2T BLEU', 'Speed-up', 'Mean block')
  notes = (*TABLE4_NOTES, SPEED_NOTE, *conditions_note(ours.values(), CONDITIONS))
  return Table('Blockwise parallel decoding, Table 4', header, tuple(rows), notes)


def _beside(bleu: str, speedup: str, paper_bleu: float | None, paper_speedup: float | None) -> tuple[Entry, Entry]:
  """The entries of BLEU and speed-up with the paper's, None where it has none."""
  theirs = (f'({paper_bleu:.2f})' if paper_bleu else '', f'({paper_speedup:.2f}×)' if paper_speedup else '')
  return Entry(bleu, theirs[0]), Entry(speedup, theirs[1])


def _accepting(cells: Iterable[BlockwiseCell]) -> dict[Key, BlockwiseCell]:
  """The cells of Table 1: beam search is Table 4's."""
  return {key: cell for key, cell in latest(cells).items() if not key[2].startswith('beam-')}


def _heading(regime: str, rule: str) -> str:
  name = REGIMES[regime] if rule == 'exact' else f'{REGIMES[regime]}, {rule}'
  return f'{name} †' if _is_footnoted(regime, rule) else name


def _is_footnoted(regime: str, rule: str) -> bool:
  """Whether the paper's figures of this column are of another way of training."""
  return regime == 'finetune' and rule.startswith('top-')


def _entry(found: Mapping[Key, BlockwiseCell], key: Key) -> Entry:
  k, regime, rule = key
  beside = published.TABLE1.get((k, 'both', rule) if _is_footnoted(regime, rule) else key)
  return Entry(_figures(found.get(key)), '' if beside is None else f'({beside[0]:.2f} / {beside[1]:.2f})')


def _figures(cell: BlockwiseCell | None) -> str:
  return outcome(cell, lambda found: f'{text(found.bleu, ".2f")} / {text(found.mean_block_size, ".2f")}')
