"""Table 2 of Stern et al. 2018, image super-resolution, from measured cells, and what the paper does not give."""

import math
from collections.abc import Iterable

from experiments.lab.cells import conditions_note, latest
from experiments.lab.report import Entry, Table, text
from experiments.papers.stern2018 import published
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell
from experiments.papers.stern2018.entries import CONDITIONS, SAME_NOTE, SPEED_NOTE, in_order, outcome

# The columns of Table 2, (regime, rule) -> name.
COLUMNS = {
  ('regular', 'exact'): 'Regular',
  ('regular', 'distance-2'): 'Approximate',
  ('finetune', 'exact'): 'Fine tuning',
  ('finetune', 'distance-2'): 'Both',
}
PUBLISHED = {key: (None, block) for key, block in published.TABLE2.items()}  # for `entries.write`

TABLE2_NOTE = (
  "Mean accepted block size; in parentheses or below, the paper's (CelebA, development set). Approximate and Both"
  ' accept intensities up to 2 away.'
)
HEADS_NOTE = 'Top-1: how often each head is right, given the originals; it does not depend on the rule.'
QUALITY_NOTE = (
  'PSNR (dB, of the mean squared error over all images) and SSIM (windows of 7 x 7) against the originals; To greedy:'
  ' PSNR against the greedy output of the same model. Bits: bits per dimension of the originals.'
)
TAU_NOTE = 'Accepted: intensities up to τ away from the most likely one.'


def table2(cells: Iterable[BlockwiseCell]) -> Table:
  """Mean accepted block sizes by k, in the paper's columns."""
  found = {key: cell for key, cell in latest(cells).items() if key[1:] in COLUMNS}
  rows = []
  for k in sorted({k for k, _, _ in found}):
    keys = [(k, *column) for column in COLUMNS]
    blocks = [outcome(found.get(key), lambda cell: text(cell.mean_block_size, '.2f')) for key in keys]
    theirs = [f'({published.TABLE2[key]:.2f})' if key in published.TABLE2 else '' for key in keys]
    rows.append((Entry(str(k)), *map(Entry, blocks, theirs)))
  notes = (TABLE2_NOTE, *conditions_note(found.values(), CONDITIONS))
  return Table('Blockwise parallel decoding, Table 2', ('k', *COLUMNS.values()), tuple(rows), notes)


def quality_table(cells: Iterable[BlockwiseCell]) -> Table:
  """Block size, speed-up and quality of every finished cell but those of other distances than Table 2's."""
  shown = [cell for cell in _finished(cells) if cell.rule == 'exact' or distance(cell) in (None, 2)]
  rows = []
  for cell in in_order(shown):
    accuracy = cell.head_accuracy if cell.rule == 'exact' else ()
    same = text(cell.same_as_greedy and 100 * cell.same_as_greedy, '.1f')
    name = COLUMNS.get(cell.key[1:], f'{REGIMES[cell.regime]}, {cell.rule}')
    rows.append(
      tuple(
        map(
          Entry,
          (
            str(cell.k),
            name,
            text(cell.mean_block_size, '.2f'),
            text(cell.speedup, '.2f', '×'),
            text(cell.bits_per_dimension, '.3f'),
            *_quality(cell),
            same,
            ' '.join(text(a and 100 * a, '.0f') for a in accuracy),
          ),
        )
      )
    )
  header = ('k', 'Cell', 'Block', 'Speed', 'Bits', 'PSNR', 'SSIM', 'To greedy', 'Same %', 'Top-1 % of p1 .. pk')
  return Table('Quality, speed and heads', header, tuple(rows), (QUALITY_NOTE, SPEED_NOTE, SAME_NOTE, HEADS_NOTE))


def tau_table(cells: Iterable[BlockwiseCell]) -> Table:
  """Block size and quality against the distance accepted, for each regime and k."""
  sweep = [cell for cell in _finished(cells) if distance(cell) is not None]
  rows = [
    tuple(
      map(
        Entry,
        (str(cell.k), REGIMES[cell.regime], str(distance(cell)), text(cell.mean_block_size, '.2f'), *_quality(cell)),
      )
    )
    for cell in in_order(sweep)
  ]
  header = ('k', 'Training', 'τ', 'Block', 'PSNR', 'SSIM', 'To greedy')
  return Table('Distance accepted', header, tuple(rows), (TAU_NOTE, QUALITY_NOTE))


def distance(cell: BlockwiseCell) -> int | None:
  """N of the rule 'distance-N', 0 of 'exact'; None of other rules, and where there is nothing to accept."""
  name, _, number = cell.rule.partition('-')
  if name == 'exact' and cell.k > 1:
    return 0
  return int(number) if name == 'distance' else None


def _finished(cells: Iterable[BlockwiseCell]) -> list[BlockwiseCell]:
  return [cell for cell in latest(cells).values() if cell.error is None]


def _quality(cell: BlockwiseCell) -> tuple[str, str, str]:
  """PSNR, SSIM and PSNR to greedy; a file has no infinity, so that is told by the share of equal outputs."""
  infinite = cell.psnr_to_greedy == math.inf or (cell.psnr_to_greedy is None and cell.same_as_greedy == 1)
  to_greedy = '∞' if infinite else text(cell.psnr_to_greedy, '.2f')
  return text(cell.psnr, '.2f'), text(cell.ssim, '.3f'), to_greedy
