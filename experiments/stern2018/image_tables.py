"""Table 2 of Stern et al. 2018, super-resolution, from rows: our figures with the paper's, likeness
to the originals, distances, heads, and pictures."""

import itertools
import pathlib
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.lab.report import Column, Drawn, Table
from experiments.lab.rows import Row
from experiments.stern2018 import tables
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import Style

TAU = 2  # intensities: the paper's distance
COLUMNS = {  # of Table 2: (regime, rule) -> name
  ('regular', 'exact'): 'Regular',
  ('regular', 'distance-2'): 'Approximate',
  ('finetune', 'exact'): 'Fine tuning',
  ('finetune', 'distance-2'): 'Both',
}
FORECASTS = {  # only ours
  (tables.FORECAST, 'exact'): 'Forecast',
  (tables.FORECAST, 'distance-2'): 'Forecast, within 2',
  (tables.FITTED, 'exact'): 'Fitted',
  (tables.FITTED, 'distance-2'): 'Fitted, within 2',
}
# Table 2: CelebA from 8 x 8 to 32 x 32, development set. "Approximate" and "Both" accept up to a
# distance of 2.
_BY_COLUMN = {
  ('regular', 'exact'): {1: 1.00, 2: 1.07, 4: 1.08, 6: 1.09, 8: 1.09, 10: 1.10},
  ('regular', 'distance-2'): {2: 1.24, 4: 1.36, 6: 1.38, 8: 1.49, 10: 1.40},
  ('finetune', 'exact'): {2: 1.59, 4: 2.11, 6: 2.23, 8: 2.17, 10: 2.04},
  ('finetune', 'distance-2'): {2: 1.96, 4: 3.75, 6: 5.25, 8: 6.36, 10: 6.79},
}
PAPERS_TABLE2: dict[tables.Key, float] = {}
for (_regime, _rule), _blocks in _BY_COLUMN.items():
  for _k, _block in _blocks.items():
    PAPERS_TABLE2[_k, _regime, _rule] = _block


# --- notes

TABLE2_NOTE = (
  "Mean accepted block size; in parentheses or below, the paper's (CelebA, development set)."
  ' Approximate and Both accept intensities up to 2 away.'
)
FORECAST_NOTE = (
  "Forecast: without heads, the base's own linear forecast guesses, a weighted sum of the"
  ' intensities around; fitted: its weights are fitted by least squares to what the base writes for'
  ' small training images. Not in the paper.'
)
RULES_NOTE = (
  'distance-n: intensities up to n away from the most likely one are accepted. window-n: likewise,'
  ' and a guess is the middle of the 2n + 1 neighbouring intensities that are most likely together;'
  ' not in the paper.'
)
QUALITY_NOTE = (
  'PSNR (dB, of the mean squared error over all images) and SSIM (windows of 7 x 7) against the'
  ' originals; To greedy: PSNR against the greedy output of the same model. Bits: bits per'
  ' dimension of the originals.'
)


def bicubic_note(rows: Iterable[Row]) -> list[str]:
  """Returns a note with the PSNR of a bicubic enlargement of the same images, if rows have it."""
  figures = set()
  for row in rows:
    if row.get('bicubic_psnr') is not None:
      figures.add(row['bicubic_psnr'])
  if not figures:
    return []
  return [f"A bicubic enlargement's PSNR: {' or '.join(map('{:.2f}'.format, sorted(figures)))}."]


# --- tables


def table2(rows: Iterable[Row]) -> Drawn:
  """Mean accepted block sizes by k, in the paper's columns."""
  cells = {key: row for key, row in tables.by_key(rows).items() if key[1:] in COLUMNS | FORECASTS}
  headings, notes = name_columns(cells), [TABLE2_NOTE]
  if len(headings) > len(COLUMNS):
    notes.append(FORECAST_NOTE)
  notes += [*tables.own_note(cells.values()), *tables.heads_notes(cells.values())]
  columns = tables.beside_the_papers(cells, headings, tables.BLOCK, _of_table2)
  table = Table('Blockwise parallel decoding, Table 2', columns, notes, tables.CONDITIONS)
  return table.of(sorted({k for k, _, _ in cells}), cells=cells.values())


