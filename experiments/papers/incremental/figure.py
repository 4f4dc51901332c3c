"""The picture of what incremental decoding saves: time per token against length."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from experiments.lab.cells import latest
from experiments.papers.incremental.cells import WAYS, SavingCell
from experiments.papers.incremental.tables import TITLES
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import BLUE, VERMILION, Style

COLOURS = {'transformer': BLUE, 'fconv': VERMILION}
# marker and line of a way to decode
LINES = {'uncached': ('o', ':'), 'host': ('s', '--'), 'device': ('^', '-')}


def draw(cells: Iterable[SavingCell], path: Path) -> None:
  """A PNG with a panel a batch, both axes logarithmic: a colour is a model, a line's style a way to
  decode."""
  found = [cell for cell in latest(cells).values() if cell.part == 'growth' and cell.error is None]
  batches = sorted({cell.batch for cell in found})
  figure, axes_of = drawing.panels(len(batches))
  for axes, batch in zip(axes_of, batches, strict=True):
    _panel(axes, [cell for cell in found if cell.batch == batch], f'batch {batch}')
  drawing.legend(figure, 2)
  drawing.save(figure, path)


def _panel(axes: Axes, cells: list[SavingCell], title: str) -> None:
  drawing.dress(axes, title, 'milliseconds a token of every row', 'tokens of the output')
  for model in sorted({cell.model for cell in cells}, key=list(TITLES).index):
    own = sorted((cell for cell in cells if cell.model == model), key=lambda cell: cell.length)
    for way, line in LINES.items():
      points = [
        (cell.length, cell.milliseconds[way]) for cell in own if cell.milliseconds is not None
      ]
      drawing.curve(axes, points, Style(COLOURS[model], *line), f'{TITLES[model]}, {WAYS[way]}')
  axes.set_xscale('log')
  axes.set_yscale('log')
  lengths = sorted({cell.length for cell in cells})
  axes.set_xticks(lengths, map(str, lengths))
  axes.xaxis.set_minor_locator(NullLocator())
  axes.yaxis.set_major_formatter('{x:g}')
