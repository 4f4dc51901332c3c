"""Tables 1 and 4 from cells: the paper's figures beside ours, in its layout; what failed says
why."""

import io

import rich.console

from experiments.lab import report
from experiments.lab.settings import HeadsConfig
from experiments.papers.stern2018 import entries, published, show, tables
from tests.experiments.measured import CONDITIONS, a_cell


def rows_of(table):
  return {row[0].ours: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}


def test_the_papers_figure_stands_beside_ours():
  table = tables.table1([a_cell(8, 'regular', bleu=31.234, mean_block_size=1.5), a_cell(8)])
  assert table.header == ('k', 'Regular', 'Fine tuning')
  assert rows_of(table)['8'] == {
    'Regular': ('31.23 / 1.50', '(25.82 / 1.76)'),
    'Fine tuning': ('30.80 / 3.00', '(24.27 / 3.01)'),
  }


def test_columns_appear_where_they_were_run_and_in_the_papers_order():
  run = [
    ('both', 'top-3'),
    ('regular', 'exact'),
    ('both', 'exact'),
    ('finetune', 'top-2'),
    ('distil', 'exact'),
  ]
  run += [('both', 'top-2'), ('finetune', 'exact'), ('both', 'min-2')]
  table = tables.table1([a_cell(4, *column) for column in run])
  assert table.header == (
    'k',
    'Regular',
    'Distillation',
    'Fine tuning',
    'Both',
    'Both, top-2',
    'Both, top-3',
  )
  table = tables.table1(
    [a_cell(4, 'regular'), a_cell(4), a_cell(4, rule='top-2'), a_cell(4, 'regular', 'top-2')]
  )
  assert table.header == ('k', 'Regular', 'Fine tuning', 'Fine tuning, top-2 †')


def test_top_n_on_fine_tuning_is_compared_with_the_papers_both_and_says_so():
  table = tables.table1([a_cell(8, rule='top-2')])
  assert rows_of(table)['8']['Fine tuning, top-2 †'].beside == '(25.71 / 5.34)'
  assert tables.TOP_N_NOTE in table.notes
  assert tables.TOP_N_NOTE not in tables.table1([a_cell(8), a_cell(8, 'both', 'top-2')]).notes


def test_rows_are_in_the_order_of_k():
  table = tables.table1([a_cell(k, rule=rule) for rule in ('min-3', 'exact') for k in (10, 2)])
  assert [row[0].ours for row in table.rows] == ['2', '10']


def test_other_rules_have_a_table_of_their_own():
  table = tables.rules_table(
    [a_cell(k, rule=rule) for rule in ('top-2', 'min-2', 'exact') for k in (10, 2)]
  )
  assert [row[0].ours for row in table.rows] == ['2, min 2', '10, min 2', '2, top 2', '10, top 2']
  assert rows_of(table)['10, min 2']['Fine tuning'] == ('31.00 / 3.50', '')
  assert tables.MIN_NOTE in table.notes and 'beam' not in str(
    tables.rules_table([a_cell(1, 'distil', 'beam-4')])
  )
  both = tables.rules_table([a_cell(8, 'both', 'top-2'), a_cell(8, 'distil', 'top-2')])
  assert rows_of(both)['8, top 2'] == {
    'Distillation': ('30.80 / 3.00', ''),
    'Both': ('30.80 / 3.00', '(25.71 / 5.34)'),
  }


def test_a_missing_cell_is_a_dash_and_a_failed_one_says_why():
  table = tables.table1(
    [a_cell(6, error='the loss is\nnot finite at step 7', bleu=None), a_cell(4, 'regular')]
  )
  assert rows_of(table)['6'] == {
    'Regular': ('–', '(26.08 / 1.76)'),
    'Fine tuning': ('failed: the loss is not finite at step 7', '(24.69 / 2.98)'),
  }


def test_markdown():
  text = report.markdown(tables.table1([a_cell(4, error='a | b')]))
  assert text.splitlines()[:5] == [
    '## Blockwise parallel decoding, Table 1',
    '',
    '| k | Fine tuning |',
    '| --- | --- |',
    r'| 4 | failed: a \| b (25.05 / 2.69) |',
  ]
  assert 'newstest2013' in text


def test_notes_carry_the_conditions_and_every_value_of_those_that_differ():
  other = a_cell(8, conditions={**CONDITIONS, 'commit': 'def'})
  note = tables.table1([a_cell(), other]).notes[-1]
  assert (
    'nrefs:1|tok:13a' in note and 'commit abc, def' in note and 'config c.py:scale=tiny;' in note
  )