def name_columns(keys: Collection[tables.Key]) -> dict[tuple[str, str], str]:
  """Returns the names of the paper's columns, then of those of our forecasts that were run."""
  names = dict(COLUMNS)
  for column, name in FORECASTS.items():
    if any(key[1:] == column for key in keys):
      names[column] = name
  return names


def _of_table2(k: int, regime: str, rule: str) -> str:
  block = PAPERS_TABLE2.get((k, regime, rule))
  return '' if block is None else f'({block:.2f})'


def image_rows(rows: Sequence[Row]) -> Drawn:
  """Every row, with bits and likeness to the originals."""
  quality = (
    Column('Bits', 'bits_per_dimension', '.3f'),
    Column('PSNR', 'psnr', '.2f'),
    Column('SSIM', 'ssim', '.3f'),
    Column('To greedy', _to_greedy, '.2f'),
  )
  return tables.rows_table(rows, quality, (QUALITY_NOTE, RULES_NOTE, *bicubic_note(rows)))


def _to_greedy(row: Row) -> float | str | None:
  """PSNR against greedy. JSON has no infinity: where all outputs are equal, the file has None."""
  if row.get('psnr_to_greedy') is None and row.get('same_as_greedy') == 1:
    return '∞'
  return row.get('psnr_to_greedy')


TABLES = table2, image_rows, tables.heads_table


def distance(row: Row) -> int | None:
  """N for the rule 'distance-N', 0 for 'exact'; None for other rules, and for k = 1, which has
  no guesses."""
  name, _, number = row['rule'].partition('-')
  if name == 'exact' and row['k'] > 1:
    return 0
  if name == 'distance':
    return int(number)
  return None


# --- charts

Image = UInt8[np.ndarray, 'n h h 3']
COUNT = 8  # images of a sheet
TITLE = 19  # characters in a line of a sheet's title


def blocks(rows: Iterable[Row], path: pathlib.Path) -> None:
  """Draws Table 2, ours and the paper's: mean accepted block size against k.

  The last point of each line is labelled with its figure. 1800 x 900 pixels.
  """
  ours: dict[tables.Key, tuple[float, float]] = {}
  for row in tables.select_finished(rows):
    key = row['k'], row['regime'], row['rule']
    if key[1:] in COLUMNS | FORECASTS and row.get('mean_block_size') is not None:
      ours[key] = row['k'], row['mean_block_size']
  theirs = {key: (key[0], block) for key, block in PAPERS_TABLE2.items()}
  figure, (left, right) = drawing.panels(2, sharex=True, sharey=True)
  drawing.dress(left, 'Ours', drawing.BLOCKS, 'k')
  drawing.dress(right, 'Stern et al. 2018, Table 2 (CelebA, dev)', drawing.BLOCKS, 'k')
  for axes, points in ((left, ours), (right, theirs)):
    tables.curves(axes, points, name_columns(ours))
    axes.set_xticks(sorted({k for k, _, _ in (*ours, *theirs)}))
    axes.tick_params(labelleft=True)  # the axes share a scale, not its figures
  drawing.legend(figure, 4)
  for axes, points in ((left, ours), (right, theirs)):
    last: dict[Any, tuple[float, float]] = {}
    for key, point in sorted(points.items()):
      last[key[1:]] = point
    for (regime, _), point in last.items():
      drawing.name_point(axes, f'{point[1]:.2f}', point, tables.COLOURS[regime])
  drawing.save(figure, path)


