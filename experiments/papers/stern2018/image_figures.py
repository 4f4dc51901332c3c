"""Pictures of image super-resolution: block sizes (Table 2), the sweep over distances, images, what
each call wrote."""

import collections
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Array, Int, Shaped, UInt8
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.lab.cells import latest
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell, Key
from experiments.papers.stern2018.entries import in_order
from experiments.papers.stern2018.figures import COLOURS, style
from experiments.papers.stern2018.image_tables import COLUMNS, FORECASTS, distance
from experiments.stern2018 import published
from fastdec.errors import UserError
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import COLOURS as CALL_COLOURS
from fastdec.evaluation.drawing import Style
from fastdec.evaluation.labels import Label, place

Image = Shaped[Array | np.ndarray, '...']
SIDE, GAP, LINE, DPI = 128, 8, 14, 100  # pixels of a sheet, those of an image first
TITLE = 19  # characters in a line of a sheet's title
TABLE2_TAUS = 2  # exact, and within 2
PROMPT_COLOUR, PALE = '#BBBBBB', 0.7  # 1: the colours of calls as they are, 0: white


def blocks(cells: Iterable[BlockwiseCell], path: Path) -> None:
  """Table 2 as a PNG of 1800 x 900 pixels, ours and the paper's: mean accepted block size against
  k.

  The last point of each line has its figure beside it.
  """
  ours = {
    key: cell.mean_block_size
    for key, cell in latest(cells).items()
    if key[1:] in COLUMNS | FORECASTS and cell.error is None and cell.mean_block_size is not None
  }
  figure, axes_of = drawing.panels(2, sharex=True, sharey=True)
  both = (ours, published.TABLE2)
  for axes, points, title in zip(
    axes_of, both, ('Ours', 'Stern et al. 2018, Table 2 (CelebA, dev)'), strict=True
  ):
    _block_panel(axes, points, title)
    axes.set_xticks(sorted({k for found in both for k, _, _ in found}))
    axes.tick_params(labelleft=True)  # the axes share a scale, not its figures
  drawing.legend(figure, 4)
  for axes, points in zip(axes_of, both, strict=True):
    last = {(regime, rule): (k, block) for (k, regime, rule), block in sorted(points.items())}
    place(
      axes,
      [
        Label(f'{block:.2f}', k, block, COLOURS[regime]) for (regime, _), (k, block) in last.items()
      ],
    )
  drawing.save(figure, path)


def _block_panel(axes: Axes, points: Mapping[Key, float], title: str) -> None:
  drawing.dress(axes, title, drawing.BLOCKS, 'k')
  for column, name in (COLUMNS | FORECASTS).items():
    found = sorted((k, block) for (k, *series), block in points.items() if tuple(series) == column)
    if found or column in COLUMNS:  # the paper's are named even where nothing is measured yet
      drawing.curve(axes, found, style(*column), name)
  if not points:
    drawing.nothing_yet(axes)


def tau_sweep(cells: Iterable[BlockwiseCell], path: Path) -> None:
  """Block size and PSNR against the distance accepted, as a PNG of 1800 x 900 pixels.

  A line is a regime and k: those with distances between and beyond the columns of Table 2, or all
  if none has.
  """
  found = [
    cell for cell in latest(cells).values() if cell.error is None and distance(cell) is not None
  ]
  counts = collections.Counter((cell.regime, cell.k) for cell in found)
  found = [cell for cell in found if counts[cell.regime, cell.k] > TABLE2_TAUS] or found
  figure, (left, right) = drawing.panels(2)
  _tau_panel(left, found, 'mean_block_size', drawing.BLOCKS)
  _tau_panel(right, found, 'psnr', 'PSNR against the originals (dB)')
  drawing.legend(figure, 4)
  drawing.save(figure, path)


def _tau_panel(axes: Axes, found: Sequence[BlockwiseCell], field: str, meaning: str) -> None:
  drawing.dress(axes, '', meaning, 'distance τ that is accepted')
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  if not found:
    axes.set(xticks=(), yticks=())
    drawing.nothing_yet(axes)
  ks = sorted({cell.k for cell in found})
  for regime, k in dict.fromkeys((cell.regime, cell.k) for cell in in_order(found)):
    points: list[tuple[float, float]] = []
    for cell in found:
      tau, value = distance(cell), getattr(cell, field)
      if (cell.regime, cell.k) == (regime, k) and tau is not None and value is not None:
        points.append((tau, value))
    marker = drawing.MARKERS[ks.index(k) % len(drawing.MARKERS)]
    drawing.curve(
      axes, sorted(points), Style(COLOURS[regime], marker), f'{REGIMES[regime]}, k = {k}'
    )


