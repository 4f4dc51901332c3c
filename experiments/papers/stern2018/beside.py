"""Several workdirs of Table 1 side by side: models, seeds or scales that were measured on the same outputs."""

import collections
from collections.abc import Mapping, Sequence

from experiments.lab.cells import conditions_note, latest
from experiments.lab.report import Entry, Table, text
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell
from experiments.papers.stern2018.entries import CONDITIONS, in_order, outcome
from fastdec.errors import UserError

NOTE = (
  'BLEU / mean accepted block size / outputs that are those of greedy decoding by the same model, per cent; with exact'
  ' acceptance.'
)


def beside_table(found: Mapping[str, Sequence[BlockwiseCell]]) -> Table:
  """The cells with exact acceptance, a column for each workdir by its name, a row for each k and training that two
  of them have.

  Raises:
    UserError: a workdir without such cells, or outputs of different splits.
  """
  exact = {
    name: {key[:2]: cell for key, cell in latest(cells).items() if key[2] == 'exact'} for name, cells in found.items()
  }
  for name, cells in exact.items():
    if not cells:
      raise UserError(f'{name} has no cells with exact acceptance: give the workdir of experiments.table1')
  every = [cell for cells in exact.values() for cell in cells.values()]
  splits = {(cell.split, cell.outputs) for cell in every if cell.error is None}
  if len(splits) > 1:
    raise UserError(f'the workdirs were measured on different outputs, {sorted(splits)}: give such as have the same')
  counts = collections.Counter((cell.k, cell.regime) for cell in in_order(every))
  shown = [key for key, count in counts.items() if count > 1]
  rows = [
    (Entry(str(k)), Entry(REGIMES[regime]), *(Entry(outcome(of.get((k, regime)), _figures)) for of in exact.values()))
    for k, regime in shown
  ]
  notes = (NOTE, *conditions_note((cell for cell in every if cell.key[:2] in shown), CONDITIONS))
  return Table('Side by side', ('k', 'Training', *exact), tuple(rows), notes)


def _figures(cell: BlockwiseCell) -> str:
  same = None if cell.same_as_greedy is None else 100 * cell.same_as_greedy
  return f'{text(cell.bleu, ".2f")} / {text(cell.mean_block_size, ".2f")} / {text(same, ".1f")}'
