"""The picture of `experiments.drafts`: what a chain writes a call, against what its drafter has
been trained on."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.lab.cells import latest
from experiments.papers.drafts.cells import DRAFTERS, DraftCell
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Style

STYLES = {
  'block': Style(BLUE, 'o'),
  'block-2': Style(SKY, 'v'),
  'eagle': Style(VERMILION, '^'),
  'heads': Style(GREEN, 's'),
  'rooted': Style(PURPLE, 'D'),
  'markov': Style(ORANGE, 'P'),
  'model': Style(drawing.PUBLISHED, 'X'),
  'lookup': Style(drawing.PUBLISHED, '*'),
}
PANELS = {
  'dev': 'On own text of held-out sources',
  'training': 'On own text of the training sources',
}
TRAINED = ('block', 'block-2', 'eagle', 'heads', 'rooted', 'markov')  # on own text
Curves = Mapping[str, Mapping[str, Iterable[tuple[float, float]]]]


def learning(curves: Curves, cells: Iterable[DraftCell], path: Path) -> None:
  """A PNG of 1800 x 900 pixels: on the left held-out text, with what finished chains reach in
  decoding (open), on the right training text; the gap between the two is what more own text would
  close.

  Args:
    curves: by row, then by a key of PANELS: points of training tokens and tokens a call.
    cells: what was measured.
    path: of the picture.
  """
  figure, panels = drawing.panels(2, sharey=True)
  for axes, (where, title) in zip(panels, PANELS.items(), strict=True):
    drawing.dress(axes, title, 'tokens a call, chain', 'tokens trained on')
    for row, found in curves.items():
      drawing.curve(axes, found[where], STYLES[row], DRAFTERS[row])
    if not curves:
      drawing.nothing_yet(axes)
  for cell in _finished(cells):
    points = [(cell.training_tokens or 0, cell.tokens or 0.0)]
    name = None if cell.drafter in curves else DRAFTERS[cell.drafter]
    drawing.curve(panels[0], points, STYLES[cell.drafter], name, markerfacecolor='none')
  drawing.legend(figure, 6)
  drawing.save(figure, path)


def _finished(cells: Iterable[DraftCell]) -> list[DraftCell]:
  """One cell of each drafter's chain at temperature 0."""
  found = {}
  for cell in latest(cells).values():
    if (
      cell.error is None
      and cell.is_whole_chain
      and cell.temperature == 0
      and cell.drafter in TRAINED
    ):
      found[cell.drafter] = cell
  return list(found.values())
