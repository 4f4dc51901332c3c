"""Workdirs side by side: what two of them have, and nothing that was measured on other outputs."""

import pytest

from experiments.papers.stern2018 import beside
from experiments.papers.stern2018.beside import beside_table, of_models_there
from fastdec.errors import UserError
from tests.experiments.measured import a_cell


def test_rows_are_what_two_workdirs_have_with_exact_acceptance():
  one = [
    a_cell(1, 'regular', bleu=30.0, mean_block_size=1.0, same_as_greedy=1.0),
    a_cell(4, 'regular', bleu=29.5, mean_block_size=1.5, same_as_greedy=0.5),
    a_cell(4, 'regular', 'top-2', bleu=1.0, mean_block_size=9.0),
    a_cell(8, 'regular', bleu=2.0),
  ]
  same = {'mean_block_size': 1.0, 'same_as_greedy': 1.0}
  other = [a_cell(4, 'regular', error='killed'), a_cell(1, 'regular', bleu=31.25, **same)]
  table = beside_table({'a': one, 'b': other})
  assert table.header == ('k', 'Training', 'a', 'b')
  assert [[entry.ours for entry in row] for row in table.rows] == [
    ['1', 'Regular', '30.00 / 1.00 / 100.0', '31.25 / 1.00 / 100.0'],
    ['4', 'Regular', '29.50 / 1.50 / 50.0', 'failed: killed'],
  ]


def test_other_outputs_and_workdirs_without_cells_are_refused():
  with pytest.raises(UserError, match='measured on different outputs'):
    beside_table(
      {'a': [a_cell(1, 'regular', split='dev')], 'b': [a_cell(1, 'regular', split='test')]}
    )
  with pytest.raises(UserError, match='b has no cells with exact acceptance'):
    beside_table({'a': [a_cell(1, 'regular')], 'b': [a_cell(1, 'regular', 'top-2')]})


def test_cells_of_models_that_were_trained_again_are_left_out(tmp_path, monkeypatch):
  old, new = a_cell(1, 'regular', models='old', bleu=1.0), a_cell(1, 'regular', models='new')
  heads, failed = a_cell(4, 'regular', models='heads'), a_cell(8, 'regular', error='killed')
  assert of_models_there([old, heads], tmp_path) == [old, heads]  # a copy of the lines alone
  for run in ('base', 'k4-regular'):
    (tmp_path / run / 'model').mkdir(parents=True)
    (tmp_path / run / 'model' / 'config.json').touch()
  monkeypatch.setattr(
    beside.folders, 'content', {tmp_path / 'base': 'new', tmp_path / 'k4-regular': 'heads'}.get
  )
  assert of_models_there([old, heads, failed], tmp_path) == [heads, failed]
  assert of_models_there([new, heads, old], tmp_path) == [new, heads]
