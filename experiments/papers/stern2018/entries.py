"""What the tables of text and of images have in common: columns, the order of regimes and rules,
conditions, files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.lab import report
from experiments.lab.cells import field_names, flat, latest
from experiments.lab.report import Column, between
from experiments.lab.settings import TUNED
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell, Key
from fastdec.files import write_text

Published = Mapping[Key, tuple[float | None, float]]  # BLEU and mean accepted block size in a paper
SPEED_NOTE = (
  'One output at a time (batch 1), in turn with greedy decoding by the same model:'
  ' median ratio of rounds.'
)
ROUNDS_NOTE = 'In parentheses or below the speed-up, the least and the largest ratio of rounds.'
SAME_NOTE = 'Same: outputs that are those of greedy decoding with the same model.'
CONDITIONS = (
  'bleu_signature',
  'compound_bleu_signature',
  'split',
  'outputs',
  'config',
  'seed',
  'dtype',
  'batch',
  'device',
  'processor',
  'cpus',
  'commit',
)


def _top_1(heading: str, field: str) -> Column:
  """How often each head is right, per cent; it does not depend on the rule, so it stands with the
  exact one alone."""

  def shares(cell: BlockwiseCell) -> str:
    accuracy = getattr(cell, field) if cell.rule == 'exact' else ()
    return ' '.join(
      report.text(None if share is None else 100 * share, '.0f') for share in accuracy
    )

  return Column(heading, shares)


K = Column('k', 'k', names_row=True)
TRAINING = Column('Training', lambda cell: REGIMES[cell.regime], names_row=True)
SPEED_UP = Column('Speed-up', 'speedup', '.2f', '×', beside=lambda cell: between(cell.spread))
SAME = Column('Same %', 'same_as_greedy', '.1f', scale=100)
TOP_1 = _top_1('Top-1 % of p1 .. pk, references', 'head_accuracy')
TOP_1_OWN = _top_1('own text', 'own_accuracy')
TOP_1_ORIGINALS = _top_1('Top-1 % of p1 .. pk, originals', 'head_accuracy')
TOP_1_OWN_IMAGES = _top_1('own images', 'own_accuracy')
TOP_1_NOTE = (
  "Top-1: how often each head names the next token, of people's references on the dev set and of"
  " the model's own greedy"
  ' text, which is what it has to guess.'
)


def in_order(cells: Iterable[BlockwiseCell]) -> list[BlockwiseCell]:
  """By regime, k and rule."""
  return sorted(cells, key=lambda cell: (list(REGIMES).index(cell.regime), cell.k, rank(cell.rule)))


def heads_note(cells: Iterable[BlockwiseCell]) -> list[str]:
  """What heads see beside what the paper's do."""
  seen = {str(cell.conditions['heads_see']) for cell in cells if 'heads_see' in cell.conditions}
  return [f"Heads see {one}, too; the paper's see a hidden state alone." for one in sorted(seen)]


def one_run_note(cells: Iterable[BlockwiseCell]) -> list[str]:
  """Which regimes that train the base too have one model for several k; nothing where each k has
  its own."""
  ks: dict[tuple[str, str], set[int]] = {}
  for cell in cells:
    if cell.regime in TUNED and cell.models:
      ks.setdefault((cell.regime, cell.models), set()).add(cell.k)
  shared = [
    f'{REGIMES[regime]}, k = {", ".join(map(str, sorted(found)))}'
    for (regime, _), found in ks.items()
    if len(found) > 1
  ]
  return [
    f'One model, decoded with its first heads, is behind {one}; the paper trains one for each k.'
    for one in shared
  ]


def regimes(found: Iterable[Key]) -> list[str]:
  """Those that were run, in the paper's order."""
  run = {regime for _, regime, _ in found}
  return [regime for regime in REGIMES if regime in run]


def rank(rule: str) -> tuple[bool, str, int]:
  """Order of rules: exact, distance-0, distance-2, min-2, min-3, top-2, top-3, tree-8."""
  name, _, number = rule.partition('-')
  return name != 'exact', name, int(number or 0)


def tidy_csv(cells: Iterable[BlockwiseCell], published: Published) -> str:
  """One line a cell, its conditions and the paper's figures included; without the columns that no
  cell has."""
  rows = []
  for key, cell in latest(cells).items():
    bleu, block = published.get(key, (None, None))
    accuracy = {
      'head_accuracy': _shares(cell.head_accuracy),
      'own_accuracy': _shares(cell.own_accuracy),
    }
    rows.append(flat(cell) | accuracy | {'paper_bleu': bleu, 'paper_mean_block_size': block})
  return report.csv_text(rows, (*field_names(BlockwiseCell), 'paper_bleu', 'paper_mean_block_size'))


def _shares(accuracy: Iterable[float | None]) -> str | None:
  return ' '.join(report.text(share, '.4f') for share in accuracy) or None


def write(
  tables: Iterable[report.Drawn],
  cells: Sequence[BlockwiseCell],
  stem: Path,
  picture: str,
  published: Published,
) -> None:
  """Writes the tables to <stem>.md, which shows a picture beside it (see `figures`), and the cells
  to <stem>.csv."""
  page = '\n'.join(map(report.markdown, tables)) + f'\n![The same as a picture]({picture})\n'
  write_text(stem.with_name(f'{stem.name}.md'), page)
  write_text(stem.with_name(f'{stem.name}.csv'), tidy_csv(cells, published))
