"""Several workdirs of Table 1 side by side: models, seeds or scales that were measured on the same
outputs."""

import collections
import pathlib
from collections.abc import Mapping, Sequence

from experiments.lab.cells import latest
from experiments.lab.report import Column, Drawn, Table, text
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell
from experiments.papers.stern2018.entries import CONDITIONS, in_order
from experiments.papers.stern2018.tables import bleu_and_block
from fastdec import folders
from fastdec.errors import UserError

NOTE = (
  'BLEU / mean accepted block size / outputs that are those of greedy decoding by the same model,'
  ' per cent; with exact'
  ' acceptance.'
)


def of_models_there(cells: Sequence[BlockwiseCell], workdir: pathlib.Path) -> list[BlockwiseCell]:
  """The cells of models that are in the workdir, and failures; all of them where the lines lie
  there alone."""
  runs = [record.parent.parent for record in workdir.glob('*/model/config.json')]
  there = {folders.content(run) for run in runs}
  return [cell for cell in cells if not there or cell.error is not None or cell.models in there]


def beside_table(found: Mapping[str, Sequence[BlockwiseCell]]) -> Drawn:
  """The cells with exact acceptance, a column for each workdir by its name, a row for each k and
  training that two of them have.

  Raises:
    UserError: a workdir without such cells, or outputs of different splits.
  """
  exact = {
    name: {key[:2]: cell for key, cell in latest(cells).items() if key[2] == 'exact'}
    for name, cells in found.items()
  }
  for name, cells in exact.items():
    if not cells:
      raise UserError(
        f'{name} has no cells with exact acceptance: give the workdir of experiments.table1'
      )
  every = [cell for cells in exact.values() for cell in cells.values()]
  splits = {(cell.split, cell.outputs) for cell in every if cell.error is None}
  if len(splits) > 1:
    raise UserError(
      f'the workdirs were measured on different outputs, {sorted(splits)}: give such'
      ' as have the same'
    )
  counts = collections.Counter((cell.k, cell.regime) for cell in in_order(every))
  shown = [key for key, count in counts.items() if count > 1]
  columns = [
    Column('k', lambda key: key[0], names_row=True),
    Column('Training', lambda key: REGIMES[key[1]]),
  ]
  columns += [_workdir(name, cells) for name, cells in exact.items()]
  return Table('Side by side', columns, (NOTE,), CONDITIONS).of(
    shown, cells=[c for c in every if c.key[:2] in shown]
  )


def _workdir(name: str, cells: Mapping[tuple[int, str], BlockwiseCell]) -> Column:
  return Column(name, _figures, cell=lambda key: cells.get(key))


def _figures(cell: BlockwiseCell) -> str:
  same = None if cell.same_as_greedy is None else 100 * cell.same_as_greedy
  return f'{bleu_and_block(cell)} / {text(same, ".1f")}'
