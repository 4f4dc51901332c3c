"""Tables and picture of what incremental decoding saves, and what FasterTransformer publishes."""

import dataclasses

import pytest

from experiments.lab.cells import append, flat, read
from experiments.lab.report import markdown
from experiments.papers.incremental import figure, published
from experiments.papers.incremental.cells import SavingCell
from experiments.papers.incremental.tables import tables

CONDITIONS = {'platform': 'cpu', 'device': 'cpu', 'seed': 0, 'source': 16, 'beams': 4}


def grown(model, batch, length, uncached, host, device):
  times = {'uncached': uncached, 'host': host, 'device': device}
  return SavingCell(
    'growth', model, 'float32', batch, length, milliseconds=times, steps=4, parted=0, conditions=CONDITIONS,
    to_fastest={'uncached': uncached / device, 'host': host / device}, to_shortest={way: 1.5 for way in times},
  )  # fmt: skip


def searched(dtype, batch, length, host, device):
  times, ratio = {'host': host, 'device': device}, {'host': host / device}
  key = ('layout', 'transformer', dtype, batch, length)
  return SavingCell(*key, milliseconds=times, to_fastest=ratio, parted=0, conditions=CONDITIONS)


CELLS = [
  grown('fconv', 1, 32, 9.0, 3.0, 1.0),
  grown('transformer', 1, 512, 80.0, 5.0, 2.0),
  grown('transformer', 1, 32, 8.0, 4.0, 2.0),
  grown('transformer', 32, 32, 8.0, 4.0, 2.0),
  searched('bfloat16', 1, 128, 30.0, 20.0),
  searched('float32', 256, 32, 25.0, 20.0),
  searched('float32', 1, 32, 20.0, 10.0),
  SavingCell('launches', 'fconv', 'float32', 1, 32, conditions=CONDITIONS,
             counts={'step': 90, 'layer': 20, 'eager_step': 400, 'eager_layer': 130}),
  SavingCell('encoder', 'fconv', 'float32', 1, 16, conditions=CONDITIONS,
             milliseconds={'jitted': 2.0, 'eager': 30.0}, to_fastest={'eager': 15.0}),
]  # fmt: skip


def page(cells):
  return {table.title: markdown(table) for table in tables(cells)}


def test_lengths_are_rows_and_the_last_row_is_how_time_grows():
  drawn = page(CELLS)
  table = drawn['Milliseconds a token against length, batch 1'].splitlines()
  assert table[2].startswith(
    '| Tokens | Transformer (a) | Transformer (b) | Transformer (c) | Transformer (a)/(c) |'
  )
  assert table[4] == (
    '| 32 | 8.00 | 4.00 | 2.00 | 4.00× | 2.00× | 9.00 | 3.00 | 1.00 | 9.00× | 3.00× |'
  )
  assert table[5] == '| 512 | 80.00 | 5.00 | 2.00 | 40.00× | 2.50× | – | – | – | – | – |'
  assert table[6] == '| 512 / 32 | 1.50× | 1.50× | 1.50× | – | – | – | – | – | – | – |'
  assert 'at most 4 tokens' in drawn['Milliseconds a token against length, batch 1']
  assert 'Milliseconds a token against length, batch 32' in drawn


def test_the_layout_of_faster_transformers_tables():
  rows = page(CELLS)["FasterTransformer's tables"].splitlines()[4:7]
  assert rows[0] == (
    '| float32 | 1, 32 | 20.00 | 10.00 | 2.00× | 441.68 / 111.14 = 3.97× | 430.39 / 64.16 = 6.71× |'
    ' 440.46 / 58.70 = 7.50× |'
  )
  assert rows[1].startswith(
    '| float32 | 256, 32 | 25.00 | 20.00 | 1.25× | 802.18 / 439.33 = 1.83× |'
  )
  assert rows[2].endswith(
    '| 2082.92 / 661.00 = 3.15× | 2145.74 / 240.85 = 8.91× | 2076.63 / 293.21 = 7.08× |'
  )


@pytest.mark.parametrize('table', ['DECODER_T4', 'DECODING_T4', 'DECODING_V100'])
def test_published_tables_have_seven_rows_in_two_precisions(table):
  figures = getattr(published, table)
  assert len(figures) == 14 and {key[1:] for key in figures} == {
    (1, 32), (1, 64), (1, 128), (32, 32), (64, 32), (128, 32), (256, 32)
  }  # fmt: skip


def test_operations_and_encoder():
  drawn = page(CELLS)
  table = drawn['What a step launches']
  assert 'Fused operations a layer' in table and '| FConv | 90 | 20 | 400 | 130 |' in table
  assert '| FasterTransformer (talk) | – | 16 | – | 70 (TensorFlow) |' in table
  assert '| FConv | 1 | 16 | 2.00 | 30.00 | 15.00× |' in drawn['The encoder alone']
  gpu = [dataclasses.replace(cell, conditions=CONDITIONS | {'platform': 'gpu'}) for cell in CELLS]
  assert 'Kernels a layer' in page(gpu)['What a step launches']


def test_a_failure_is_shown_as_one():
  failed = [
    dataclasses.replace(cell, milliseconds=None, counts=None, error='out of memory')
    for cell in CELLS
  ]
  assert all('failed: out of memory' in table for table in page(failed).values())


def test_cells_are_lines_and_come_back(tmp_path):
  path = tmp_path / 'results.jsonl'
  for cell in CELLS:
    append(path, cell)
  assert read(path, SavingCell) == CELLS
  row = flat(CELLS[0])
  assert row['milliseconds_uncached'] == 9.0 and row['device'] == 'cpu' and 'conditions' not in row


def test_the_picture_has_a_panel_a_batch(tmp_path):
  figure.draw(CELLS, tmp_path / 'picture.png')
  assert (tmp_path / 'picture.png').read_bytes().startswith(b'\x89PNG')
