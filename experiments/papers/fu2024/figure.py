"""The picture of lookahead: tokens a call against nodes."""

from collections.abc import Iterable
from pathlib import Path

from experiments.lab.cells import latest
from experiments.papers.fu2024 import published
from experiments.papers.fu2024.cells import METHODS, LookaheadCell
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import BLUE, GREEN, ORANGE, Style

STYLES = {
  'lookahead': Style(BLUE, 'o', ''),
  'jacobi': Style(GREEN, 's', ''),
  'lookup': Style(ORANGE, 'P', ''),
}


def tokens_by_nodes(cells: Iterable[LookaheadCell], path: Path) -> None:
  """A PNG: the cells of the smallest batch, one panel. Filled: the pool of window, prompt and
  output; open: another."""
  found = [
    cell for cell in latest(cells).values() if cell.error is None and cell.nodes and cell.tokens
  ]
  figure, (panel,) = drawing.panels(1)
  drawing.dress(panel, 'What wider calls bring', 'tokens a call', 'nodes of a call')
  smallest = min((cell.batch for cell in found), default=1)
  for cell in found:
    if cell.batch == smallest and cell.nodes and cell.tokens:
      hollow = {} if cell.pool == 'all' else {'markerfacecolor': 'none'}
      drawing.curve(panel, [(float(cell.nodes), cell.tokens)], STYLES[cell.method], **hollow)
  theirs = []
  for row in published.ABLATION:
    if row.sizes is not None and row.tokens is not None:
      window, ngram, guesses = row.sizes
      theirs.append((float((window + guesses) * (ngram - 1)), row.tokens))
  drawing.curve(panel, theirs, Style(drawing.PUBLISHED, 'x', ''), 'Fu et al. 2024')
  for method, style in STYLES.items():
    drawing.curve(panel, [], style, METHODS[method])
  drawing.legend(figure, 4)
  drawing.save(figure, path)