def sheet(rows: Sequence[Sequence[Image]], path: Path, titles: Sequence[str]) -> None:
  """Rows of images side by side, as on the paper's last page, as a PNG.

  Pixels stay sharp: each image is enlarged to 128 x 128 by repeating them.

  Args:
    rows: for each face its images, such as input, greedy, approximate, original: uint8[h, h, 3], h
      dividing 128.
    path: the file.
    titles: one for each column.

  Raises:
    UserError: no rows, a row without an image for each title, or an image of another shape.
  """
  wrong = [len(row) for row in rows if len(row) != len(titles)]
  if wrong or not rows or not titles:
    given = f'a row of {wrong[0]} images' if wrong else f'{len(rows)} rows'
    raise UserError(
      f'a sheet cannot have {given} under {len(titles)} titles: give each row an'
      ' image for each title'
    )
  lines = [textwrap.fill(title, TITLE) for title in titles]
  step, heading = SIDE + GAP, LINE * (2 + max(line.count('\n') for line in lines))
  canvas = np.full((heading + step * len(rows), GAP + step * len(titles), 3), 255, np.uint8)
  for i, row in enumerate(rows):
    for j, image in enumerate(row):
      top, left = heading + step * i, GAP + step * j
      canvas[top : top + SIDE, left : left + SIDE] = _enlarged(np.asarray(image))
  height, width, _ = canvas.shape
  figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
  figure.figimage(canvas)  # neither scaled nor smoothed
  for j, line in enumerate(lines):
    middle = GAP + step * j + SIDE / 2
    figure.text(
      middle / width, 1 - heading / 2 / height, line, fontsize=9, ha='center', va='center'
    )
  drawing.save(figure, path)


def _enlarged(image: Shaped[np.ndarray, '...']) -> UInt8[np.ndarray, '128 128 3']:
  side = image.shape[0] if image.ndim else 0
  if image.dtype != np.uint8 or image.shape != (side, side, 3) or not side or SIDE % side:
    shape = f'{image.dtype}{list(image.shape)}'
    raise UserError(
      f'an image of a sheet is {shape}: give uint8[h, h, 3] with h a divisor of'
      f' {SIDE}, such as 8 or 32'
    )
  return image.repeat(SIDE // side, axis=0).repeat(SIDE // side, axis=1)


def block_map(output: Image, block_sizes: Int[Array | np.ndarray, ' t'], path: Path) -> None:
  """Which call wrote what, as a PNG of 1800 x 640 pixels: the picture, its calls, and the sizes of
  their blocks.

  Each pixel is drawn as its three tokens side by side, red, green and blue. A call has one colour,
  another one than the call before and, where there are enough colours, than those it touches; the
  first token, from the prompt, is grey.

  Args:
    output: uint8[h, w, 3], the picture.
    block_sizes: tokens that each call wrote (raster scan; red, green and blue of a pixel in turn),
      0 after the last.

  Raises:
    UserError: block sizes that do not make up the picture.
  """
  image, sizes_t = np.asarray(output), np.asarray(block_sizes)
  height, width, channels = image.shape
  if 1 + sizes_t.sum() != image.size or channels != 3:
    made = f'block sizes of {1 + sizes_t.sum()} tokens, the first one included, do not make up'
    raise UserError(
      f'{made} uint8{list(image.shape)}: give those of this picture, in red, green and blue'
    )
  sizes_c = sizes_t[sizes_t > 0]
  calls_n = np.repeat(np.arange(len(sizes_c) + 1), np.concatenate([[1], sizes_c]))
  calls = calls_n.reshape(height, -1)
  colours = 1 - PALE + PALE * np.array([to_rgb(name) for name in (*CALL_COLOURS, PROMPT_COLOUR)])
  heat = np.ma.masked_equal(np.concatenate([[0], sizes_c])[calls], 0)
  figure = Figure(figsize=(12, 4.27), dpi=150, layout='constrained')
  panels = figure.subplots(1, 3)
  mean = f', {sizes_c.mean():.2f} a call' if len(sizes_c) else ''
  figure.suptitle(f'{len(sizes_c):,} calls for {image.size:,} tokens{mean}', fontsize=11)
  most = int(sizes_c.max(initial=1))
  cmap = matplotlib.colormaps['viridis'].resampled(most).with_extremes(bad=PROMPT_COLOUR)
  shown = (image, colours[_colouring(calls)], heat)
  titles = ('the picture', 'a colour for each call', 'tokens written by the call')
  for axes, pixels, title in zip(panels, shown, titles, strict=True):
    drawn = axes.imshow(
      pixels,
      extent=(0, width, height, 0),
      interpolation='nearest',
      cmap=cmap,
      vmin=0.5,
      vmax=most + 0.5,
    )
    axes.set_title(title, fontsize=10)
    axes.axis('off')
  figure.colorbar(drawn, ax=panels, ticks=MaxNLocator(10, integer=True), shrink=0.8, pad=0.01)
  drawing.save(figure, path)


def _colouring(calls: Int[np.ndarray, 'h w']) -> Int[np.ndarray, 'h w']:
  """An index of `CALL_COLOURS` for each call, another one than that of blocks before and above it
  where it can be; the index after those for the prompt."""
  count, width = len(CALL_COLOURS), calls.shape[1]
  calls_n = calls.reshape(-1)
  colour_c = np.full(calls_n[-1] + 1, count)
  starts_c = np.searchsorted(calls_n, np.arange(calls_n[-1] + 2))
  for call in range(1, len(colour_c)):
    start, end = starts_c[call : call + 2]
    above = set(calls_n[max(0, start - width) : max(0, end - width)].tolist())
    taken = np.bincount([colour_c[other] for other in above], minlength=count)[:count]
    taken[colour_c[call - 1] % count] += len(calls_n) * (colour_c[call - 1] < count)
    colour_c[call] = min(range(count), key=lambda c: (taken[c], (c - call) % count))
  return colour_c[calls]
