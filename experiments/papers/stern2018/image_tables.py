"""Table 2 of Stern et al. 2018, image super-resolution, from measured cells, and what the paper
does not give."""

import dataclasses
import math
from collections.abc import Iterable

from experiments.lab.cells import latest
from experiments.lab.report import Column, Drawn, Table
from experiments.papers.stern2018.cells import FITTED, FORECAST, REGIMES, UNTRAINED, BlockwiseCell
from experiments.papers.stern2018.entries import (
  CONDITIONS,
  ROUNDS_NOTE,
  SAME,
  SAME_NOTE,
  SPEED_NOTE,
  SPEED_UP,
  TOP_1_ORIGINALS,
  TOP_1_OWN_IMAGES,
  TRAINING,
  K,
  heads_note,
  in_order,
  one_run_note,
)
from experiments.stern2018 import published

# The columns of Table 2, (regime, rule) -> name.
COLUMNS = {
  ('regular', 'exact'): 'Regular',
  ('regular', 'distance-2'): 'Approximate',
  ('finetune', 'exact'): 'Fine tuning',
  ('finetune', 'distance-2'): 'Both',
}
FORECASTS = {  # ours alone
  (FORECAST, 'exact'): 'Forecast',
  (FORECAST, 'distance-2'): 'Forecast, within 2',
  (FITTED, 'exact'): 'Fitted',
  (FITTED, 'distance-2'): 'Fitted, within 2',
}
CENTRED = {
  ('regular', 'window-2'): 'Approximate, centred',
  ('finetune', 'window-2'): 'Both, centred',
}
PUBLISHED = {key: (None, block) for key, block in published.TABLE2.items()}  # for `entries.write`

TABLE2_NOTE = (
  "Mean accepted block size; in parentheses or below, the paper's (CelebA, development set)."
  ' Approximate and Both'
  ' accept intensities up to 2 away.'
)
FORECAST_NOTE = (
  "Forecast: without heads, the base's own linear forecast guesses, a weighted sum of the"
  ' intensities around; fitted:'
  ' with weights by least squares on what the base writes of small training images. Not in the'
  ' paper.'
)
CENTRED_NOTE = (
  'Centred: a guess is the middle of the five intensities that are likeliest'
  ' together;'
  ' not in the paper.'
)
HEADS_NOTE = (
  'Top-1: how often each head names the intensity that comes, in originals of the dev set and in'
  ' what the model itself'
  ' writes, which is what it has to guess; at most 32 images of each.'
)
OWN_NOTE = (
  'Heads, and in fine tuning the base with them, are trained on what the base writes of the small'
  ' training images; not'
  ' in the paper.'
)
QUALITY_NOTE = (
  'PSNR (dB, of the mean squared error over all images) and SSIM (windows of 7 x 7) against the'
  ' originals; To greedy:'
  ' PSNR against the greedy output of the same model. Bits: bits per dimension of the originals.'
)
TAU_NOTE = 'Accepted: intensities up to τ away from the most likely one.'


def table2(cells: Iterable[BlockwiseCell]) -> Drawn:
  """Mean accepted block sizes by k, in the paper's columns."""
  found = {key: cell for key, cell in latest(cells).items() if key[1:] in COLUMNS | FORECASTS}
  ours = {
    column: name for column, name in FORECASTS.items() if any(key[1:] == column for key in found)
  }

  def block_sizes(name: str, column: tuple[str, str]) -> Column:
    def theirs(k: int) -> str:
      block = published.TABLE2.get((k, *column))
      return '' if block is None else f'({block:.2f})'

    return Column(
      name, 'mean_block_size', '.2f', beside=theirs, cell=lambda k: found.get((k, *column))
    )

  columns = [
    Column('k', str, names_row=True),
    *(block_sizes(name, column) for column, name in (COLUMNS | ours).items()),
  ]
  notes = (
    TABLE2_NOTE,
    *[FORECAST_NOTE] * bool(ours),
    *own_note(found.values()),
    *heads_note(found.values()),
    *one_run_note(found.values()),
  )
  table = Table('Blockwise parallel decoding, Table 2', columns, notes, CONDITIONS)
  return table.of(sorted({k for k, _, _ in found}), cells=found.values())


