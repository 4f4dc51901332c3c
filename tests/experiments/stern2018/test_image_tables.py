"""Table 2 from rows: the paper's figures beside ours, and what it does not give; pictures keep
their pixels."""

import csv
import io

import matplotlib.image
import numpy as np
import pytest
import rich.console

from experiments.lab import report
from experiments.stern2018 import image_tables, published, tables
from tests.experiments.stern2018.test_tables import CONDITIONS


def a_row(k=4, regime='finetune', rule='distance-2', **fields):
  """A row as if it had been measured."""
  figures = {
    'bits_per_dimension': 3.2,
    'psnr': 24.5 - k / 10,
    'ssim': 0.81,
    'psnr_to_greedy': 30.0,
    'mean_block_size': 1 + k / 4,
    'speedup': 2.5,
    'same_as_greedy': 0.125,
    'head_accuracy': [0.5**i for i in range(k)],
    'own_accuracy': [],
    'outputs': 64,
    'split': 'dev',
  }
  return {'k': k, 'regime': regime, 'rule': rule, **figures, **CONDITIONS, **fields}


SWEEP = []
for size in (4, 10):
  for training in ('regular', 'finetune'):
    SWEEP += [a_row(size, training, f'distance-{tau}') for tau in (2, 0, 8)]


def texts(table):
  return [tuple(' '.join(filter(None, entry)) for entry in row) for row in table.rows]


def test_the_papers_table():
  assert len(published.TABLE2) == 1 + 5 * 4
  assert published.TABLE2[8, 'regular', 'distance-2'] == 1.49
  assert published.TABLE2[10, 'finetune', 'distance-2'] == 6.79
  assert published.TABLE2[1, 'regular', 'exact'] == 1
  assert (1, 'finetune', 'exact') not in published.TABLE2


def test_table_2_has_the_papers_columns_and_figures():
  table = image_tables.table2([
    a_row(10),
    a_row(10, rule='exact', error='killed\nat step 7'),
    a_row(1, 'regular', 'exact'),
    a_row(10, 'regular'),
    a_row(3, 'regular', 'exact', mean_block_size=1.046),
    a_row(6, rule='distance-3'),  # a sweep adds no rows
  ])  # fmt: skip
  assert table.header == ('k', 'Regular', 'Approximate', 'Fine tuning', 'Both')
  assert texts(table) == [
    ('1', '1.25 (1.00)', '–', '–', '–'),
    ('3', '1.05', '–', '–', '–'),
    ('10', '– (1.10)', '3.50 (1.40)', 'failed: killed at step 7 (2.04)', '3.50 (6.79)'),
  ]
  assert 'outputs 64' in table.notes[-1]


def test_columns_of_ours_alone_stand_behind_the_papers_and_are_explained():
  table = image_tables.table2([a_row(16, 'forecast', 'exact'), a_row(10, heads_text='own')])
  assert table.header[5:] == ('Forecast',) and texts(table)[1] == ('16', *'––––', '5.00')
  assert image_tables.FORECAST_NOTE in table.notes and image_tables.OWN_NOTE in table.notes


def test_quality_has_a_row_for_each_finished_row_of_table_2_and_each_other_rule():
  table = image_tables.quality_table([
    a_row(2, rule='exact', same_as_greedy=0.0),
    a_row(2),
    a_row(2, rule='distance-3'),
    a_row(2, rule='window-2', bicubic_psnr=20.0),
    a_row(1, 'regular', 'exact', psnr_to_greedy=None, same_as_greedy=1.0),
    a_row(2, rule='min-2', psnr=None),
    a_row(4, error='killed'),
    a_row(4, 'regular', psnr_to_greedy=None, speedup=None),
  ])  # fmt: skip
  assert texts(table) == [
    ('1', 'Regular', '1.25', '2.50×', '3.200', '24.40', '0.810', '∞', '100.0'),
    ('4', 'Approximate', '2.00', '–', '3.200', '24.10', '0.810', '–', '12.5'),
    ('2', 'Fine tuning', '1.50', '2.50×', '3.200', '24.30', '0.810', '30.00', '0.0'),
    ('2', 'Both', '1.50', '2.50×', '3.200', '24.30', '0.810', '30.00', '12.5'),
    ('2', 'Fine tuning, min-2', '1.50', '2.50×', '3.200', '–', '0.810', '30.00', '12.5'),
    ('2', 'Both, centred', '1.50', '2.50×', '3.200', '24.30', '0.810', '30.00', '12.5'),
  ]
  assert "A bicubic enlargement's PSNR: 20.00." in table.notes
  assert image_tables.CENTRED_NOTE in table.notes


def test_heads_have_a_row_for_each_model_with_heads():
  own = a_row(4, 'regular', 'exact', head_accuracy=(1.0, 0.5), own_accuracy=(1.0, 0.75))
  others = [a_row(1, 'regular', 'exact'), a_row(4, 'regular'), a_row(2, 'forecast', 'exact')]
  assert texts(image_tables.heads_table([*others, own, a_row(2, rule='exact')])) == [
    ('4', 'Regular', '100 50', '100 75'),
    ('2', 'Fine tuning', '100 50', ''),
  ]


