"""Tables, picture and CSV are made from cells: nothing is typed, and the paper's figure stands
beside ours."""

import csv
import io

import matplotlib.image

from experiments.papers.stern2018 import entries, figures, published, tables
from experiments.papers.stern2018.cells import BlockwiseCell
from tests.experiments.measured import a_cell


def test_the_papers_table():
  assert len(published.TABLE1) == 2 + 5 * 6
  assert published.TABLE1[1, 'distil', 'exact'] == (26.41, 1.00)
  assert published.TABLE1[8, 'finetune', 'exact'] == (24.27, 3.01)
  assert published.TABLE1[10, 'both', 'top-3'] == (24.68, 5.91)
  assert (1, 'both', 'exact') not in published.TABLE1


def test_csv_is_tidy(tmp_path):
  text = entries.tidy_csv([a_cell(8), a_cell(8, rule='min-2', bleu=None)], published.TABLE1)
  rows = list(csv.DictReader(io.StringIO(text)))
  assert [row['rule'] for row in rows] == ['exact', 'min-2']
  assert (rows[0]['paper_bleu'], rows[0]['paper_mean_block_size'], rows[0]['bleu']) == (
    '24.27',
    '3.01',
    '30.8',
  )
  assert (rows[1]['paper_bleu'], rows[1]['bleu'], rows[1]['commit']) == ('', '', 'abc')


def test_csv_has_only_the_columns_that_some_cell_has():
  image = BlockwiseCell(4, 'regular', 'distance-2', psnr=24.5)
  assert entries.tidy_csv([image], {image.key: (None, 1.36)}).splitlines() == [
    'k,regime,rule,psnr,paper_mean_block_size',
    '4,regular,distance-2,24.5,1.36',
  ]
  both = entries.tidy_csv([image, a_cell(8)], {})
  assert 'psnr,' in both and ',error' not in both


def test_the_page_the_csv_and_the_picture_are_written(tmp_path):
  run = [
    a_cell(k, regime, rule)
    for k in (2, 8)
    for regime in ('regular', 'finetune')
    for rule in ('exact', 'top-2')
  ]
  drawn = [tables.table1(run), tables.wallclock_table(run)]
  entries.write(drawn, run, tmp_path / 'table1', 'table1.png', published.TABLE1)
  figures.scatter(run, tmp_path / 'table1.png')
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    'table1.csv',
    'table1.md',
    'table1.png',
  ]
  assert '## Wall clock' in (tmp_path / 'table1.md').read_text()
  assert matplotlib.image.imread(tmp_path / 'table1.png').shape[:2] == (900, 1800)


def test_a_picture_without_finished_cells_shows_the_papers_alone(tmp_path):
  figures.scatter([a_cell(error='killed')], tmp_path / 'table1.png')
  assert (tmp_path / 'table1.png').stat().st_size > 10_000
