"""Pictures of the tables: BLEU against block size (Table 1), and wall-clock speed-up against block
size (Figure 4)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from experiments.lab.cells import latest
from experiments.papers.stern2018.cells import FITTED, FORECAST, REGIMES, BlockwiseCell, Key
from experiments.papers.stern2018.tables import TREE, columns
from experiments.stern2018 import published
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Style
from fastdec.evaluation.labels import Label, place

Points = Mapping[Key, tuple[float, float]]  # (k, regime, rule) -> (BLEU, mean block size)

COLOURS = {
  'regular': BLUE,
  'distil': SKY,
  'finetune': VERMILION,
  'both': GREEN,
  FORECAST: ORANGE,
  FITTED: PURPLE,
}  # a colour is a regime, ...
RULES = {
  'exact': ('o', '-'),
  'top-2': ('^', '--'),
  'top-3': ('s', ':'),
  TREE: ('D', '-.'),
  'distance-2': ('^', '--'),
}
OTHER_RULE = ('P', '-.')  # ... a marker and a line are a rule
TRANSLATION, IMAGES = ('both', 'exact'), ('finetune', 'distance-2')  # what Figure 4 is about
BY_FORECAST, BY_FITTED = ((regime, 'distance-2') for regime in (FORECAST, FITTED))


def style(regime: str, rule: str) -> Style:
  """How cells of a regime and a rule look in every picture."""
  return Style(COLOURS[regime], *RULES.get(rule, OTHER_RULE))


def scatter(cells: Iterable[BlockwiseCell], path: Path) -> None:
  """The columns of Table 1 as a PNG of 1800 x 900 pixels. A point is a cell, its label k; lines
  join what differs in k only."""
  known = latest(cells)
  wanted = columns(known)
  ours: dict[Key, tuple[float, float]] = {}
  for key, cell in known.items():
    if (
      key[1:] in wanted
      and cell.error is None
      and cell.bleu is not None
      and cell.mean_block_size is not None
    ):
      ours[key] = cell.bleu, cell.mean_block_size
  figure, (left, right) = drawing.panels(2, sharex=True)
  shown = {(regime, rule) for _, regime, rule in (*ours, *published.TABLE1)}
  series = sorted(shown, key=lambda one: (one[1], list(REGIMES).index(one[0])))
  _panel(left, ours, series, 'Ours')
  _panel(right, published.TABLE1, series, 'Stern et al. 2018, Table 1 (WMT14 en-de, newstest2013)')
  drawing.legend(figure, 6)
  for axes, points in ((left, ours), (right, published.TABLE1)):
    place(
      axes,
      [
        Label(str(k), block, bleu, COLOURS[regime])
        for (k, regime, _), (bleu, block) in points.items()
      ],
    )
  drawing.save(figure, path)


def _panel(axes: Axes, points: Points, series: Sequence[tuple[str, str]], title: str) -> None:
  drawing.dress(axes, title, 'BLEU')
  for regime, rule in series:
    name = REGIMES[regime] if rule == 'exact' else f'{REGIMES[regime]}, {rule}'
    own = sorted(
      (k, block, bleu) for (k, *column), (bleu, block) in points.items() if column == [regime, rule]
    )
    drawing.curve(axes, [(block, bleu) for _, block, bleu in own], style(regime, rule), name)
  if not points:
    axes.set(yticks=())
    drawing.nothing_yet(axes)


def speedups(cells: Iterable[BlockwiseCell], path: Path) -> None:
  """Figure 4 as a PNG of 1200 x 900 pixels; a point is a k.

  Of the cells it shows translation distilled and fine-tuned, with exact acceptance, and images
  fine-tuned, or by forecast, with a distance of 2.
  """
  ours: dict[tuple[str, str], dict[int, tuple[float, float]]] = {
    TRANSLATION: {},
    IMAGES: {},
    BY_FORECAST: {},
    BY_FITTED: {},
  }
  for _, cell in sorted(latest(cells).items()):
    series = cell.regime, cell.rule
    if series in ours and cell.mean_block_size is not None and cell.speedup is not None:
      ours[series][cell.k] = cell.mean_block_size, cell.speedup
  figure, (axes,) = drawing.panels(1, width=8.0)
  drawing.dress(axes, '', drawing.SPEED)
  labels = []
  for points, name, look in (
    (ours[TRANSLATION], 'ours, translation', Style(GREEN, 'o', '-')),
    (ours[IMAGES], 'ours, images', Style(VERMILION, '^', '-')),
    (ours[BY_FORECAST], 'ours, images by forecast', Style(ORANGE, 'v', '-')),
    (ours[BY_FITTED], 'ours, images by a fitted forecast', Style(SKY, 'P', '-')),
    (published.FIGURE4, 'Stern et al. 2018, translation', Style(drawing.PUBLISHED, 's', '--')),
    (published.FIGURE4_IMAGES, 'Stern et al. 2018, images, the peak', Style(PURPLE, 'D', '')),
  ):
    if points:
      drawing.curve(axes, points.values(), look, name)
      labels += [Label(f'k = {k}', *point, look.colour) for k, point in points.items()]
  axes.axhline(1, color='black', linewidth=0.5, linestyle=':')
  caption = (
    "The paper's translation: speed-ups of Table 4 (newstest2014) at block sizes of Table"
    ' 1'
    ' (newstest2013)'
  )
  axes.set_title(f'Blockwise parallel decoding, Figure 4\n{caption}', fontsize=8)
  drawing.legend(figure, 2)
  place(axes, labels)
  drawing.save(figure, path)
