"""The table is made from JSON lines: nothing is lost, nothing typed, and the paper's figure stands beside ours."""

import csv
import io
import json

import matplotlib.image
import pytest

from experiments.lab import cells, report
from experiments.lab.cells import Cell
from experiments.papers.stern2018 import figures, published, tables
from fastdec.errors import UserError
from tests.experiments.measured import a_cell

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


@pytest.mark.parametrize('rule', ['top', 'top-0', 'best', 'exact-2', 'distance', 'distance-02', 'distance--1', ''])
def test_a_rule_that_is_not_in_the_table_is_refused(rule):
  with pytest.raises(UserError, match='top-N'):
    Cell(4, 'regular', rule)


def test_a_rerun_replaces_a_failure():
  failed, done = a_cell(error='killed'), a_cell()
  assert list(cells.latest([failed, a_cell(k=2), done]).values()) == [done, a_cell(k=2)]
  assert list(cells.latest([done, failed]).values()) == [done]  # another process had done it
  assert list(cells.latest([failed, a_cell(error='no space')]).values()) == [a_cell(error='no space')]


def test_lines_from_before_fields_had_their_names_are_read(tmp_path):
  path = tmp_path / 'cells.jsonl'
  old = {'sentences': 5, 'calls_per_sentence': 9.0, 'ms_per_sentence': 1.0, 'greedy_ms_per_sentence': 2.0}
  path.write_text(json.dumps({'k': 4, 'tune': 'finetune', 'rule': 'exact', 'seed': 0, **old}) + '\n')
  new = {'outputs': 5, 'calls_per_output': 9.0, 'ms_per_output': 1.0, 'greedy_ms_per_output': 2.0}
  assert cells.read(path) == [Cell(4, 'finetune', 'exact', conditions={'seed': 0}, **new)]


def test_cells_of_images_survive_the_file_but_for_infinite_figures(tmp_path):
  measured = {'bits_per_dimension': 3.1, 'psnr': 24.5, 'ssim': 0.8, 'outputs': 64}
  for rule, infinite in (('distance-0', float('inf')), ('distance-12', 31.0)):
    cells.append(tmp_path / 'cells.jsonl', Cell(4, 'regular', rule, psnr_to_greedy=infinite, **measured))
  assert cells.read(tmp_path / 'cells.jsonl') == [
    Cell(4, 'regular', 'distance-0', **measured),
    Cell(4, 'regular', 'distance-12', psnr_to_greedy=31.0, **measured),
  ]


# --- the paper's figures


def test_the_papers_table():
  assert len(published.TABLE1) == 2 + 5 * 6
  assert published.TABLE1[1, 'distil', 'exact'] == (26.41, 1.00)
  assert published.TABLE1[8, 'finetune', 'exact'] == (24.27, 3.01)
  assert published.TABLE1[10, 'both', 'top-3'] == (24.68, 5.91)
  assert (1, 'both', 'exact') not in published.TABLE1


def test_csv_is_tidy(tmp_path):
  text = report.tidy_csv([a_cell(8), a_cell(8, rule='min-2', bleu=None)], published.TABLE1)
  rows = list(csv.DictReader(io.StringIO(text)))
  assert [row['rule'] for row in rows] == ['exact', 'min-2']
  assert (rows[0]['paper_bleu'], rows[0]['paper_mean_block_size'], rows[0]['bleu']) == ('24.27', '3.01', '30.8')
  assert (rows[1]['paper_bleu'], rows[1]['bleu'], rows[1]['commit']) == ('', '', 'abc')


def test_csv_has_only_the_columns_that_some_cell_has():
  image = Cell(4, 'regular', 'distance-2', psnr=24.5)
  assert report.tidy_csv([image], {image.key: (None, 1.36)}).splitlines() == [
    'k,regime,rule,psnr,paper_mean_block_size',
    '4,regular,distance-2,24.5,1.36',
  ]
  assert 'psnr,' in report.tidy_csv([image, a_cell(8)], {}) and ',error' not in report.tidy_csv([image, a_cell(8)], {})


def test_the_page_the_csv_and_the_picture_are_written(tmp_path):
  run = [a_cell(k, regime, rule) for k in (2, 8) for regime in ('regular', 'finetune') for rule in ('exact', 'top-2')]
  drawn = [tables.table1(run), tables.wallclock_table(run)]
  report.write(drawn, run, tmp_path / 'table1', 'table1.png', published.TABLE1)
  figures.scatter(run, tmp_path / 'table1.png', published.TABLE1)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['table1.csv', 'table1.md', 'table1.png']
  assert '## Wall clock' in (tmp_path / 'table1.md').read_text()
  assert matplotlib.image.imread(tmp_path / 'table1.png', published.TABLE1).shape[:2] == (900, 1800)


def test_a_picture_without_finished_cells_shows_the_papers_alone(tmp_path):
  figures.scatter([a_cell(error='killed')], tmp_path / 'table1.png', published.TABLE1)
  assert (tmp_path / 'table1.png', published.TABLE1).stat().st_size > 10_000