def distance(cell: BlockwiseCell) -> int | None:
  """N of the rule 'distance-N', 0 of 'exact'; None of other rules, and where there is nothing to
  accept."""
  name, _, number = cell.rule.partition('-')
  if name == 'exact' and cell.k > 1:
    return 0
  return int(number) if name == 'distance' else None


def _to_greedy(cell: BlockwiseCell) -> float | str | None:
  """PSNR against greedy. A file holds no infinity, so that is told by the share of equal
  outputs."""
  is_infinite = cell.psnr_to_greedy == math.inf or (
    cell.psnr_to_greedy is None and cell.same_as_greedy == 1
  )
  return '∞' if is_infinite else cell.psnr_to_greedy


def _name(cell: BlockwiseCell) -> str:
  """What the cell's column of Table 2 is called, or would be."""
  return (COLUMNS | CENTRED | FORECASTS).get(cell.key[1:], f'{REGIMES[cell.regime]}, {cell.rule}')


BLOCK = Column('Block', 'mean_block_size', '.2f')
LIKENESS = (
  Column('PSNR', 'psnr', '.2f'),
  Column('SSIM', 'ssim', '.3f'),
  Column('To greedy', _to_greedy, '.2f'),
)
QUALITY = Table(
  'Quality, speed and heads',
  (
    K,
    Column('Cell', _name, names_row=True),
    BLOCK,
    SPEED_UP,
    Column('Bits', 'bits_per_dimension', '.3f'),
    *LIKENESS,
    SAME,
  ),
  (QUALITY_NOTE, SPEED_NOTE, ROUNDS_NOTE, SAME_NOTE),
)
HEADS = Table('Heads', (K, TRAINING, TOP_1_ORIGINALS, TOP_1_OWN_IMAGES), (HEADS_NOTE,))
DISTANCES = Table(
  'Distance accepted',
  (K, TRAINING, Column('τ', distance, names_row=True), BLOCK, *LIKENESS),
  (TAU_NOTE, QUALITY_NOTE),
)


def quality_table(cells: Iterable[BlockwiseCell]) -> Drawn:
  """Block size, speed-up and quality of every finished cell, except cells of other distances than
  Table 2's."""
  shown = in_order(
    cell for cell in _finished(cells) if cell.rule == 'exact' or distance(cell) in (None, 2)
  )
  centred = [CENTRED_NOTE] * any(cell.key[1:] in CENTRED for cell in shown)
  forecast = [FORECAST_NOTE] * any(cell.regime in UNTRAINED for cell in shown)
  notes = (*own_note(shown), *centred, *forecast, *bicubic_note(shown), *QUALITY.notes)
  return dataclasses.replace(QUALITY, notes=notes).of(shown)


def own_note(cells: Iterable[BlockwiseCell]) -> list[str]:
  """Where heads have learnt from the base's own images, that they have."""
  return [OWN_NOTE] * any(cell.conditions.get('heads_text') == 'own' for cell in cells)


def bicubic_note(cells: Iterable[BlockwiseCell]) -> list[str]:
  """What a bicubic enlargement of the same images comes to."""
  found = {cell.bicubic_psnr for cell in cells if cell.bicubic_psnr is not None}
  return (
    [f"A bicubic enlargement's PSNR: {' or '.join(f'{one:.2f}' for one in sorted(found))}."]
    if found
    else []
  )


def tau_table(cells: Iterable[BlockwiseCell]) -> Drawn:
  """Block size and quality against the distance accepted, for each regime and k."""
  return DISTANCES.of(in_order(cell for cell in _finished(cells) if distance(cell) is not None))


def heads_table(cells: Iterable[BlockwiseCell]) -> Drawn:
  """How often each head is right, of every finished model with heads."""
  trained = [cell for cell in _finished(cells) if cell.k > 1 and cell.regime not in UNTRAINED]
  shown = in_order(cell for cell in trained if cell.rule == 'exact')
  return dataclasses.replace(HEADS, notes=(*own_note(shown), *HEADS.notes)).of(shown)


def _finished(cells: Iterable[BlockwiseCell]) -> list[BlockwiseCell]:
  return [cell for cell in latest(cells).values() if cell.error is None]
