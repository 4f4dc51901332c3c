"""The pictures of `experiments.drafts`: what a chain writes a call, by its drafter's training, and by its length."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.lab.cells import latest
from experiments.papers.drafts.cells import DRAFTERS, DraftCell
from experiments.papers.drafts.tables import chains
from experiments.papers.stern2018.cells import REGIMES
from experiments.papers.stern2018.published import TABLE1
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
PAPERS = {'distil': Style(SKY, 'o', '--'), 'finetune': Style(VERMILION, 'o', '--'), 'both': Style(GREEN, 'o', '--')}
PANELS = {'dev': 'On own text of held-out sources', 'training': 'On own text of the training sources'}
TRAINED = ('block', 'block-2', 'eagle', 'heads', 'rooted', 'markov')  # on own text
Curves = Mapping[str, Mapping[str, Iterable[tuple[float, float]]]]


def learning(curves: Curves, cells: Iterable[DraftCell], path: Path) -> None:
  """A PNG of 1800 x 900 pixels: on the left held-out text, with what finished chains reach in decoding (open), on the
  right training text; the gap between the two is what more own text would close.

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


def lengths(cells: Iterable[DraftCell], path: Path) -> None:
  """Tokens a call against k as a PNG of 1800 x 900 pixels: our chains on the left, the paper's blocks on the right."""
  figure, (left, right) = drawing.panels(2, sharex=True, sharey=True)
  drawing.dress(left, 'Ours, a frozen base', 'tokens a call', 'k')
  found = sorted(chains(cells), key=lambda cell: cell.nodes or 0)
  for drafter in dict.fromkeys(cell.drafter for cell in found):
    points = [(cell.nodes or 0, cell.tokens or 0.0) for cell in found if cell.drafter == drafter]
    drawing.curve(left, points, STYLES[drafter], DRAFTERS[drafter])
  drawing.dress(right, 'Stern et al. 2018, Table 1 (WMT14 en-de, newstest2013)', 'tokens a call', 'k')
  for regime, style in PAPERS.items():
    blocks = sorted((k, block) for (k, *column), (_, block) in TABLE1.items() if column == [regime, 'exact'] and k > 1)
    drawing.curve(right, blocks, style, REGIMES[regime])
  drawing.legend(figure, 6)
  drawing.save(figure, path)


def _finished(cells: Iterable[DraftCell]) -> list[DraftCell]:
  """One cell of each drafter's chain at temperature 0."""
  found = {}
  for cell in latest(cells).values():
    if cell.error is None and cell.is_whole_chain and cell.temperature == 0 and cell.drafter in TRAINED:
      found[cell.drafter] = cell
  return list(found.values())
