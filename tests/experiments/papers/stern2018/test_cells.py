"""Cells are JSON lines: nothing is lost, a killed write costs its own line alone, and older lines
are still read."""

import json

import pytest

from experiments.lab import cells
from experiments.papers.stern2018.cells import BlockwiseCell
from fastdec.errors import UserError
from tests.experiments.measured import a_cell


def test_cells_survive_the_file(tmp_path):
  path = tmp_path / 'out' / 'cells.jsonl'
  written = [a_cell(), a_cell(k=8, error='the loss is not finite', bleu=None, head_accuracy=())]
  for cell in written:
    cells.append(path, cell)
  assert cells.read(path, BlockwiseCell) == written
  assert json.loads(path.read_text().splitlines()[0])['commit'] == 'abc'


def test_a_missing_file_has_no_cells(tmp_path):
  assert cells.read(tmp_path / 'none.jsonl', BlockwiseCell) == []


def test_a_cut_line_is_passed_over_and_the_next_one_does_not_join_it(tmp_path):
  path = tmp_path / 'cells.jsonl'
  for k in (2, 4):
    cells.append(path, a_cell(k))
  path.write_bytes(path.read_bytes()[:-20])
  assert [cell.k for cell in cells.read(path, BlockwiseCell)] == [2]
  cells.append(path, a_cell(8))
  assert [cell.k for cell in cells.read(path, BlockwiseCell)] == [2, 8]


def test_what_is_not_a_number_is_null_in_the_file(tmp_path):
  path = tmp_path / 'cells.jsonl'
  cells.append(path, a_cell(mean_block_size=float('nan'), head_accuracy=(1.0, float('nan'))))
  assert 'NaN' not in path.read_text()
  (cell,) = cells.read(path, BlockwiseCell)
  assert cell.mean_block_size is None and cell.head_accuracy == (1.0, None)


@pytest.mark.parametrize('line', ['{"k": 1}', '[1]', '{"k": 1, "regime": "hard", "rule": "exact"}'])
def test_a_line_that_is_no_cell_is_named(tmp_path, line):
  path = tmp_path / 'cells.jsonl'
  cells.append(path, a_cell())
  path.write_text(path.read_text() + line)
  with pytest.raises(UserError, match=r'line 2 of .*cells.jsonl'):
    cells.read(path, BlockwiseCell)


@pytest.mark.parametrize(
  'rule', ['top', 'top-0', 'best', 'exact-2', 'distance', 'distance-02', 'distance--1', '']
)
def test_a_rule_that_is_not_in_the_table_is_refused(rule):
  with pytest.raises(UserError, match='top-N'):
    BlockwiseCell(4, 'regular', rule)


def test_a_rerun_replaces_a_failure():
  failed, done = a_cell(error='killed'), a_cell()
  assert list(cells.latest([failed, a_cell(k=2), done]).values()) == [done, a_cell(k=2)]
  assert list(cells.latest([done, failed]).values()) == [done]  # another process had done it
  assert list(cells.latest([failed, a_cell(error='no space')]).values()) == [
    a_cell(error='no space')
  ]


def test_cells_of_images_survive_the_file_but_for_infinite_figures(tmp_path):
  measured = {'bits_per_dimension': 3.1, 'psnr': 24.5, 'ssim': 0.8, 'outputs': 64}
  for rule, infinite in (('distance-0', float('inf')), ('distance-12', 31.0)):
    cells.append(
      tmp_path / 'cells.jsonl',
      BlockwiseCell(4, 'regular', rule, psnr_to_greedy=infinite, **measured),
    )
  assert cells.read(tmp_path / 'cells.jsonl', BlockwiseCell) == [
    BlockwiseCell(4, 'regular', 'distance-0', **measured),
    BlockwiseCell(4, 'regular', 'distance-12', psnr_to_greedy=31.0, **measured),
  ]
