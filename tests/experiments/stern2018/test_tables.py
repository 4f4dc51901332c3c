"""Tables 1 and 4 and their pictures from rows: the paper's figures beside ours, in its layout; what
failed says why."""

import csv
import io
import itertools

import matplotlib.image
import pytest
import rich.console
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from experiments.lab import report
from experiments.stern2018 import published, tables
from fastdec.cli.show import plain_console
from fastdec.errors import UserError
from fastdec.evaluation.labels import Label, place

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
  return {row[0].ours: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}


def texts_of(table):
  return [[entry.ours for entry in row] for row in table.rows]


# --- what the paper says


def test_the_papers_table():
  assert len(published.TABLE1) == 2 + 5 * 6
  assert published.TABLE1[1, 'distil', 'exact'] == (26.41, 1.00)
  assert published.TABLE1[8, 'finetune', 'exact'] == (24.27, 3.01)
  assert published.TABLE1[10, 'both', 'top-3'] == (24.68, 5.91)
  assert (1, 'both', 'exact') not in published.TABLE1
  assert published.FIGURE4[8] == (4.69, 3.31) and published.FIGURE4[1] == (1.0, 1.0)
  assert len(published.FIGURE4) == 6


def test_the_papers_figure_stands_beside_ours():
  table = tables.table1([a_row(8, 'regular', bleu=31.234, mean_block_size=1.5), a_row(8)])
  assert table.header == ('k', 'Regular', 'Fine tuning')
  assert rows_of(table)['8'] == {
    'Regular': ('31.23 / 1.50', '(25.82 / 1.76)'),
    'Fine tuning': ('30.80 / 3.00', '(24.27 / 3.01)'),
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
  assert rows_of(table)['8']['Fine tuning, top-2 †'].beside == '(25.71 / 5.34)'
  assert tables.TOP_N_NOTE in table.notes
  assert tables.TOP_N_NOTE not in tables.table1([a_row(8), a_row(8, 'both', 'top-2')]).notes


def test_rows_are_in_the_order_of_k():
  table = tables.table1([a_row(k, rule=rule) for rule in ('min-3', 'exact') for k in (10, 2)])
  assert [row[0].ours for row in table.rows] == ['2', '10']


def test_a_missing_row_is_a_dash_and_a_failed_one_says_why():
  failed = a_row(6, error='the loss is\nnot finite at step 7', bleu=None)
  assert rows_of(tables.table1([failed, a_row(4, 'regular')]))['6'] == {
    'Regular': ('–', '(26.08 / 1.76)'),
    'Fine tuning': ('failed: the loss is not finite at step 7', '(24.69 / 2.98)'),
  }


def test_figures_that_could_not_be_measured_are_dashes(tmp_path):
  """A model that writes nothing has no blocks, and heads no accuracy."""
  silent = a_row(4, mean_block_size=None, calls_per_output=None, head_accuracy=[], own_accuracy=[])
  assert rows_of(tables.table1([silent]))['4']['Fine tuning'].ours == '30.40 / –'
  (row,) = texts_of(tables.wallclock_table([silent]))
  assert row[6:] == ['–', '–', '', '']
  tables.scatter([silent], tmp_path / 'table1.png')
  tables.figure4([silent], tmp_path / 'figure4.png')


def test_a_rerun_replaces_a_failure_and_no_failure_replaces_figures():
  failed, done = a_row(error='killed'), a_row()
  for rows, shown in (([failed, done], done), ([done, failed], done), ([failed], failed)):
    assert tables.by_key(rows) == {(4, 'finetune', 'exact'): shown}


def test_notes_say_what_the_heads_learnt_from_and_what_they_see():
  own, sees = a_row(heads_text='own'), a_row(heads_see='the root')
  for draw in (tables.table1, tables.wallclock_table):
    assert tables.OWN_NOTE in draw([own]).notes and tables.OWN_NOTE not in draw([a_row()]).notes
  (note,) = tables.heads_notes([a_row(), sees])
  assert note.startswith('Heads see the root, too;') and note in tables.table1([sees]).notes


def test_a_model_that_serves_several_k_is_named_in_a_note():
  alone = [a_row(2, 'both', models='a'), a_row(8, 'both', models='b')]
  alone += [a_row(k, 'regular', models='c') for k in (2, 8)]
  assert tables.heads_notes(alone) == []  # frozen heads for the largest k serve all anyway
  shared = [a_row(2, 'both', models='a'), a_row(8, 'both', models='a')]
  (note,) = tables.heads_notes(shared)
  assert 'Both, k = 2, 8;' in note and note in tables.table1(shared).notes


def test_notes_carry_the_conditions_and_every_value_of_those_that_differ():
  note = tables.table1([a_row(), a_row(8, commit='def')], ['The text is toys.']).notes[-2:]
  assert note[0] == 'The text is toys.' and 'nrefs:1|tok:13a' in note[1]
  assert 'commit abc, def' in note[1] and 'config c.py:scale=tiny;' in note[1]


def test_markdown():
  text = report.markdown(tables.table1([a_row(4, error='a | b')]))
  assert text.splitlines()[:5] == [
    '## Blockwise parallel decoding, Table 1',
    '',
    '| k | Fine tuning |',
    '| --- | --- |',
    r'| 4 | failed: a \| b (25.05 / 2.69) |',
  ]


def test_figures_are_not_broken_over_lines_in_80_columns():
  run = [a_row(k, regime) for k in (8, 10) for regime in REGIMES]
  run += [a_row(k, 'both', rule) for k in (8, 10) for rule in ('top-2', 'top-3')]
  console = rich.console.Console(width=80, file=io.StringIO())
  failed = a_row(6, error='a reason that is longer than a figure')
  console.print(report.terminal(tables.table1([*run, failed])))
  console.print(report.terminal(tables.wallclock_table(run)))
  text = console.file.getvalue()
  assert text.count('30.80/3.00') == 6 and text.count('25.71/5.34') == 1
  assert 'Distillation  exact' in text


# --- other rules, wall clock, trees


def test_other_rules_have_a_table_of_their_own():
  rules = 'top-2', 'min-2', 'tree-8', 'exact'
  table = tables.rules_table([a_row(k, rule=rule) for rule in rules for k in (10, 2)])
  assert [row[0].ours for row in table.rows] == ['2, min 2', '10, min 2', '2, top 2', '10, top 2']
  assert rows_of(table)['10, min 2']['Fine tuning'] == ('31.00 / 3.50', '')
  assert tables.MIN_NOTE in table.notes
  assert 'beam' not in str(tables.rules_table([a_row(1, 'distil', 'beam-4')]))
  both = tables.rules_table([a_row(8, 'both', 'top-2'), a_row(8, 'distil', 'top-2')])
  assert rows_of(both)['8, top 2'] == {
    'Distillation': ('30.80 / 3.00', ''),
    'Both': ('30.80 / 3.00', '(25.71 / 5.34)'),
  }


def test_wall_clock_is_compared_with_greedy_and_heads_are_shown_once():
  run = [
    a_row(3, rule='top-2', same_as_greedy=0.0, spread=[2.41, 2.6]),
    a_row(3, same_as_greedy=1.0, own_accuracy=[1.0, 0.5, 0.25]),
  ]
  table = tables.wallclock_table([*run, a_row(5, error='killed')])
  same = ['25.0', '10.0', '2.50×', '9.0']
  assert texts_of(table) == [
    ['3', 'Fine tuning', 'exact', *same, '100.0', '100 90 81', '100 50 25'],
    ['3', 'Fine tuning', 'top-2', *same, '0.0', '', ''],
  ]
  assert [row[5].beside for row in table.rows] == ['', '(2.41 .. 2.60)']
  console = rich.console.Console(file=io.StringIO())
  console.print(report.terminal(tables.wallclock_table([a_row(error='killed')])))  # no rows at all


def test_a_tree_stands_beside_its_chain():
  chain = {'mean_block_size': 2.0, 'ms_per_output': 10.0, 'speedup': 0.5, 'models': 'x'}
  tree = {'mean_block_size': 2.5, 'ms_per_output': 8.0, 'speedup': 0.625, 'models': 'x'}
  run = [
    a_row(4, 'both', **chain),
    a_row(4, 'both', 'tree-16', same_as_greedy=1.0, **tree),
    a_row(4, 'both', 'top-2', mean_block_size=3.5, models='x'),
  ]
  figures = ['2.00 / 2.50', '+25.0', '10.0 / 8.0', '0.50× / 0.62×', '100.0']
  assert texts_of(tables.trees_table(run)) == [['4', 'Both', '4 / 16', *figures]]


def test_trees_are_in_order_and_show_the_nodes_that_a_smaller_one_has():
  run = [a_row(4, 'both', 'tree-64', tree_nodes=21), a_row(8, 'both', 'tree-8', error='killed')]
  for k, regime, n in itertools.product((10, 4), ('both', 'regular'), (32, 8)):
    run.append(a_row(k, regime, f'tree-{n}'))
  assert [row[:3] for row in texts_of(tables.trees_table(run))] == [
    *([str(k), 'Regular', f'– / {n}'] for k in (4, 10) for n in (8, 32)),
    *(['4', 'Both', f'– / {n}'] for n in (8, 32, 21)),
    *(['10', 'Both', f'– / {n}'] for n in (8, 32)),
  ]


def chain_of(k, regime, rule, run):
  trees = texts_of(tables.trees_table([*run, a_row(k, regime, rule, models='x')]))
  (row,) = [row for row in trees if row[0] == str(k)]
  return row[2].split(' / ')[0], row[3].split(' / ')[0]


NESTED = [a_row(k, 'regular', models='x', mean_block_size=k / 4) for k in (2, 4, 8, 10)]


@pytest.mark.parametrize(
  'k, width, chain', [(10, 64, 10), (10, 10, 10), (10, 9, 8), (4, 64, 4), (4, 3, 2)]
)
def test_a_chain_is_no_wider_than_the_tree_and_drafts_with_no_more_heads(k, width, chain):
  assert chain_of(k, 'regular', f'tree-{width}', NESTED) == (str(chain), f'{chain / 4:.2f}')


@pytest.mark.parametrize(
  'other',
  [{'models': 'y'}, {'split': 'test'}, {'error': 'killed'}, {'regime': 'both'}, {'rule': 'top-2'}],
  ids=str,
)
def test_only_a_chain_by_the_same_heads_is_compared_with(other):
  row = {'k': 4, 'regime': 'finetune', 'rule': 'exact', 'models': 'x'} | other
  assert chain_of(4, 'finetune', 'tree-8', [a_row(**row)]) == ('–', '–')


# --- Table 4, and workdirs side by side


def test_table_4_has_the_rivals_as_published_and_ours_beside_the_papers():
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
  texts = [tuple(' '.join(filter(None, entry)) for entry in row) for row in table.rows]
  assert texts[0] == ('Vaswani 2017, Transformer, beam 4', '', '(28.40)', '', '', '')
  assert texts[9] == ('Lee 2018, refinement, 1 iteration', '', '(13.91)', '(11.39×)', '', '')
  assert texts[len(published.RIVALS) :] == [
    ('Ours, beam 4', '30.10', '33.30', '2.50×', '2.41 .. 2.60', ''),
    ('Ours, greedy, k = 1', '30.10', '– (29.11)', '1.00× (1.00×)', '–', '1.25'),
    ('Ours, greedy, k = 4', 'failed: base: killed', '(28.54)', '(2.69×)', '', ''),
    ('Ours, greedy, k = 8', '30.80', '– (27.88)', '2.50× (3.31×)', '–', '3.00'),
  ]


def test_rows_side_by_side_are_what_two_workdirs_have_with_exact_acceptance():
  one = [
    a_row(1, 'regular', bleu=30.0, mean_block_size=1.0, same_as_greedy=1.0),
    a_row(4, 'regular', bleu=29.5, mean_block_size=1.5, same_as_greedy=0.5),
    a_row(4, 'regular', 'top-2', bleu=1.0, mean_block_size=9.0),
    a_row(8, 'regular', bleu=2.0),
  ]
  same = {'mean_block_size': 1.0, 'same_as_greedy': 1.0}
  other = [a_row(4, 'regular', error='killed'), a_row(1, 'regular', bleu=31.25, **same)]
  table = tables.beside({'a': one, 'b': other})
  assert table.header == ('k', 'Training', 'a', 'b')
  assert texts_of(table) == [
    ['1', 'Regular', '30.00 / 1.00 / 100.0', '31.25 / 1.00 / 100.0'],
    ['4', 'Regular', '29.50 / 1.50 / 50.0', 'failed: killed'],
  ]


def test_other_outputs_and_workdirs_without_rows_are_refused():
  dev, test = ([a_row(1, 'regular', split=split)] for split in ('dev', 'test'))
  with pytest.raises(UserError, match='measured on different outputs'):
    tables.beside({'a': dev, 'b': test})
  with pytest.raises(UserError, match='b has no rows with exact acceptance'):
    tables.beside({'a': dev, 'b': [a_row(1, 'regular', 'top-2')]})


# --- files and pictures


def test_csv_is_tidy():
  rows = list(csv.DictReader(io.StringIO(tables.as_csv([a_row(8), a_row(8, rule='min-2')]))))
  assert [row['rule'] for row in rows] == ['exact', 'min-2'] and 'error' not in rows[0]
  there = [rows[0][name] for name in ('paper_bleu', 'paper_mean_block_size', 'bleu', 'commit')]
  assert there == ['24.27', '3.01', '30.8', 'abc'] and rows[1]['paper_bleu'] == ''
  assert rows[0]['head_accuracy'].startswith('1.0000 0.9000 0.8100')


def test_the_page_the_csv_and_the_picture_are_written(tmp_path):
  run = [
    a_row(k, regime, rule)
    for k in (2, 8)
    for regime in ('regular', 'finetune')
    for rule in ('exact', 'top-2')
  ]
  drawn = [tables.table1(run), tables.wallclock_table(run)]
  tables.write(tmp_path / 'table1', plain_console(), drawn, run, 'table1.png')
  tables.scatter(run, tmp_path / 'table1.png')
  names = sorted(path.name for path in tmp_path.iterdir())
  assert names == ['table1.csv', 'table1.md', 'table1.png']
  assert '## Wall clock' in (tmp_path / 'table1.md').read_text()
  assert matplotlib.image.imread(tmp_path / 'table1.png').shape[:2] == (900, 1800)


@pytest.mark.slow
def test_figure_4_shows_what_is_tuned_and_its_own_rule_alone(tmp_path):
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


CROWD = {
  'the paper': [(block, bleu) for bleu, block in published.TABLE1.values()],
  'one point': [(1.4, 33.4)] * 5,
}


@pytest.mark.parametrize('name', CROWD)
def test_labels_cover_neither_each_other_nor_a_point_and_stay_inside(name):
  figure = Figure(figsize=(6, 5), dpi=150, layout='constrained')
  axes = figure.subplots()
  points = CROWD[name]
  axes.plot(*zip(*points, strict=True), 'o')
  figure.draw_without_rendering()
  place(axes, [Label(str(i), x, y, 'black') for i, (x, y) in enumerate(points)])
  texts = [child for child in axes.get_children() if isinstance(child, Annotation)]
  figure.draw_without_rendering()  # puts them where they belong
  boxes = [Text.get_window_extent(text) for text in texts]  # without the lines that lead to them
  assert [text.get_text() for text in texts] == [str(i) for i in range(len(points))]
  assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
  pixels = axes.transData.transform(points)
  assert not [box for box in boxes for x, y in pixels if box.contains(x, y)]
  assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)
