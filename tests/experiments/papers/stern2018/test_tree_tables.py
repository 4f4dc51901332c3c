"""Trees beside the chain that the same heads draft, and never beside another."""

import pytest

from experiments.papers.stern2018 import published, tables, tree_tables
from experiments.papers.stern2018.cells import BlockwiseCell
from fastdec.errors import UserError
from tests.experiments.measured import CONDITIONS, a_cell


def rows_of(cells):
  return [[entry.ours for entry in row] for row in tree_tables.trees_table(cells).rows]


def test_a_tree_stands_beside_its_chain():
  run = [
    a_cell(4, 'both', mean_block_size=2.0, ms_per_output=10.0, speedup=0.5, models='x'),
    a_cell(
      4,
      'both',
      'tree-16',
      mean_block_size=2.5,
      ms_per_output=8.0,
      speedup=0.625,
      models='x',
      same_as_greedy=1.0,
    ),
    a_cell(4, 'both', 'top-2', mean_block_size=3.5, models='x'),
  ]
  assert rows_of(run) == [
    ['4', 'Both', '4 / 16', '2.00 / 2.50', '+25.0', '10.0 / 8.0', '0.50× / 0.62×', '100.0']]  # fmt: skip


def test_rows_are_in_order_and_show_the_nodes_that_a_smaller_tree_has():
  small = {'conditions': CONDITIONS | {'tree_nodes': 21}}
  run = [
    a_cell(k, regime, f'tree-{n}')
    for k in (10, 4)
    for regime in ('both', 'regular')
    for n in (32, 8)
  ]
  run += [a_cell(4, 'both', 'tree-64', **small), a_cell(8, 'both', 'tree-8', error='killed')]
  assert [row[:3] for row in rows_of(run)] == [
    *([str(k), 'Regular', f'– / {n}'] for k in (4, 10) for n in (8, 32)),
    *(['4', 'Both', f'– / {n}'] for n in (8, 32, 21)),
    *(['10', 'Both', f'– / {n}'] for n in (8, 32)),
  ]


def chains_of(k, regime, rule, run):
  (row,) = [row for row in rows_of([*run, a_cell(k, regime, rule, models='x')]) if row[0] == str(k)]
  return row[2].split(' / ')[0], row[3].split(' / ')[0], row[4]


NESTED = [a_cell(k, 'regular', models='x', mean_block_size=k / 4) for k in (2, 4, 8, 10)]


@pytest.mark.parametrize(
  'k, width, chain', [(10, 64, 10), (10, 10, 10), (10, 9, 8), (4, 64, 4), (4, 3, 2)]
)
def test_a_chain_is_no_wider_than_the_tree_and_drafts_with_no_more_heads(k, width, chain):
  assert chains_of(k, 'regular', f'tree-{width}', NESTED)[:2] == (str(chain), f'{chain / 4:.2f}')


@pytest.mark.parametrize(
  'other',
  [
    {'models': 'y'},
    {'split': 'test'},
    {'error': 'killed'},
    {'regime': 'both'},
    {'rule': 'top-2'},
    {'k': 1},
  ],
  ids=str,
)
def test_only_a_chain_by_the_same_heads_is_compared_with(other):
  cell = {'k': 4, 'regime': 'finetune', 'rule': 'exact', 'models': 'x'} | other
  assert chains_of(4, 'finetune', 'tree-8', [a_cell(**cell)]) == ('–', '–', '–')


def test_table_1_has_a_column_for_the_tree_of_32_nodes_on_the_last_regime():
  run = [
    a_cell(4, 'regular'),
    a_cell(4, 'both'),
    a_cell(4, 'both', 'top-2'),
    a_cell(4, 'regular', 'tree-32'),
  ]
  assert (
    tables.table1(run).header[-1] == 'Both, top-2'
    and tables.TREE_NOTE not in tables.table1(run).notes
  )
  run += [
    a_cell(4, 'both', 'tree-32', bleu=33.1, mean_block_size=2.5),
    a_cell(4, 'both', 'tree-64'),
  ]
  table = tables.table1(run)
  assert (
    table.header == ('k', 'Regular', 'Both', 'Both, top-2', 'Both, tree-32')
    and tables.TREE_NOTE in table.notes
  )
  assert (
    table.rows[0][-1] == ('33.10 / 2.50', '') and (4, 'both', 'tree-32') not in published.TABLE1
  )
  frozen = [a_cell(4, 'regular'), a_cell(4, 'regular', 'tree-32')]
  assert tables.table1(frozen).header == ('k', 'Regular', 'Regular, tree-32')


def test_trees_are_lossless_and_so_no_other_rules():
  assert [row[0].ours for row in tables.rules_table([a_cell(4, rule='tree-8'), a_cell(4, rule='min-2')]).rows] == [
    '4, min 2']  # fmt: skip


@pytest.mark.parametrize('rule', ['tree', 'tree-', 'tree-0', 'tree-x', 'tree-08'])
def test_what_is_no_tree_is_no_cell(rule):
  with pytest.raises(UserError, match='tree-N or beam-N'):
    BlockwiseCell(4, 'both', rule)
