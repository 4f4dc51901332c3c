"""Tables 1 and 4 and their pictures from rows: our figures with the paper's, in its layout. A
failed row says why."""

import matplotlib.image
import pytest

from experiments.lab import report
from experiments.lab.workdir import Workdir
from experiments.stern2018 import tables

CONDITIONS = {'device': 'cpu', 'dtype': 'float32', 'batch': 1, 'seed': 0, 'commit': 'abc'}
REGIMES = 'regular', 'distil', 'finetune', 'both'


def a_row(k=4, regime='finetune', rule='exact', **fields):
  """A row as if it had been measured."""
  figures = {
    'bleu': 30.0 + k / 10, 'bleu_signature': 'nrefs:1|tok:13a',
    'mean_block_size': 1 + k / 4, 'calls_per_output': 9.0,
    'ms_per_output': 10.0, 'greedy_ms_per_output': 25.0,
    'speedup': 2.5,
    'head_accuracy': [0.9**i for i in range(k)],
    'outputs': 500, 'split': 'dev',
    'config': 'c.py:scale=tiny',
  }  # fmt: skip
  return {'k': k, 'regime': regime, 'rule': rule, **figures, **CONDITIONS, **fields}


def rows_of(table):
  return {row[0]: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}


def texts_of(table):
  return [list(row) for row in table.rows]


# --- what the paper says


def test_the_papers_table():
  assert len(tables.PAPERS_TABLE1) == 2 + 5 * 6
  assert tables.PAPERS_TABLE1[1, 'distil', 'exact'] == (26.41, 1.00)
  assert tables.PAPERS_TABLE1[8, 'finetune', 'exact'] == (24.27, 3.01)
  assert tables.PAPERS_TABLE1[10, 'both', 'top-3'] == (24.68, 5.91)
  assert (1, 'both', 'exact') not in tables.PAPERS_TABLE1
  assert tables.PAPERS_FIGURE4[8] == (4.69, 3.31) and tables.PAPERS_FIGURE4[1] == (1.0, 1.0)
  assert len(tables.PAPERS_FIGURE4) == 6


def test_the_papers_figure_is_next_to_ours():
  table = tables.table1([a_row(8, 'regular', bleu=31.234, mean_block_size=1.5), a_row(8)])
  assert table.header == ('k', 'Regular', 'Fine tuning')
  assert rows_of(table)['8'] == {
    'Regular': '31.23 / 1.50 (25.82 / 1.76)',
    'Fine tuning': '30.80 / 3.00 (24.27 / 3.01)',
  }


# --- Table 1


@pytest.mark.parametrize('run, header', [
  (
    [('both', 'top-3'), ('regular', 'exact'), ('both', 'exact'), ('finetune', 'top-2'),
     ('distil', 'exact'), ('both', 'top-2'), ('finetune', 'exact'), ('both', 'min-2')],
    ('Regular', 'Distillation', 'Fine tuning', 'Both', 'Both, top-2', 'Both, top-3'),
  ),
  (
    [('regular', 'exact'), ('finetune', 'exact'), ('finetune', 'top-2'), ('regular', 'top-2')],
    ('Regular', 'Fine tuning', 'Fine tuning, top-2 †'),
  ),
  ([('both', 'exact'), ('both', 'tree-32'), ('both', 'tree-64')], ('Both', 'Both, tree-32')),
  ([('regular', 'exact'), ('regular', 'tree-32')], ('Regular', 'Regular, tree-32')),
])  # fmt: skip
def test_columns_appear_where_they_were_run_and_in_the_papers_order(run, header):
  assert tables.table1([a_row(4, *column) for column in run]).header == ('k', *header)


def test_top_n_on_fine_tuning_is_compared_with_the_papers_both_and_says_so():
  table = tables.table1([a_row(8, rule='top-2')])
  assert rows_of(table)['8']['Fine tuning, top-2 †'].endswith(' (25.71 / 5.34)')
  assert tables.TOP_N_NOTE in table.notes
  assert tables.TOP_N_NOTE not in tables.table1([a_row(8), a_row(8, 'both', 'top-2')]).notes


def test_a_missing_row_is_a_dash_and_a_failed_one_says_why():
  failed = a_row(6, error='the loss is\nnot finite at step 7', bleu=None)
  assert rows_of(tables.table1([failed, a_row(4, 'regular')]))['6'] == {
    'Regular': '– (26.08 / 1.76)',
    'Fine tuning': 'failed: the loss is not finite at step 7 (24.69 / 2.98)',
  }


def test_figures_that_could_not_be_measured_are_dashes(tmp_path):
  """A model that writes nothing has no blocks, and heads no accuracy."""
  silent = a_row(4, mean_block_size=None, calls_per_output=None, head_accuracy=[], own_accuracy=[])
  assert rows_of(tables.table1([silent]))['4']['Fine tuning'].startswith('30.40 / – (')
  assert texts_of(tables.text_rows([silent]))[0][6] == '–'
  assert tables.heads_table([silent]).rows == ()
  tables.scatter([silent], tmp_path / 'table1.png')
  tables.figure4([silent], tmp_path / 'figure4.png')


def test_a_rerun_replaces_a_failure_and_no_failure_replaces_figures():
  failed, done = a_row(error='killed'), a_row()
  for rows, shown in (([failed, done], done), ([done, failed], done), ([failed], failed)):
    assert tables.by_key(rows) == {(4, 'finetune', 'exact'): shown}


def test_notes_say_what_the_heads_learnt_from_and_what_they_see():
  own, sees = a_row(heads_text='own'), a_row(heads_see='the root')
  assert tables.OWN_NOTE in tables.table1([own]).notes
  assert tables.OWN_NOTE not in tables.table1([a_row()]).notes
  (note,) = tables.heads_notes([a_row(), sees])
  assert note.startswith('Heads also see the root;') and note in tables.table1([sees]).notes


