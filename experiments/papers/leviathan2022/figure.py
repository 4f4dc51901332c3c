"""The picture of speculative decoding: measured against predicted speed-up."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from experiments.lab.cells import latest
from experiments.papers.leviathan2022.cells import DRAFTS, SpecCell
from experiments.papers.leviathan2022.published import SPEEDS
from experiments.papers.leviathan2022.tables import WITHIN
from fastdec.evaluation.drawing import dress, nothing_yet, save

# Okabe and Ito's colours; each draft also has a shape of its own.
STYLES = {
  'large': ('#0072B2', 'o'), 'small': ('#D55E00', '^'), 'bigram': ('#009E73', 's'), 'unigram': ('#CC79A7', 'D'),
  'lookup': ('#E69F00', 'P'),
}  # fmt: skip
PAPER_COLOUR = '#666666'


def predictions(cells: Iterable[SpecCell], path: Path) -> None:
  """A PNG of 1800 x 900 pixels: on the left by the paper's formula, with its own points, on the right with the width's
  cost. Filled: temperature 0; open: above. Measured is the calls alone, without encoder and prompt."""
  found = [cell for cell in latest(cells).values() if cell.error is None and cell.speedup_calls is not None]
  figure = Figure(figsize=(12, 6), dpi=150, layout='constrained')
  left, right = figure.subplots(1, 2)
  left.plot(
    [row.predicted for row in SPEEDS], [row.measured for row in SPEEDS], 'x', color=PAPER_COLOUR,
    label='Leviathan et al. 2022, Table 4',
  )  # fmt: skip
  papers = [speed for row in SPEEDS for speed in (row.predicted, row.measured)]
  for axes, name, title, others in (
    (left, 'predicted', 'Theorem 3.8: tokens by α, wide calls cost nothing more', papers),
    (right, 'predicted_width', 'Tokens per call as measured, over v + γ c', []),
  ):
    dress(axes, title, 'measured speed-up, calls alone', 'predicted speed-up')
    points = [cell for cell in found if getattr(cell, name) is not None]
    for cell in points:
      colour, marker = STYLES[cell.draft]
      face = colour if cell.temperature == 0 else 'none'
      axes.plot(getattr(cell, name), cell.speedup_calls, marker, color=colour, markerfacecolor=face)
    if not points:
      nothing_yet(axes)
    most = max([1.0, *others, *(max(getattr(cell, name), cell.speedup_calls) for cell in points)]) * 1.1
    axes.plot([0, most], [0, most], color='black', linewidth=0.5)
    axes.fill_between([0, most], [0, most * (1 - WITHIN)], [0, most * (1 + WITHIN)], color='black', alpha=0.07)
  for draft in [name for name in DRAFTS if any(cell.draft == name for cell in found)]:
    colour, marker = STYLES[draft]
    right.plot([], [], marker, color=colour, label=DRAFTS[draft])
  figure.legend(loc='outside lower center', ncols=6, frameon=False)
  save(figure, path)
