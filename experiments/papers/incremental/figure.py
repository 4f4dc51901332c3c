"""The picture of what incremental decoding saves: time per token against length."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.lab.cells import latest
from experiments.papers.incremental.cells import WAYS, SavingCell
from experiments.papers.incremental.tables import TITLES
from fastdec.evaluation.drawing import dress, save

COLOURS = {'transformer': '#0072B2', 'fconv': '#D55E00'}  # Okabe and Ito's
STYLES = {'uncached': ('o', ':'), 'host': ('s', '--'), 'device': ('^', '-')}


def draw(cells: Iterable[SavingCell], path: Path) -> None:
  """A PNG with a panel a batch, both axes logarithmic: a colour is a model, a line's style a way to decode."""
  found = [cell for cell in latest(cells).values() if cell.part == 'growth' and cell.error is None]
  batches = sorted({cell.batch for cell in found})
  figure = Figure(figsize=(max(6, 5.5 * len(batches)), 5.5), dpi=150, layout='constrained')
  for axes, batch in zip(figure.subplots(1, len(batches), squeeze=False)[0], batches, strict=True):
    _panel(axes, [cell for cell in found if cell.batch == batch], f'batch {batch}')
  lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
  figure.legend(lines.values(), lines, loc='outside lower center', ncols=2, frameon=False)
  save(figure, path)


def _panel(axes: Axes, cells: list[SavingCell], title: str) -> None:
  dress(axes, title, 'milliseconds a token of every row', 'tokens of the output')
  for model in sorted({cell.model for cell in cells}, key=list(TITLES).index):
    own = sorted((cell for cell in cells if cell.model == model), key=lambda cell: cell.length)
    for way, (marker, line) in STYLES.items():
      points = [(cell.length, cell.milliseconds[way]) for cell in own]
      label = f'{TITLES[model]}, {WAYS[way]}'
      axes.plot(*zip(*points, strict=True), line, marker=marker, color=COLOURS[model], label=label, linewidth=1.2)
  axes.set_xscale('log')
  axes.set_yscale('log')
  lengths = sorted({cell.length for cell in cells})
  axes.set_xticks(lengths, map(str, lengths))
  axes.xaxis.set_minor_locator(NullLocator())
  axes.yaxis.set_major_formatter('{x:g}')