def tau_sweep(rows: Iterable[Row], path: pathlib.Path) -> None:
  """Draws block size and PSNR against the distance accepted, in 1800 x 900 pixels.

  A line is a regime and k. It shows those with other distances than Table 2 has, or all if
  there are none.
  """
  lines: dict[tuple[str, int], list[Row]] = {}
  for row in tables.select_finished(rows):
    if distance(row) is not None:
      lines.setdefault((row['regime'], row['k']), []).append(row)
  longer = [line for line in lines.values() if len(line) > 2]
  swept = [*itertools.chain(*longer or lines.values())]
  figure, (left, right) = drawing.panels(2)
  _tau_panel(left, swept, 'mean_block_size', drawing.BLOCKS)
  _tau_panel(right, swept, 'psnr', 'PSNR against the originals (dB)')
  drawing.legend(figure, 4)
  drawing.save(figure, path)


def _tau_panel(axes: Axes, rows: Sequence[Row], name: str, meaning: str) -> None:
  drawing.dress(axes, '', meaning, 'distance τ that is accepted')
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  if not rows:
    axes.set(xticks=(), yticks=())
    drawing.mark_empty(axes)
  lines: dict[tuple[str, int], list[tuple[float, float]]] = {}
  for row in rows:
    points, tau = lines.setdefault((row['regime'], row['k']), []), distance(row)
    if tau is not None and row.get(name) is not None:
      points.append((tau, row[name]))
  ks = sorted({k for _, k in lines})
  for (regime, k), points in lines.items():
    style = Style(tables.COLOURS[regime], drawing.MARKERS[ks.index(k) % len(drawing.MARKERS)])
    drawing.curve(axes, sorted(points), style, f'{tables.REGIMES[regime]}, k = {k}')


# --- pictures


def samples(
  images: pathlib.Path, split: str, k: int, rows: Iterable[Row], root: pathlib.Path
) -> None:
  """Draws <root>/samples.png, images of a split as on the paper's last page, by models of a k.

  Draws nothing if the base's images are missing in the folder `images`, or all others. Images by
  models that no row has, of an earlier config, are left out.
  """
  names = {
    'finetune': 'fine-tuned',
    tables.FORECAST: 'by forecast',
    tables.FITTED: 'by a fitted forecast',
  }
  by_cell = tables.by_key(rows)

  def load_images(*key: Any) -> Any:
    """The images of a row; None if a model of another content wrote the file, or none did."""
    path = images / f'{split}-k{"-".join(map(str, key))}.npz'
    if not path.is_file():
      return None
    arrays = np.load(path)
    wanted = by_cell.get(key, {}).get('models')
    if 'models' not in arrays or arrays['models'].tobytes().hex() != wanted:
      return None
    return arrays

  plain, columns = load_images(1, 'regular', 'exact'), {}
  (root / 'samples.png').unlink(missing_ok=True)
  for regime, name in names.items():
    tuned = load_images(k, regime, 'distance-2')
    if tuned is not None and plain is not None and np.array_equal(tuned['input'], plain['input']):
      columns[f'k = {k}, {name}, within {TAU}'] = tuned['output']
  if plain is None or not columns:
    return
  columns = {'input': plain['input'], 'greedy': plain['output'], **columns}
  sheet({**columns, 'original': plain['original']}, root / 'samples.png')


def sheet(columns: Mapping[str, Image], path: pathlib.Path) -> None:
  """Draws a column of images under each title, a row for each face, without smoothing."""
  count = min(COUNT, *map(len, columns.values()))
  size = 1.4 * len(columns), 1.4 * count + 0.4
  figure = Figure(size, drawing.DPI, layout='constrained')
  panels = figure.subplots(count, len(columns), squeeze=False)
  for (title, images), column in zip(columns.items(), panels.T, strict=True):
    column[0].set_title(textwrap.fill(title, TITLE), fontsize=8)
    for axes, image in zip(column, images[:count], strict=True):
      axes.imshow(image, interpolation='nearest')
      axes.axis('off')
  drawing.save(figure, path)