def test_the_sweep_is_ordered_by_regime_k_and_tau_and_exact_is_0():
  # with one head all are accepted
  exact = [a_row(1, 'regular', 'exact'), a_row(4, 'regular', 'exact')]
  others = ('regular', 4, 'distance-0')
  sweep = [row for row in SWEEP if (row['regime'], row['k'], row['rule']) != others]
  rows = texts(image_tables.tau_table([*sweep, *exact, a_row(4, rule='distance-12')]))
  assert [row[:3] for row in rows] == [
    *[(k, 'Regular', tau) for k in ('4', '10') for tau in '028'],
    *[('4', 'Fine tuning', tau) for tau in ('0', '2', '8', '12')],
    *[('10', 'Fine tuning', tau) for tau in '028'],
  ]
  assert rows[-1][3:] == ('3.50', '23.50', '0.810', '30.00')


def test_figures_are_not_broken_over_lines_in_80_columns():
  run = [*SWEEP, *(a_row(10, regime, 'exact') for regime in ('regular', 'finetune'))]
  console, drawn = rich.console.Console(width=80, file=io.StringIO()), []
  for make in image_tables.TABLES[:3]:
    drawn.append(make(run))
    console.print(report.terminal(drawn[-1]))
  shown = console.file.getvalue()
  for table in drawn:
    for row in texts(table):
      assert all(figure in shown for figure in row[2:-1] if '(' not in figure)
  assert 'Approximate' in shown and '6.79' in shown and '2.50×' in shown


def test_lines_of_the_csv_have_the_papers_block_sizes_and_no_bleu():
  rows = list(csv.DictReader(io.StringIO(tables.as_csv(SWEEP, image_tables.PUBLISHED))))
  assert [row['paper_mean_block_size'] for row in rows[:3]] == ['1.36', '', '']
  assert 'paper_bleu' not in rows[0]


# --- pictures


def random_image(seed, side=32):
  return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def block_sizes(*sizes):
  return np.array([*sizes, *[0] * (3072 - len(sizes))])


def read(path):
  return np.round(matplotlib.image.imread(path)[..., :3] * 255).astype(np.uint8)


@pytest.mark.parametrize('draw', [image_tables.blocks, image_tables.tau_sweep])
def test_charts_show_what_is_there_and_say_where_there_is_nothing(draw, tmp_path):
  partly = [a_row(6, psnr=None), a_row(8, mean_block_size=None), a_row(2, error='killed')]
  for name, some in (('some.png', SWEEP + partly), ('none.png', partly[2:])):
    draw(some, tmp_path / name)
    assert matplotlib.image.imread(tmp_path / name).shape[:2] == (900, 1800)
  assert (tmp_path / 'some.png').read_bytes() != (tmp_path / 'none.png').read_bytes()


def test_samples_are_of_one_set_of_images_and_of_the_models_of_the_rows(tmp_path):
  def save(name, count):
    small, large = ([random_image(i, side) for i in range(count)] for side in (8, 32))
    sizes = np.stack([block_sizes(*[1] * 3071)] * count)
    of_model = {'block_sizes': sizes, 'models': np.full((1, 8), 0xAB, np.uint8)}
    np.savez(tmp_path / name, input=small, output=large, original=large, **of_model)

  def drawn(models='ab' * 8):
    keys = (1, 'regular', 'exact'), (4, 'finetune', 'distance-2'), (4, 'forecast', 'distance-2')
    rows = [a_row(*key, models=models) for key in keys]
    image_tables.samples(tmp_path, 'dev', 4, rows, tmp_path)
    return {path.name for path in tmp_path.glob('*.png')}

  save('dev-k4-finetune-distance-2.npz', 2)
  assert drawn() == set()
  save('dev-k1-regular-exact.npz', 3)  # of a run with another number of images
  assert drawn() == set()
  save('dev-k4-forecast-distance-2.npz', 3)
  assert drawn() == {'samples.png', 'calls.png'}
  assert drawn('cd' * 8) == set()  # which has overwritten the images of these rows


def test_a_map_shows_the_picture_and_depends_on_the_blocks(tmp_path):
  image = np.full((32, 32, 3), (10, 200, 30), np.uint8)
  drawn = []
  for sizes in ([10] * 307 + [1], [1] * 3071):
    image_tables.block_map(image, block_sizes(*sizes), tmp_path / 'map.png')
    drawn.append(read(tmp_path / 'map.png'))
    assert drawn[-1].shape == (640, 1800, 3)
    assert (drawn[-1][:, :600] == (10, 200, 30)).all(axis=-1).mean() > 0.75
  assert (drawn[0][:, 600:] != drawn[1][:, 600:]).mean() > 0.2
