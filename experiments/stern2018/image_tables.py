"""Table 2 of Stern et al. 2018, super-resolution, from rows: its figures beside ours, likeness to
the originals, distances, heads, and pictures."""

import collections
import dataclasses
import pathlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Int, UInt8
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.lab.report import Column, Drawn, Table
from experiments.lab.rows import Row
from experiments.stern2018 import published
from experiments.stern2018.tables import (
  COLOURS,
  CONDITIONS,
  FITTED,
  FORECAST,
  REGIMES,
  SAME,
  SPEED_UP,
  TRAINING,
  UNTRAINED,
  WALL_CLOCK_NOTES,
  K,
  Key,
  by_key,
  finished,
  heads_notes,
  own_note,
  style,
  top_1,
)
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import COLOURS as CALL_COLOURS
from fastdec.evaluation.drawing import Style
from fastdec.evaluation.labels import Label, place

TAU = 2  # intensities: the paper's distance
COLUMNS = {  # of Table 2: (regime, rule) -> name
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
PUBLISHED = {key: (None, block) for key, block in published.TABLE2.items()}


# --- notes

TABLE2_NOTE = (
  "Mean accepted block size; in parentheses or below, the paper's (CelebA, development set)."
  ' Approximate and Both accept intensities up to 2 away.'
)
FORECAST_NOTE = (
  "Forecast: without heads, the base's own linear forecast guesses, a weighted sum of the"
  ' intensities around; fitted: with weights by least squares on what the base writes of small'
  ' training images. Not in the paper.'
)
CENTRED_NOTE = (
  'Centred: a guess is the middle of the five intensities that are likeliest together;'
  ' not in the paper.'
)
HEADS_NOTE = (
  'Top-1: how often each head names the intensity that comes, in originals of the dev set and in'
  ' what the model itself writes, which is what it has to guess; at most 32 images of each.'
)
OWN_NOTE = (
  'Heads, and in fine tuning the base with them, are trained on what the base writes of the small'
  ' training images; not in the paper.'
)
QUALITY_NOTE = (
  'PSNR (dB, of the mean squared error over all images) and SSIM (windows of 7 x 7) against the'
  ' originals; To greedy: PSNR against the greedy output of the same model. Bits: bits per'
  ' dimension of the originals.'
)
TAU_NOTE = 'Accepted: intensities up to τ away from the most likely one.'


def bicubic_note(rows: Iterable[Row]) -> list[str]:
  """Says what a bicubic enlargement of the same images comes to."""
  found = sorted({row['bicubic_psnr'] for row in rows if row.get('bicubic_psnr') is not None})
  shown = ' or '.join(f'{one:.2f}' for one in found)
  return [f"A bicubic enlargement's PSNR: {shown}."] if found else []


# --- tables


def table2(rows: Iterable[Row]) -> Drawn:
  """Mean accepted block sizes by k, in the paper's columns."""
  found = {key: row for key, row in by_key(rows).items() if key[1:] in COLUMNS | FORECASTS}
  run = {key[1:] for key in found}
  ours = {column: name for column, name in FORECASTS.items() if column in run}

  def block_sizes(name: str, column: tuple[str, str]) -> Column:
    def theirs(k: int) -> str:
      block = published.TABLE2.get((k, *column))
      return '' if block is None else f'({block:.2f})'

    def cell(k: int) -> Row | None:
      return found.get((k, *column))

    return Column(name, 'mean_block_size', '.2f', beside=theirs, cell=cell)

  columns = [Column('k', str, names_row=True)]
  columns += [block_sizes(name, column) for column, name in (COLUMNS | ours).items()]
  shown = found.values()
  notes = (
    TABLE2_NOTE,
    *[FORECAST_NOTE] * bool(ours),
    *own_note(shown, OWN_NOTE),
    *heads_notes(shown),
  )
  table = Table('Blockwise parallel decoding, Table 2', columns, notes, CONDITIONS)
  return table.of(sorted({k for k, _, _ in found}), cells=shown)


def quality_table(rows: Iterable[Row]) -> Drawn:
  """Block size, speed-up and quality of every finished row, but for other distances than Table
  2's."""
  shown = []
  for row in finished(rows):
    if row['rule'] == 'exact' or distance(row) in (None, TAU):
      shown.append(row)
  centred = [CENTRED_NOTE] * any(_series(row) in CENTRED for row in shown)
  forecast = [FORECAST_NOTE] * any(row['regime'] in UNTRAINED for row in shown)
  notes = (*own_note(shown, OWN_NOTE), *centred, *forecast, *bicubic_note(shown), *QUALITY.notes)
  return dataclasses.replace(QUALITY, notes=notes).of(shown)


def tau_table(rows: Iterable[Row]) -> Drawn:
  """Block size and quality against the distance accepted, for each regime and k."""
  return DISTANCES.of([row for row in finished(rows) if distance(row) is not None])


def heads_table(rows: Iterable[Row]) -> Drawn:
  """Shares of right guesses by each head, of every finished model with heads."""
  shown = []
  for row in finished(rows):
    if row['k'] > 1 and row['regime'] not in UNTRAINED and row['rule'] == 'exact':
      shown.append(row)
  return dataclasses.replace(HEADS, notes=(*own_note(shown, OWN_NOTE), *HEADS.notes)).of(shown)


def distance(row: Row) -> int | None:
  """N of the rule 'distance-N', 0 of 'exact'; None of others, and where there is nothing to
  accept."""
  name, _, number = row['rule'].partition('-')
  if name == 'exact' and row['k'] > 1:
    return 0
  return int(number) if name == 'distance' else None


def _series(row: Row) -> tuple[str, str]:
  return row['regime'], row['rule']


def _name(row: Row) -> str:
  """The heading of the row's column of Table 2, or the one that it would have."""
  names = COLUMNS | CENTRED | FORECASTS
  return names.get(_series(row), f'{REGIMES[row["regime"]]}, {row["rule"]}')


def _to_greedy(row: Row) -> float | str | None:
  """PSNR against greedy. A file holds no infinity, so that is told by the share of equal
  outputs."""
  if row.get('psnr_to_greedy') is None and row.get('same_as_greedy') == 1:
    return '∞'
  return row.get('psnr_to_greedy')


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
  (QUALITY_NOTE, *WALL_CLOCK_NOTES[:3]),
)
HEADS = Table(
  'Heads',
  (
    K,
    TRAINING,
    top_1('Top-1 % of p1 .. pk, originals', 'head_accuracy'),
    top_1('own images', 'own_accuracy'),
  ),
  (HEADS_NOTE,),
)
DISTANCES = Table(
  'Distance accepted',
  (K, TRAINING, Column('τ', distance, names_row=True), BLOCK, *LIKENESS),
  (TAU_NOTE, QUALITY_NOTE),
)


