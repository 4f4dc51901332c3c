"""Pictures of the tables: BLEU against block size (Table 1), and wall-clock speed-up against block size (Figure 4)."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.lab.cells import latest
from experiments.papers.stern2018 import published
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell, Key
from experiments.papers.stern2018.tables import TREE, columns
from fastdec.evaluation.drawing import SPEED, dress, nothing_yet, save
from fastdec.evaluation.labels import Label, place

Points = Mapping[Key, tuple[float, float]]  # (k, regime, rule) -> (BLEU, mean block size)

# Okabe and Ito's colours, told apart by colour-blind readers too; each rule also has a shape and a line of its own.
COLOURS = {'regular': '#0072B2', 'distil': '#56B4E9', 'finetune': '#D55E00', 'both': '#009E73'}
STYLES = {'exact': ('o', '-'), 'top-2': ('^', '--'), 'top-3': ('s', ':'), TREE: ('D', '-.')}
OTHER_RULE = ('P', '-.')
PAPER_COLOUR = '#666666'
TRANSLATION, IMAGES = ('both', 'exact'), ('finetune', 'distance-2')  # what Figure 4 is about


def scatter(cells: Iterable[BlockwiseCell], path: Path) -> None:
  """The columns of Table 1 as a PNG of 1800 x 900 pixels. A point is a cell, its label k; lines join what differs in k
  only."""
  known = latest(cells)
  wanted = columns(known)
  ours = {
    key: (cell.bleu, cell.mean_block_size)
    for key, cell in known.items()
    if key[1:] in wanted and cell.error is None and None not in (cell.bleu, cell.mean_block_size)
  }
  figure = Figure(figsize=(12, 6), dpi=150, layout='constrained')
  panels = figure.subplots(1, 2, sharex=True)
  _panel(panels[0], ours, 'Ours')
  _panel(panels[1], published.TABLE1, 'Stern et al. 2018, Table 1 (WMT14 en-de, newstest2013)')
  everything = sorted(_series(ours) | _series(published.TABLE1), key=lambda s: (s[1], list(REGIMES).index(s[0])))
  figure.legend(handles=[_handle(*one) for one in everything], loc='outside lower center', ncols=6, frameon=False)
  figure.draw_without_rendering()  # settles the layout, which decides what is near
  for axes, points in zip(panels, (ours, published.TABLE1), strict=True):
    place(axes, [Label(str(k), block, bleu, COLOURS[regime]) for (k, regime, _), (bleu, block) in points.items()])
  save(figure, path)


def speedups(cells: Iterable[BlockwiseCell], path: Path) -> None:
  """Figure 4 as a PNG of 1200 x 900 pixels; a point is a k.

  Of the cells it shows translation distilled and fine-tuned, with exact acceptance, and images fine-tuned, with a
  distance of 2.
  """
  known = sorted(latest(cells).items())
  ours = {
    series: {
      cell.k: (cell.mean_block_size, cell.speedup)
      for key, cell in known
      if key[1:] == series and None not in (cell.mean_block_size, cell.speedup)
    }
    for series in (TRANSLATION, IMAGES)
  }
  figure = Figure(figsize=(8, 6), dpi=150, layout='constrained')
  axes = figure.subplots()
  dress(axes, '', SPEED)
  labels = []
  series = (
    (ours[TRANSLATION], 'ours, translation', COLOURS['both'], 'o-'),
    (ours[IMAGES], 'ours, images', COLOURS['finetune'], '^-'),
    (published.FIGURE4, 'Stern et al. 2018, translation', PAPER_COLOUR, 's--'),
    (published.FIGURE4_IMAGES, 'Stern et al. 2018, images, the peak', '#CC79A7', 'D'),
  )
  for points, name, colour, style in series:
    if points:
      axes.plot(*zip(*points.values(), strict=True), style, color=colour, label=name, linewidth=1, markersize=6)
      labels += [Label(f'k = {k}', *point, colour) for k, point in points.items()]
  axes.axhline(1, color='black', linewidth=0.5, linestyle=':')
  caption = "The paper's translation: speed-ups of Table 4 (newstest2014) at block sizes of Table 1 (newstest2013)"
  axes.set_title(f'Blockwise parallel decoding, Figure 4\n{caption}', fontsize=8)
  figure.legend(loc='outside lower center', ncols=2, frameon=False)
  figure.draw_without_rendering()
  place(axes, labels)
  save(figure, path)


def _panel(axes: Axes, points: Points, title: str) -> None:
  dress(axes, title, 'BLEU')
  for regime, rule in sorted(_series(points)):
    marker, line = STYLES.get(rule, OTHER_RULE)
    _, blocks, bleus = zip(*_curve(points, regime, rule), strict=True)
    axes.plot(blocks, bleus, line, marker=marker, color=COLOURS[regime], linewidth=1, markersize=6, alpha=0.9)
  if not points:
    nothing_yet(axes)


def _handle(regime: str, rule: str) -> Line2D:
  marker, line = STYLES.get(rule, OTHER_RULE)
  label = REGIMES[regime] if rule == 'exact' else f'{REGIMES[regime]}, {rule}'
  return Line2D([], [], linestyle=line, marker=marker, color=COLOURS[regime], label=label)


def _series(points: Points) -> set[tuple[str, str]]:
  return {(regime, rule) for _, regime, rule in points}


def _curve(points: Points, regime: str, rule: str) -> list[tuple[int, float, float]]:
  """(k, block size, BLEU) of one series, by k."""
  return sorted((k, block, bleu) for (k, *series), (bleu, block) in points.items() if series == [regime, rule])