def test_the_terminal_shows_every_figure_and_note():
  console = rich.console.Console(width=100, file=io.StringIO())
  console.print(report.terminal(tables.table1([a_cell(8, rule='top-2'), a_cell(8)])))
  text = console.file.getvalue()
  assert all(
    word in text for word in ('30.80/3.00', '24.27/3.01', '25.71/5.34', 'Fine tuning', '†')
  )


def test_figures_are_not_broken_over_lines_in_80_columns():
  run = [a_cell(k, regime) for k in (8, 10) for regime in ('regular', 'distil', 'finetune', 'both')]
  run += [a_cell(k, 'both', rule) for k in (8, 10) for rule in ('top-2', 'top-3')]
  console = rich.console.Console(width=80, file=io.StringIO())
  console.print(
    report.terminal(tables.table1([*run, a_cell(6, error='a reason that is longer than a figure')]))
  )
  console.print(report.terminal(tables.wallclock_table(run)))
  text = console.file.getvalue()
  assert (
    text.count('30.80/3.00') == 6
    and text.count('25.71/5.34') == 1
    and 'Distillation  exact' in text
  )


def test_nothing_measured_is_an_empty_table():
  rich.console.Console(file=io.StringIO()).print(
    report.terminal(tables.wallclock_table([a_cell(error='killed')]))
  )


def test_wall_clock_is_compared_with_greedy_and_heads_are_shown_once():
  run = [
    a_cell(3, rule='top-2', same_as_greedy=0.0, spread=(2.41, 2.6)),
    a_cell(3, same_as_greedy=1.0, own_accuracy=(1.0, 0.5, 0.25)),
  ]
  table = tables.wallclock_table([*run, a_cell(5, error='killed')])
  texts = [[entry.ours for entry in row] for row in table.rows]
  assert texts == [
    [
      '3',
      'Fine tuning',
      'exact',
      '25.0',
      '10.0',
      '2.50×',
      '9.0',
      '100.0',
      '100 90 81',
      '100 50 25',
    ],
    ['3', 'Fine tuning', 'top-2', '25.0', '10.0', '2.50×', '9.0', '0.0', '', ''],
  ]
  # lines from before have no rounds
  assert [row[5].beside for row in table.rows] == ['', '(2.41 .. 2.60)']


def test_table_4_has_the_rivals_as_published_and_ours_beside_the_papers():
  run = [
    a_cell(1, 'distil', 'beam-4', compound_bleu=33.3, spread=(2.41, 2.6)),
    a_cell(1, 'distil', speedup=1.0),
    a_cell(8, 'both'),
  ]
  run += [a_cell(1, 'regular'), a_cell(8, 'finetune'), a_cell(4, 'both', error='base: killed')]
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


def test_a_note_says_what_heads_see_beside_what_the_papers_do():
  assert entries.heads_note([a_cell()]) == []
  both = a_cell(
    conditions={
      **CONDITIONS,
      **HeadsConfig(8, 'separate', 'identity', 0, 'all', 1, 0, True, 4).conditions,
    }
  )
  (note,) = entries.heads_note([a_cell(), both])
  assert note.startswith(
    'Heads see the root and the token guessed before, by a bias of rank 4, too;'
  )
  assert note in tables.table1([both]).notes


def test_a_model_that_serves_several_k_is_named_in_a_note():
  alone = [a_cell(2, 'both', models='a'), a_cell(8, 'both', models='b')]
  alone += [a_cell(k, 'regular', models='c') for k in (2, 8)]
  assert entries.one_run_note(alone) == []  # frozen heads for the largest k serve all anyway
  shared = [a_cell(2, 'both', models='a'), a_cell(8, 'both', models='a')]
  (note,) = entries.one_run_note(shared)
  assert (
    note.startswith('One model')
    and 'Both, k = 2, 8;' in note
    and note in tables.table1(shared).notes
  )


def test_a_note_says_that_heads_learnt_from_the_bases_own_text():
  own = a_cell(conditions={**CONDITIONS, 'heads_text': 'own'})
  for draw in (tables.table1, tables.wallclock_table):
    assert tables.OWN_NOTE in draw([own]).notes and tables.OWN_NOTE not in draw([a_cell()]).notes


def test_in_short_the_fastest_cell_that_writes_what_greedy_decoding_writes():
  cells = [
    a_cell(4, speedup=1.2),
    a_cell(8, speedup=1.5, same_as_greedy=1.0),
    a_cell(8, rule='top-2', speedup=1.9),
  ]
  said = (
    '3.0 tokens a call, 1.50 times as fast as greedy decoding of the same model, 100% of the'
    ' outputs the same'
  )
  assert show.in_short([*cells, a_cell(1, 'regular', speedup=3.0)]) == (
    f'{said} (k = 8, fine tuning, exact)'
  )
  assert (
    show.in_short([a_cell(8, rule='top-2', speedup=1.9), a_cell(4, speedup=2.0, error='stopped')])
    is None
  )