TABLES = table2, quality_table, tau_table, heads_table


# --- charts

Image = UInt8[np.ndarray, 'n h h 3']
COUNT = 8  # images of a sheet
TITLE = 19  # characters in a line of a sheet's title
PROMPT_COLOUR, PALE = '#BBBBBB', 0.7  # 1: the colours of calls as they are, 0: white


def blocks(rows: Iterable[Row], path: pathlib.Path) -> None:
  """Draws Table 2, ours and the paper's: mean accepted block size against k.

  The last point of each line has its figure beside it. 1800 x 900 pixels.
  """
  ours: dict[Key, float] = {}
  for row in finished(rows):
    if _series(row) in COLUMNS | FORECASTS and row.get('mean_block_size') is not None:
      ours[row['k'], *_series(row)] = row['mean_block_size']
  figure, panels = drawing.panels(2, sharex=True, sharey=True)
  sides: dict[str, Mapping[Key, float]]
  sides = {'Ours': ours, 'Stern et al. 2018, Table 2 (CelebA, dev)': published.TABLE2}
  for axes, (title, points) in zip(panels, sides.items(), strict=True):
    drawing.dress(axes, title, drawing.BLOCKS, 'k')
    for column, name in (COLUMNS | FORECASTS).items():
      line = sorted((k, block) for (k, *series), block in points.items() if tuple(series) == column)
      if line or column in COLUMNS:  # the paper's are named even where nothing is measured yet
        drawing.curve(axes, line, style(*column), name)
    if not points:
      drawing.nothing_yet(axes)
    axes.set_xticks(sorted({k for found in sides.values() for k, _, _ in found}))
    axes.tick_params(labelleft=True)  # the axes share a scale, not its figures
  drawing.legend(figure, 4)
  for axes, points in zip(panels, sides.values(), strict=True):
    last = {(regime, rule): (k, block) for (k, regime, rule), block in sorted(points.items())}
    labels = [Label(f'{block:.2f}', k, block, COLOURS[one[0]]) for one, (k, block) in last.items()]
    place(axes, labels)
  drawing.save(figure, path)


def tau_sweep(rows: Iterable[Row], path: pathlib.Path) -> None:
  """Draws block size and PSNR against the distance accepted, in 1800 x 900 pixels.

  A line is a regime and k: those with distances between and beyond the columns of Table 2, or all
  if none has.
  """
  found = [row for row in finished(rows) if distance(row) is not None]
  counts = collections.Counter((row['regime'], row['k']) for row in found)
  found = [row for row in found if counts[row['regime'], row['k']] > 2] or found
  figure, (left, right) = drawing.panels(2)
  _tau_panel(left, found, 'mean_block_size', drawing.BLOCKS)
  _tau_panel(right, found, 'psnr', 'PSNR against the originals (dB)')
  drawing.legend(figure, 4)
  drawing.save(figure, path)


