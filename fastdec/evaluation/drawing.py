"""The style of all charts: colours, markers, panels, curves and a legend; writes them whole."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdec import extras
from fastdec.files import whole_file

with extras.explained():
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure


BLOCKS = 'mean accepted block size (tokens per call)'
SPEED = 'wall-clock speed-up over greedy decoding'
# Okabe and Ito's colours, which colour-blind readers can distinguish. Curves also differ in marker
# and line.
COLOURS = BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = (
  '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9',
)  # fmt: skip
PUBLISHED = '#666666'  # for a paper's own figures
MARKERS = ('o', '^', 's', 'D', 'v', 'P')
SIDE, DPI = 6.0, 150  # inches of a panel, and pixels of an inch


class Style(NamedTuple):
  """The look of a curve; line '' draws only its points."""

  colour: str
  marker: str = 'o'
  line: str = '-'


def panels(
  count: int, width: float = SIDE, height: float = SIDE, **shared: Any
) -> tuple[Figure, list[Axes]]:
  """Makes a figure with panels side by side; sizes in inches, `shared` as in `Figure.subplots`."""
  figure = Figure(figsize=(width * count, height), dpi=DPI, layout='constrained')
  return figure, list(figure.subplots(1, count, squeeze=False, **shared)[0])


def dress(axes: Axes, title: str, y: str, x: str = BLOCKS) -> None:
  """Gives a panel its title, the names of its axes, and the look of all charts."""
  axes.set_title(title, fontsize=11)
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  axes.margins(0.08)


def curve(
  axes: Axes,
  points: Iterable[tuple[float | int, float | int]],
  style: Style,
  name: str | None = None,
  **settings: Any,
) -> None:
  """Draws points (x, y), joined in their order.

  A curve without points only enters the legend, by its name.
  """
  xs, ys = np.array(list(points), float).reshape(-1, 2).T
  look = {
    'linestyle': style.line,
    'marker': style.marker,
    'color': style.colour,
    'linewidth': 1,
    'markersize': 6,
  }
  axes.plot(xs, ys, label=name, **look, **settings)


def name_point(axes: Axes, text: str, point: tuple[float | int, float | int], colour: str) -> None:
  """Writes a text above and to the right of a point, in the curve's colour."""
  axes.annotate(text, point, (4, 4), textcoords='offset points', fontsize=7.5, color=colour)


def legend(figure: Figure, columns: int) -> None:
  """Names every curve once below the panels."""
  curves: dict[str, Any] = {}
  for axes in figure.axes:
    for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
      curves.setdefault(name, line)
  figure.legend(curves.values(), curves, loc='outside lower center', ncols=columns, frameon=False)


def mark_empty(axes: Axes) -> None:
  """Says in a panel that it has no points."""
  axes.text(0.5, 0.5, 'no row has this figure', ha='center', va='center', transform=axes.transAxes)


def save(figure: Figure, path: Path) -> None:
  """Writes a whole PNG, or none."""
  with whole_file(path) as file:
    figure.savefig(file, format='png')
