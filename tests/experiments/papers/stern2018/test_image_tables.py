"""Table 2 has the paper's figure beside ours in its columns; other tables have what the paper does
not give."""

import csv
import io

import rich.console

from experiments.lab import report
from experiments.papers.stern2018 import entries, image_tables
from experiments.stern2018 import published
from tests.experiments.measured import an_image_cell

SWEEP = [
  an_image_cell(k, regime, f'distance-{tau}')
  for k in (4, 10)
  for regime in ('regular', 'finetune')
  for tau in (2, 0, 8)
]


def texts(table):
  return [tuple(' '.join(filter(None, entry)) for entry in row) for row in table.rows]


def test_the_papers_table():
  assert len(published.TABLE2) == 1 + 5 * 4
  assert (
    published.TABLE2[8, 'regular', 'distance-2'] == 1.49
    and published.TABLE2[10, 'finetune', 'distance-2'] == 6.79
  )
  assert (
    published.TABLE2[1, 'regular', 'exact'] == 1
    and (1, 'finetune', 'exact') not in published.TABLE2
  )


def test_table_2_has_the_papers_columns_and_figures():
  run = [
    an_image_cell(10),
    an_image_cell(10, rule='exact', error='killed\nat step 7'),
    an_image_cell(1, 'regular', 'exact'),
    an_image_cell(10, 'regular'),
    an_image_cell(3, 'regular', 'exact', mean_block_size=1.046),
  ]
  table = image_tables.table2(run)
  assert table.header == ('k', 'Regular', 'Approximate', 'Fine tuning', 'Both')
  assert texts(table) == [
    ('1', '1.25 (1.00)', '–', '–', '–'),
    ('3', '1.05', '–', '–', '–'),
    ('10', '– (1.10)', '3.50 (1.40)', 'failed: killed at step 7 (2.04)', '3.50 (6.79)'),
  ]
  assert 'outputs 64' in table.notes[-1]


def test_a_sweep_adds_no_rows_to_table_2():
  run = [an_image_cell(4), an_image_cell(6, rule='distance-3'), an_image_cell(8, 'both')]
  assert [row[0] for row in texts(image_tables.table2(run))] == ['4']


def test_quality_has_a_row_for_each_finished_cell_of_table_2_and_each_other_rule():
  run = [
    an_image_cell(2, rule='exact', same_as_greedy=0.0),
    an_image_cell(2),
    an_image_cell(2, rule='distance-3'),
    an_image_cell(2, rule='window-2'),
    an_image_cell(1, 'regular', 'exact', psnr_to_greedy=None, same_as_greedy=1.0),
    an_image_cell(2, rule='min-2', psnr=None),
    an_image_cell(4, error='killed'),
    an_image_cell(4, 'regular', psnr_to_greedy=float('inf'), speedup=None),
  ]
  assert texts(image_tables.quality_table(run)) == [
    ('1', 'Regular', '1.25', '2.50×', '3.200', '24.40', '0.810', '∞', '100.0'),
    ('4', 'Approximate', '2.00', '–', '3.200', '24.10', '0.810', '∞', '12.5'),
    ('2', 'Fine tuning', '1.50', '2.50×', '3.200', '24.30', '0.810', '30.00', '0.0'),
    ('2', 'Both', '1.50', '2.50×', '3.200', '24.30', '0.810', '30.00', '12.5'),
    ('2', 'Fine tuning, min-2', '1.50', '2.50×', '3.200', '–', '0.810', '30.00', '12.5'),
    ('2', 'Both, centred', '1.50', '2.50×', '3.200', '24.30', '0.810', '30.00', '12.5'),
  ]


def test_heads_have_a_row_for_each_model_with_heads():
  own = an_image_cell(4, 'regular', 'exact', head_accuracy=(1.0, 0.5), own_accuracy=(1.0, 0.75))
  run = [
    an_image_cell(1, 'regular', 'exact'),
    own,
    an_image_cell(4, 'regular'),
    an_image_cell(2, rule='exact'),
  ]
  assert texts(image_tables.heads_table(run)) == [
    ('4', 'Regular', '100 50', '100 75'),
    ('2', 'Fine tuning', '100 50', ''),
  ]


def test_the_sweep_is_ordered_by_regime_k_and_tau_and_exact_is_0():
  # with one head all are accepted
  exact = [an_image_cell(1, 'regular', 'exact'), an_image_cell(4, 'regular', 'exact')]
  sweep = [
    cell for cell in SWEEP if (cell.k, cell.regime, cell.rule) != (4, 'regular', 'distance-0')
  ]
  rows = texts(image_tables.tau_table([*sweep, *exact, an_image_cell(4, rule='distance-12')]))
  assert [row[:3] for row in rows] == [
    *[(k, 'Regular', tau) for k in ('4', '10') for tau in '028'],
    *[('4', 'Fine tuning', tau) for tau in ('0', '2', '8', '12')],
    *[('10', 'Fine tuning', tau) for tau in '028'],
  ]
  assert rows[-1][3:] == ('3.50', '23.50', '0.810', '30.00')


def test_figures_are_not_broken_over_lines_in_80_columns():
  run = [*SWEEP, *(an_image_cell(10, regime, 'exact') for regime in ('regular', 'finetune'))]
  tables = image_tables.table2(run), image_tables.quality_table(run), image_tables.tau_table(run)
  console = rich.console.Console(width=80, file=io.StringIO())
  for table in tables:
    console.print(report.terminal(table))
  shown = console.file.getvalue()
  assert all(
    figure in shown
    for table in tables
    for row in texts(table)
    for figure in row[2:-1]
    if '(' not in figure
  )
  assert 'Approximate' in shown and '6.79' in shown and '2.50×' in shown


def test_the_csv_has_the_papers_block_sizes_and_no_bleu(tmp_path):
  entries.write(
    [image_tables.table2(SWEEP)], SWEEP, tmp_path / 'table2', 'table2.png', image_tables.PUBLISHED
  )
  rows = list(csv.DictReader((tmp_path / 'table2.csv').open()))
  assert [row['paper_mean_block_size'] for row in rows[:3]] == [
    '1.36',
    '',
    '',
  ] and 'paper_bleu' not in rows[0]
