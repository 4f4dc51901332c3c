"""The table is made from JSON lines: nothing is lost, nothing typed, and the paper's figure stands beside ours."""

import csv
import io
import json

import matplotlib.image
import pytest
import rich.console

from fastdec.errors import UserError
from fastdec.evaluation import cells, figures, paper, report, tables
from fastdec.evaluation.cells import Cell

CONDITIONS = {'device': 'cpu', 'dtype': 'float32', 'batch': 1, 'seed': 0, 'commit': 'abc', 'config': 'c.py:scale=tiny'}


def a_cell(k=4, regime='finetune', rule='exact', **fields):
  measured = {
    'bleu': 30.0 + k / 10, 'bleu_signature': 'nrefs:1|tok:13a', 'mean_block_size': 1 + k / 4, 'calls_per_sentence': 9.0,
    'ms_per_sentence': 10.0, 'greedy_ms_per_sentence': 25.0, 'speedup': 2.5, 'compile_seconds': 3.0,
    'head_accuracy': tuple(0.9 ** i for i in range(k)), 'sentences': 500, 'split': 'dev', 'conditions': CONDITIONS}
  return Cell(k, regime, rule, **{**measured, **fields})


def rows_of(table):
  return {row[0].ours: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}


# --- JSON lines

def test_cells_survive_the_file(tmp_path):
  path = tmp_path / 'out' / 'cells.jsonl'
  written = [a_cell(), a_cell(k=8, error='the loss is not finite', bleu=None, head_accuracy=())]
  for cell in written:
    cells.append(path, cell)
  assert cells.read(path) == written
  assert json.loads(path.read_text().splitlines()[0])['commit'] == 'abc'


def test_a_missing_file_has_no_cells(tmp_path):
  assert cells.read(tmp_path / 'none.jsonl') == []


def test_a_cut_line_is_passed_over_and_the_next_one_does_not_join_it(tmp_path):
  path = tmp_path / 'cells.jsonl'
  for k in (2, 4):
    cells.append(path, a_cell(k))
  path.write_bytes(path.read_bytes()[:-20])
  assert [cell.k for cell in cells.read(path)] == [2]
  cells.append(path, a_cell(8))
  assert [cell.k for cell in cells.read(path)] == [2, 8]


def test_what_is_not_a_number_is_null_in_the_file(tmp_path):
  path = tmp_path / 'cells.jsonl'
  cells.append(path, a_cell(mean_block_size=float('nan'), head_accuracy=(1.0, float('nan'))))
  assert 'NaN' not in path.read_text()
  assert cells.read(path)[0].mean_block_size is None and cells.read(path)[0].head_accuracy == (1.0, None)


@pytest.mark.parametrize('line', ['{"k": 1}', '[1]', '{"k": 1, "regime": "hard", "rule": "exact"}'])
def test_a_line_that_is_no_cell_is_named(tmp_path, line):
  path = tmp_path / 'cells.jsonl'
  cells.append(path, a_cell())
  path.write_text(path.read_text() + line)
  with pytest.raises(UserError, match=r'line 2 of .*cells.jsonl'):
    cells.read(path)


@pytest.mark.parametrize('rule', ['top', 'top-0', 'best', 'exact-2', ''])
def test_a_rule_that_is_not_in_the_table_is_refused(rule):
  with pytest.raises(UserError, match='top-N'):
    Cell(4, 'regular', rule)


def test_a_rerun_replaces_a_failure():
  failed, done = a_cell(error='killed'), a_cell()
  assert list(cells.latest([failed, a_cell(k=2), done]).values()) == [done, a_cell(k=2)]


# --- the paper's figures

def test_the_papers_table():
  assert len(paper.TABLE1) == 2 + 5 * 6
  assert paper.TABLE1[1, 'distil', 'exact'] == (26.41, 1.00)
  assert paper.TABLE1[8, 'finetune', 'exact'] == (24.27, 3.01)
  assert paper.TABLE1[10, 'both', 'top-3'] == (24.68, 5.91)
  assert (1, 'both', 'exact') not in paper.TABLE1


# --- Table 1

def test_the_papers_figure_stands_beside_ours():
  table = tables.table1([a_cell(8, 'regular', bleu=31.234, mean_block_size=1.5), a_cell(8)])
  assert table.header == ('k', 'Regular', 'Fine tuning')
  assert rows_of(table)['8'] == {
    'Regular': ('31.23 / 1.50', '(25.82 / 1.76)'), 'Fine tuning': ('30.80 / 3.00', '(24.27 / 3.01)')}


def test_columns_appear_where_they_were_run_and_in_the_papers_order():
  run = [('finetune', 'top-3'), ('regular', 'exact'), ('both', 'exact'), ('finetune', 'top-2'), ('distil', 'exact')]
  table = tables.table1([a_cell(4, *column) for column in run])
  assert table.header == (
    'k', 'Regular', 'Distillation', 'Fine tuning', 'Both', 'Fine tuning, top-2 †', 'Fine tuning, top-3 †')


def test_top_n_on_fine_tuning_is_compared_with_the_papers_both_and_says_so():
  table = tables.table1([a_cell(8, rule='top-2')])
  assert rows_of(table)['8']['Fine tuning, top-2 †'].paper == '(25.71 / 5.34)'
  assert tables.TOP_N_NOTE in table.notes
  assert tables.TOP_N_NOTE not in tables.table1([a_cell(8), a_cell(8, 'both', 'top-2')]).notes


