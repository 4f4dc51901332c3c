"""Chains of a drafter, short and long, beside the blocks of Stern et al. 2018."""

from collections.abc import Iterable
from pathlib import Path

from experiments.lab.cells import latest
from experiments.lab.columns import SAME, SAME_NOTE, SPEED_UP
from experiments.lab.report import Column, Drawn, Table
from experiments.papers.drafts.cells import DRAFTERS, DraftCell
from experiments.papers.drafts.figure import STYLES
from experiments.papers.drafts.tables import CONDITIONS
from experiments.papers.stern2018.cells import REGIMES
from experiments.stern2018.published import TABLE1
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import PUBLISHED, Style

PAPERS = {
  'distil': Style(PUBLISHED, 'o', '--'),
  'finetune': Style(PUBLISHED, '^', '--'),
  'both': Style(PUBLISHED, 's', '--'),
}


def _papers(cell: DraftCell) -> str | None:
  figures = TABLE1.get((cell.nodes or 0, 'both', 'exact'))
  return None if figures is None else f'{figures[1]:.2f}'


LENGTHS = Table(
  'Chains by their length',
  (
    Column('Drafter', lambda cell: DRAFTERS[cell.drafter], names_row=True),
    Column('k', 'nodes', names_row=True),
    Column('Tokens', 'tokens', '.2f'),
    Column("The paper's Both", _papers, missing=''),
    Column('Draft ms', 'draft_ms', '.2f'),
    Column('Call ms', 'call_ms', '.2f'),
    SPEED_UP,
    SAME,
  ),
  (
    'k: the root and k - 1 guesses. Tokens: per call, over all texts, one at a time, at temperature'
    ' 0; speeds are over'
    " some of them. The paper's: heads and base trained together, WMT14 en-de (Stern et al. 2018,"
    ' Table 1).',
    SAME_NOTE,
  ),
  CONDITIONS,
  sort=lambda cell: (list(DRAFTERS).index(cell.drafter), cell.nodes),
)


def table(cells: Iterable[DraftCell]) -> Drawn:
  """What chains of one drafter write, short and long."""
  return LENGTHS.of(chains(cells))


def chains(cells: Iterable[DraftCell]) -> list[DraftCell]:
  """Those of every length at temperature 0 and batch 1."""
  found = [cell for cell in latest(cells).values() if cell.error is None and not cell.tree]
  return [cell for cell in found if cell.temperature == 0 and cell.batch == 1]


def picture(cells: Iterable[DraftCell], path: Path) -> None:
  """Tokens a call against k as a PNG of 1800 x 900 pixels: our chains on the left, the paper's
  blocks on the right."""
  figure, (left, right) = drawing.panels(2, sharex=True, sharey=True)
  drawing.dress(left, 'Ours, a frozen base', 'tokens a call', 'k')
  found = sorted(chains(cells), key=lambda cell: cell.nodes or 0)
  for drafter in dict.fromkeys(cell.drafter for cell in found):
    points = [(cell.nodes or 0, cell.tokens or 0.0) for cell in found if cell.drafter == drafter]
    drawing.curve(left, points, STYLES[drafter], DRAFTERS[drafter])
  drawing.dress(
    right, 'Stern et al. 2018, Table 1 (WMT14 en-de, newstest2013)', 'tokens a call', 'k'
  )
  for regime, style in PAPERS.items():
    blocks = sorted(
      (k, block)
      for (k, *column), (_, block) in TABLE1.items()
      if column == [regime, 'exact'] and k > 1
    )
    drawing.curve(right, blocks, style, REGIMES[regime])
  drawing.legend(figure, 6)
  drawing.save(figure, path)
