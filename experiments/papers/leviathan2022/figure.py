"""The picture of speculative decoding: measured against predicted speed-up."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from experiments.lab.cells import latest
from experiments.papers.leviathan2022.cells import DRAFTS, SpecCell
from experiments.papers.leviathan2022.published import SPEEDS
from experiments.papers.leviathan2022.tables import WITHIN
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import BLUE, GREEN, ORANGE, PURPLE, VERMILION, Style

STYLES = {
  'large': Style(BLUE, 'o', ''),
  'small': Style(VERMILION, '^', ''),
  'bigram': Style(GREEN, 's', ''),
  'unigram': Style(PURPLE, 'D', ''),
  'lookup': Style(ORANGE, 'P', ''),
}


def predictions(cells: Iterable[SpecCell], path: Path) -> None:
  """A PNG of 1800 x 900 pixels: on the left by the paper's formula, with its own points, on the
  right with the width's cost. Filled: temperature 0; open: above. Measured is the calls alone,
  without encoder and prompt."""
  found = [
    cell for cell in latest(cells).values() if cell.error is None and cell.speedup_calls is not None
  ]
  figure, (left, right) = drawing.panels(2)
  theirs = [(row.predicted, row.measured) for row in SPEEDS]
  drawing.curve(left, theirs, Style(drawing.PUBLISHED, 'x', ''), 'Leviathan et al. 2022, Table 4')
  _panel(left, found, 'predicted', 'Theorem 3.8: tokens by α, wide calls cost nothing more', theirs)
  _panel(right, found, 'predicted_width', 'Tokens per call as measured, over v + γ c', [])
  for draft in DRAFTS:
    if any(cell.draft == draft for cell in found):
      drawing.curve(right, [], STYLES[draft], DRAFTS[draft])
  drawing.legend(figure, 6)
  drawing.save(figure, path)


def _panel(
  axes: Axes,
  found: Sequence[SpecCell],
  name: str,
  title: str,
  theirs: Sequence[tuple[float, float]],
) -> None:
  """Our cells by one prediction, and a line where prediction and measurement are equal; `theirs`
  set the scale too."""
  drawing.dress(axes, title, 'measured speed-up, calls alone', 'predicted speed-up')
  points = []
  for cell in found:
    if getattr(cell, name) is not None:
      points.append((getattr(cell, name), cell.speedup_calls))
      hollow = {} if cell.temperature == 0 else {'markerfacecolor': 'none'}
      drawing.curve(axes, points[-1:], STYLES[cell.draft], **hollow)
  if not points:
    drawing.nothing_yet(axes)
  most = 1.1 * max([1.0, *(speed for point in (*points, *theirs) for speed in point)])
  axes.plot([0, most], [0, most], color='black', linewidth=0.5)
  axes.fill_between(
    [0, most], [0, most * (1 - WITHIN)], [0, most * (1 + WITHIN)], color='black', alpha=0.07
  )
