"""A declared table: figures, dashes, failures and published rows, as Markdown."""

from experiments.lab import report
from experiments.lab.report import Column, Table

TABLE = Table(
  'Runs',
  (Column('k', 'k', names_row=True),
    Column('Speed', 'speed', '.2f', '×', beside=lambda run: {2: '(1.9×)'}.get(run['k'], '')),
    Column('Same %', 'same', '.1f', scale=100)),
  ('A note.',), ('seed',),
  sort=lambda run: run['k'],
)  # fmt: skip
RUNS = [
  {'k': 4, 'error': 'out of\nmemory | left', 'seed': 9},
  {'k': 2, 'speed': 1.5, 'same': 0.25, 'seed': 0},
  {'k': 1, 'same': 0.0, 'seed': 1},
]


def test_figures_dashes_failures_and_published_rows():
  drawn = TABLE.of(
    RUNS, above=[{'k': 'first', 'Speed': '(9×)'}], below=[{'k': 'last', 'Same %': '100'}]
  )
  assert drawn.header == ('k', 'Speed', 'Same %')
  assert drawn.rows == (
    ('first', '(9×)', '–'),
    ('1', '–', '0.0'),
    ('2', '1.50× (1.9×)', '25.0'),
    ('4', 'failed: out of memory | left', '–'),
    ('last', '–', '100'),
  )


def test_the_conditions_are_those_of_finished_cells():
  assert TABLE.of(RUNS, notes=['Another.']).notes == (
    'A note.',
    'Another.',
    'Conditions: seed 0, 1.',
  )
  assert TABLE.of(RUNS, cells=RUNS[:2]).notes[-1] == 'Conditions: seed 0.'
  assert TABLE.of([]).notes == ('A note.',)


def test_cells_that_share_a_row_fail_each_for_itself():
  cells = {('a', 1): RUNS[0], ('b', 1): RUNS[1], ('b', 2): RUNS[0]}

  def columns(name):
    find = lambda row: cells.get((name, row))
    return [Column(name, 'speed', '.1f', cell=find), Column(f'{name} %', 'same', '.0%', cell=find)]

  rows = Table('', [*columns('a'), *columns('b')]).of([1, 2]).rows
  failed = 'failed: out of memory | left'
  assert [list(row) for row in rows] == [[failed, '–', '1.5', '25%'], ['–', '–', failed, '–']]


def test_rows_may_be_mappings_and_a_table_without_a_title_is_only_its_lines():
  table = Table('', (Column('name', 'name'), Column('ms', 'ms', ',.0f')))
  assert report.markdown(table.of([{'name': 'a|b', 'ms': 1234.5}, {'name': 'c', 'ms': None}])) == (
    '| name | ms |\n| --- | --- |\n| a\\|b | 1,234 |\n| c | – |\n'
  )


def test_markdown():
  assert report.markdown(TABLE.of(RUNS)).splitlines() == [
    '## Runs', '', '| k | Speed | Same % |', '| --- | --- | --- |', '| 1 | – | 0.0 |',
    '| 2 | 1.50× (1.9×) | 25.0 |', r'| 4 | failed: out of memory \| left | – |', '', 'A note.', '',
    'Conditions: seed 0, 1.',
  ]  # fmt: skip
