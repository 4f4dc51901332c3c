"""Cells of speculative decoding: as lines of JSON, in tables with the paper's rows, in a
picture."""

import pytest

import fastdec as fd
from experiments.lab import report
from experiments.lab.cells import append, latest, read
from experiments.papers.leviathan2022 import figure, tables
from experiments.papers.leviathan2022.cells import SpecCell
from experiments.papers.leviathan2022.published import SPEEDS


def cell(draft='large', temperature=0.0, plan='3', batch=1, **values):
  gamma = int(plan) if plan.isdigit() else 5
  figures = {
    'alpha_beta': 0.75, 'alpha_accepted': 0.7, 'c': 0.1, 'v': 1.25, 'tokens_per_call': 2.5, 'drafts_per_call': 3.0,
    'predicted': 2.1, 'predicted_width': 1.61, 'speedup': 1.5, 'speedup_calls': 1.6, 'spread': (1.4, 1.55),
    'same_as_plain': 1.0 if temperature == 0 else None, 'texts': 8, 'models': 'abc',
    'conditions': {'task': 'lm', 'repeated_4grams': 0.125},
  }  # fmt: skip
  return SpecCell(draft, temperature, plan, batch, gamma, **(figures | values))


def test_a_cell_comes_back_from_its_line(tmp_path):
  path, cells = (
    tmp_path / 'results.jsonl',
    [cell(), cell(draft='lookup', alpha_beta=None, spread=None)],
  )
  for one in cells:
    append(path, one)
  with open(path, 'a') as file:
    file.write('{"draft": "la')  # killed
  append(path, SpecCell('small', 1.0, 'best', 8, error='no space'))
  assert read(path, SpecCell) == [*cells, SpecCell('small', 1.0, 'best', 8, error='no space')]
  path.write_text('{"draft": "larger", "temperature": 0, "plan": "3", "batch": 1}\n')
  with pytest.raises(fd.UserError, match=r'line 1 of .* is no cell'):
    read(path, SpecCell)


def test_a_measured_cell_outlives_a_failure():
  failed = SpecCell('large', 0.0, '3', 1, error='no memory')
  assert latest([cell(), failed]) == {('large', 0.0, '3', 1): cell()}
  assert latest([failed, cell()]) == {('large', 0.0, '3', 1): cell()}


def test_the_table_of_speeds_has_our_rows_in_order_and_then_the_papers():
  cells = [
    cell(plan='best', batch=8), cell(plan='adaptive'), cell(plan='5'), cell(), cell(draft='small'),
    SpecCell('small', 1.0, '3', 1, error='no\nmemory | left'),
  ]  # fmt: skip
  table = tables.speed_table(cells)
  assert all(len(row) == len(table.header) for row in table.rows)
  starts = [tuple(entry.ours for entry in row[:4]) for row in table.rows]
  assert starts[:6] == [
    ('large draft', '0', '3', '1'), ('large draft', '0', '5', '1'), ('large draft', '0', '≤ 5', '1'),
    ('large draft', '0', '5 (best)', '8'), ('small draft', '0', '3', '1'), ('small draft', '1', '3', '1'),
  ]  # fmt: skip
  assert len(starts) == 6 + len(SPEEDS)
  assert starts[6] == ('T5-small (T5-XXL, EnDe, paper)', '0', '7', '1')
  row = [entry.ours for entry in table.rows[0]]
  assert row[4:] == [
    '0.750',
    '0.700',
    '0.100',
    '1.25',
    '2.50',
    '2.10×',
    '1.61×',
    '1.50×',
    '1.60×',
    '100.0',
  ]
  assert table.rows[5][4].ours == 'failed: no memory | left'
  page = report.markdown(table)
  assert (
    '(1.40 .. 1.55)' in page and r'memory \| left' in page and '12.5 % had stood before' in page
  )
  far = tables.speed_table(
    [cell(), cell(plan='5', speedup_calls=1.4), cell(plan='7', speedup_calls=None)]
  )
  assert 'Calls alone within 10% of what the width predicts: 1 of 2.' in far.notes


def test_texts_that_part_from_plain_greedy_decoding_are_counted_in_the_table():
  parted = cell(same_as_plain=0.75, parted=2, largest_gap=3.2e-5)
  page = report.markdown(tables.speed_table([parted, cell(plan='5', parted=0)]))
  assert '| 75.0 (2 of 8 part, by 3e-05) |' in page and '| 100.0 |' in page


def test_the_table_of_alphas_has_the_drafts_of_the_smallest_gamma():
  drafts = ('large', 'small', 'bigram', 'unigram', 'lookup')
  cells = [cell(draft, temperature, alpha_beta=None if draft == 'lookup' else 0.5)
           for draft in drafts for temperature in (0.0, 1.0)]  # fmt: skip
  table = tables.alpha_table([*cells, cell(plan='5', alpha_beta=0.9)])
  assert all(len(row) == len(table.header) for row in table.rows)
  assert [row[0].ours for row in table.rows[:5]] == [
    'prompt lookup',
    'unigram',
    'bigram',
    'small draft',
    'large draft',
  ]
  assert [entry.ours for entry in table.rows[4][1:6]] == ['3', '0.500', '1.88', '2.50', '1.50×']
  assert table.rows[0][2].ours == table.rows[0][3].ours == report.MISSING
  bigram = next(row for row in table.rows if row[0].ours == 'bigram (T5-XXL, EnDe, paper)')
  assert (bigram[2].ours, bigram[6].ours) == ('0.20', '0.19')


@pytest.mark.parametrize('cells', [[], [cell(), cell(temperature=1.0, predicted=None)]])
def test_a_picture(tmp_path, cells):
  figure.predictions(cells, tmp_path / 'picture.png')
  assert (tmp_path / 'picture.png').stat().st_size > 2000