def test_rows_are_in_the_order_of_k_with_minimum_blocks_below_and_marked():
  table = tables.table1([a_cell(k, rule=rule) for rule in ('min-3', 'min-2', 'exact') for k in (10, 2)])
  assert [row[0].ours for row in table.rows] == ['2', '10', '2, min 2 ‡', '10, min 2 ‡', '2, min 3 ‡', '10, min 3 ‡']
  assert rows_of(table)['10, min 2 ‡']['Fine tuning'] == ('31.00 / 3.50', '')
  assert tables.MIN_NOTE in table.notes


def test_a_missing_cell_is_a_dash_and_a_failed_one_says_why():
  table = tables.table1([a_cell(6, error='the loss is\nnot finite at step 7', bleu=None)])
  assert rows_of(table)['6'] == {
    'Regular': ('–', '(26.08 / 1.76)'), 'Fine tuning': ('failed: the loss is not finite at step 7', '(24.69 / 2.98)')}


def test_markdown():
  text = report.markdown(tables.table1([a_cell(4, error='a | b')]))
  assert text.splitlines()[:5] == [
    '## Blockwise parallel decoding, Table 1', '',
    '| k | Regular | Fine tuning |',
    '| --- | --- | --- |',
    r'| 4 | – (25.84 / 1.73) | failed: a \| b (25.05 / 2.69) |']
  assert 'newstest2013' in text


def test_notes_carry_the_conditions_and_every_value_of_those_that_differ():
  other = a_cell(8, conditions={**CONDITIONS, 'commit': 'def'})
  note = tables.table1([a_cell(), other]).notes[-1]
  assert 'nrefs:1|tok:13a' in note and 'commit abc, def' in note and 'config c.py:scale=tiny;' in note


def test_the_terminal_shows_every_figure_and_note():
  console = rich.console.Console(width=100, file=io.StringIO())
  console.print(report.terminal(tables.table1([a_cell(8, rule='top-2'), a_cell(8)])))
  text = console.file.getvalue()
  assert all(word in text for word in ('30.80 / 3.00', '(24.27 / 3.01)', '(25.71 / 5.34)', 'Regular', '†'))


def test_figures_are_not_broken_over_lines_in_80_columns():
  run = [a_cell(k, regime, rule) for k in (8, 10) for regime, rule in
         (('regular', 'exact'), ('finetune', 'exact'), ('finetune', 'top-2'), ('finetune', 'top-3'))]
  console = rich.console.Console(width=80, file=io.StringIO())
  console.print(report.terminal(tables.table1([*run, a_cell(6, error='a reason that is longer than a figure')])))
  console.print(report.terminal(tables.wallclock_table(run)))
  text = console.file.getvalue()
  assert text.count('30.80 / 3.00') == 4 and text.count('(25.71 / 5.34)') == 1 and 'Fine tuning  exact' in text


def test_nothing_measured_is_an_empty_table():
  rich.console.Console(file=io.StringIO()).print(report.terminal(tables.wallclock_table([a_cell(error='killed')])))


def test_wall_clock_is_compared_with_greedy_and_heads_are_shown_once():
  run = [a_cell(3, rule='top-2', same_as_greedy=0.0), a_cell(3, same_as_greedy=1.0), a_cell(5, error='killed')]
  table = tables.wallclock_table(run)
  texts = [[entry.ours for entry in row] for row in table.rows]
  assert texts == [
    ['3', 'Fine tuning', 'exact', '25.0', '10.0', '2.50×', '9.0', '100.0', '100 90 81'],
    ['3', 'Fine tuning', 'top-2', '25.0', '10.0', '2.50×', '9.0', '0.0', '']]


def test_csv_is_tidy(tmp_path):
  rows = list(csv.DictReader(io.StringIO(report.tidy_csv([a_cell(8), a_cell(8, rule='min-2', bleu=None)]))))
  assert [row['rule'] for row in rows] == ['exact', 'min-2']
  assert (rows[0]['paper_bleu'], rows[0]['paper_mean_block_size'], rows[0]['bleu']) == ('24.27', '3.01', '30.8')
  assert (rows[1]['paper_bleu'], rows[1]['bleu'], rows[1]['commit']) == ('', '', 'abc')


def test_the_page_the_csv_and_the_picture_are_written(tmp_path):
  run = [a_cell(k, regime, rule) for k in (2, 8) for regime in ('regular', 'finetune') for rule in ('exact', 'top-2')]
  report.write(run, tmp_path)
  figures.scatter(run, tmp_path / 'table1.png')
  assert sorted(path.name for path in tmp_path.iterdir()) == ['table1.csv', 'table1.md', 'table1.png']
  assert '## Wall clock' in (tmp_path / 'table1.md').read_text()
  assert matplotlib.image.imread(tmp_path / 'table1.png').shape[:2] == (900, 1800)


def test_a_picture_without_finished_cells_shows_the_papers_alone(tmp_path):
  figures.scatter([a_cell(error='killed')], tmp_path / 'table1.png')
  assert (tmp_path / 'table1.png').stat().st_size > 10_000