def test_a_model_that_serves_several_k_is_named_in_a_note():
  alone = [a_row(2, 'both', models='a'), a_row(8, 'both', models='b')]
  alone += [a_row(k, 'regular', models='c') for k in (2, 8)]
  assert tables.heads_notes(alone) == []  # frozen heads for the largest k serve all anyway
  shared = [a_row(2, 'both', models='a'), a_row(8, 'both', models='a')]
  (note,) = tables.heads_notes(shared)
  assert 'Both, k = 2, 8;' in note and note in tables.table1(shared).notes


# --- every row, and heads


def test_every_finished_row_has_a_line_of_quality_and_speed():
  run = [
    a_row(8, 'both', 'top-2', same_as_greedy=0.25, spread=[2.41, 2.6]),
    a_row(8, 'both', 'tree-8', same_as_greedy=1.0),
    a_row(8, 'both', same_as_greedy=1.0),
    a_row(4, 'both', 'tree-16', same_as_greedy=1.0),
    a_row(4, 'regular', 'min-2', same_as_greedy=0.5),
    a_row(1, 'distil', 'beam-4'),
    a_row(5, error='killed'),
  ]
  table = tables.text_rows(run)
  figures = ['30.80', '25.0', '10.0', '3.00', '2.50×']
  assert texts_of(table) == [
    ['4', 'Regular', 'min-2', '30.40', '25.0', '10.0', '2.00', '2.50×', '50.0'],
    ['4', 'Both', 'tree-16', '30.40', '25.0', '10.0', '2.00', '2.50×', '100.0'],
    ['8', 'Both', 'exact', *figures, '100.0'],
    ['8', 'Both', 'top-2', *figures[:-1], '2.50× (2.41 .. 2.60)', '25.0'],
    ['8', 'Both', 'tree-8', *figures, '100.0'],
  ]
  assert not tables.text_rows([a_row(error='killed')]).rows


def test_heads_have_a_row_for_each_model_with_heads():
  own = a_row(4, 'regular', head_accuracy=[1.0, 0.5], own_accuracy=[1.0, 0.75])
  untrained = [a_row(k, regime, head_accuracy=None) for k, regime in ((1, 'both'), (2, 'forecast'))]
  others = [*untrained, a_row(4, 'regular', 'top-2')]
  assert texts_of(tables.heads_table([*others, own, a_row(3, own_accuracy=[1.0, None])])) == [
    ['4', 'Regular', '100 50', '100 75'],
    ['3', 'Fine tuning', '100 90 81', '100 –'],
  ]


# --- Table 4, and workdirs side by side


def test_table_4_has_the_rivals_as_published_and_our_figures_with_the_papers():
  run = [
    a_row(1, 'distil', 'beam-4', compound_bleu=33.3, spread=[2.41, 2.6]),
    a_row(1, 'distil', speedup=1.0),
    a_row(8, 'both'),
    a_row(8, 'both', 'tree-8'),
    a_row(1, 'regular'),
    a_row(8, 'finetune'),
    a_row(4, 'both', error='base: killed'),
  ]
  table = tables.table4(run)
  texts = table.rows
  assert texts[0] == ('Vaswani 2017, Transformer, beam 4', '–', '(28.40)', '', '–', '–')
  assert texts[9] == ('Lee 2018, refinement, 1 iteration', '–', '(13.91)', '(11.39×)', '–', '–')
  assert texts[len(tables.RIVALS) :] == (
    ('Ours, beam 4', '30.10', '33.30', '2.50×', '2.41 .. 2.60', '1.25'),
    ('Ours, greedy, k = 1', '30.10', '– (29.11)', '1.00× (1.00×)', '–', '1.25'),
    ('Ours, greedy, k = 4', 'failed: base: killed', '– (28.54)', '– (2.69×)', '–', '–'),
    ('Ours, greedy, k = 8', '30.80', '– (27.88)', '2.50× (3.31×)', '–', '3.00'),
  )


# --- files and pictures


def test_the_page_and_the_picture_are_written(tmp_path):
  run = [
    a_row(k, regime, rule)
    for k in (2, 8)
    for regime in ('regular', 'finetune')
    for rule in ('exact', 'top-2')
  ]
  drawn = [tables.table1(run), tables.text_rows(run)]
  report.write(Workdir(tmp_path), 'table1', drawn, 'table1.png')
  tables.scatter(run, tmp_path / 'table1.png')
  names = sorted(path.name for path in tmp_path.iterdir())
  assert names == ['table1.md', 'table1.png']
  assert '## Quality and speed' in (tmp_path / 'table1.md').read_text()
  assert matplotlib.image.imread(tmp_path / 'table1.png').shape[:2] == (900, 1800)


@pytest.mark.slow
def test_figure_4_shows_only_what_is_tuned_and_its_own_rule(tmp_path):
  shown = {
    'text': [a_row(k, 'both', speedup=k / 3) for k in (2, 8)],
    'images': [a_row(6, 'finetune', 'distance-2')],
    'none': [],
    'others': [a_row(8), a_row(10, 'both', error='killed', speedup=None),
      a_row(6, 'regular', 'distance-2'), a_row(6, rule='distance-3')],
  }  # fmt: skip
  pictures = {}
  for name, rows in shown.items():
    path = tmp_path / f'{name}.png'
    tables.figure4(rows, path)
    assert matplotlib.image.imread(path).shape[:2] == (900, 1200)
    pictures[name] = path.read_bytes()
  assert pictures['none'] == pictures['others'] and len(set(pictures.values())) == 3