def _tau_panel(axes: Axes, found: Sequence[Row], name: str, meaning: str) -> None:
  drawing.dress(axes, '', meaning, 'distance τ that is accepted')
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  if not found:
    axes.set(xticks=(), yticks=())
    drawing.nothing_yet(axes)
  lines: dict[tuple[str, int], list[tuple[float, float]]] = {}
  for row in found:
    points, tau = lines.setdefault((row['regime'], row['k']), []), distance(row)
    if tau is not None and row.get(name) is not None:
      points.append((tau, row[name]))
  ks = sorted({k for _, k in lines})
  for (regime, k), points in lines.items():
    style = Style(COLOURS[regime], drawing.MARKERS[ks.index(k) % len(drawing.MARKERS)])
    drawing.curve(axes, sorted(points), style, f'{REGIMES[regime]}, k = {k}')


# --- pictures


def samples(
  images: pathlib.Path, split: str, k: int, rows: Iterable[Row], root: pathlib.Path
) -> None:
  """Draws samples.png, images as on the paper's last page, and calls.png, the calls of one.

  Nothing is drawn where the base's images lack, or all others.

  Args:
    images: the folder with what each row made.
    split: whose images.
    k: of the columns.
    rows: those of the tables; images of other models, by another config, are not shown.
    root: the folder for the pictures.
  """
  names = {'finetune': 'fine-tuned', FORECAST: 'by forecast', FITTED: 'by a fitted forecast'}
  models = {key: row.get('models') for key, row in by_key(rows).items()}

  def made_by(*key: Any) -> Any:
    path = images / f'{split}-k{"-".join(map(str, key))}.npz'
    made = np.load(path) if path.is_file() else {}
    is_of_row = 'models' in made and made['models'].tobytes().hex() == models.get(key)
    return made if is_of_row else None

  plain, columns = made_by(1, 'regular', 'exact'), {}
  for name in ('samples.png', 'calls.png'):
    (root / name).unlink(missing_ok=True)
  for regime, name in names.items():
    made = made_by(k, regime, 'distance-2')
    if made is not None and plain is not None and np.array_equal(made['input'], plain['input']):
      columns[f'k = {k}, {name}, within {TAU}'] = made['output']
      block_map(made['output'][0], made['block_sizes'][0], root / 'calls.png')
  if plain is None or not columns:
    return
  columns = {'input': plain['input'], 'greedy': plain['output'], **columns}
  sheet({**columns, 'original': plain['original']}, root / 'samples.png')


def sheet(columns: Mapping[str, Image], path: pathlib.Path) -> None:
  """Draws columns of images by their titles, a row a face; nothing is smoothed."""
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


def block_map(
  image: UInt8[np.ndarray, 'h w 3'], block_sizes: Int[np.ndarray, ' t'], path: pathlib.Path
) -> None:
  """Draws which call wrote what: the picture, its calls, and the sizes of their blocks.

  Each pixel is drawn as its three tokens side by side, red, green and blue. A call has another
  colour than the call before. The first token, from the prompt, is grey. 1800 x 640 pixels.

  Args:
    image: the picture.
    block_sizes: tokens that each call wrote (raster scan; red, green and blue of a pixel in turn),
      0 after the last.
    path: the file.
  """
  height, width, _ = image.shape
  sizes_c = block_sizes[block_sizes > 0]
  calls = np.repeat(np.arange(len(sizes_c) + 1), [1, *sizes_c]).reshape(height, -1)
  colours = 1 - PALE + PALE * np.array([to_rgb(name) for name in (*CALL_COLOURS, PROMPT_COLOUR)])
  colour = np.where(calls == 0, len(CALL_COLOURS), calls % len(CALL_COLOURS))
  heat = np.ma.masked_equal(np.array([0, *sizes_c])[calls], 0)
  figure = Figure(figsize=(12, 4.27), dpi=150, layout='constrained')
  panels = figure.subplots(1, 3)
  mean = f'{sizes_c.mean():.2f} a call'
  figure.suptitle(f'{len(sizes_c):,} calls for {image.size:,} tokens, {mean}', fontsize=11)
  most = int(sizes_c.max())
  cmap = matplotlib.colormaps['viridis'].resampled(most).with_extremes(bad=PROMPT_COLOUR)
  look: Any = {'interpolation': 'nearest', 'cmap': cmap, 'vmin': 0.5, 'vmax': most + 0.5}
  titles = ('the picture', 'a colour for each call', 'tokens written by the call')
  for axes, pixels, title in zip(panels, (image, colours[colour], heat), titles, strict=True):
    drawn = axes.imshow(pixels, extent=(0, width, height, 0), **look)
    axes.set_title(title, fontsize=10)
    axes.axis('off')
  figure.colorbar(drawn, ax=panels, ticks=MaxNLocator(10, integer=True), shrink=0.8, pad=0.01)
  drawing.save(figure, path)
