"""Table 2 from rows: our figures with the paper's, and figures that the paper does not give;
pictures keep their pixels."""

import matplotlib.image
import numpy as np
import pytest

from experiments.stern2018 import image_tables, tables
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
  return list(table.rows)


def test_the_papers_table():
  assert len(image_tables.PAPERS_TABLE2) == 1 + 5 * 4
  assert image_tables.PAPERS_TABLE2[8, 'regular', 'distance-2'] == 1.49
  assert image_tables.PAPERS_TABLE2[10, 'finetune', 'distance-2'] == 6.79
  assert image_tables.PAPERS_TABLE2[1, 'regular', 'exact'] == 1
  assert (1, 'finetune', 'exact') not in image_tables.PAPERS_TABLE2


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


def test_our_own_columns_follow_the_papers_and_are_explained():
  table = image_tables.table2([a_row(16, 'forecast', 'exact'), a_row(10, heads_text='own')])
  assert table.header[5:] == ('Forecast',) and texts(table)[1] == ('16', *'––––', '5.00')
  assert image_tables.FORECAST_NOTE in table.notes and tables.OWN_NOTE in table.notes


def test_every_finished_row_has_a_line_of_quality_and_speed():
  table = image_tables.image_rows([
    a_row(2, rule='exact', same_as_greedy=0.0),
    a_row(2, rule='distance-12'),
    a_row(2),
    a_row(2, rule='window-2', bicubic_psnr=20.0),
    a_row(1, 'regular', 'exact', psnr_to_greedy=None, same_as_greedy=1.0),
    a_row(2, rule='min-2', psnr=None),
    a_row(4, error='killed'),
    a_row(4, 'regular', psnr_to_greedy=None, speedup=None),
  ])  # fmt: skip
  likeness = '3.200', '24.30', '0.810', '30.00', '1.50', '2.50×'
  assert texts(table) == [
    ('1', 'Regular', 'exact', '3.200', '24.40', '0.810', '∞', '1.25', '2.50×', '100.0'),
    ('4', 'Regular', 'distance-2', '3.200', '24.10', '0.810', '–', '2.00', '–', '12.5'),
    ('2', 'Fine tuning', 'exact', *likeness, '0.0'),
    ('2', 'Fine tuning', 'distance-2', *likeness, '12.5'),
    ('2', 'Fine tuning', 'distance-12', *likeness, '12.5'),
    ('2', 'Fine tuning', 'min-2', '3.200', '–', '0.810', '30.00', '1.50', '2.50×', '12.5'),
    ('2', 'Fine tuning', 'window-2', *likeness, '12.5'),
  ]
  assert "A bicubic enlargement's PSNR: 20.00." in table.notes


@pytest.mark.parametrize('k, rule, distance', [
  (4, 'exact', 0), (4, 'distance-0', 0), (4, 'distance-12', 12), (4, 'window-2', None),
  (1, 'exact', None),  # nothing to accept
])  # fmt: skip
def test_the_distance_that_a_rule_accepts(k, rule, distance):
  assert image_tables.distance({'k': k, 'rule': rule}) == distance


# --- pictures


def random_image(seed, side=32):
  return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


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
    of_model = {'models': np.full((1, 8), 0xAB, np.uint8)}
    np.savez(tmp_path / name, input=small, output=large, original=large, **of_model)

  def drawn(models='ab' * 8):
    keys = (1, 'regular', 'exact'), (4, 'finetune', 'distance-2'), (4, 'forecast', 'distance-2')
    rows = [a_row(*key, models=models) for key in keys]
    image_tables.samples(tmp_path, 'dev', 4, rows, tmp_path)
    return {path.name for path in tmp_path.glob('*.png')}

  save('dev-k4-finetune-distance-2.npz', 2)
  assert drawn() == set()
  save('dev-k1-regular-exact.npz', 3)  # from a run with a different number of images
  assert drawn() == set()
  save('dev-k4-forecast-distance-2.npz', 3)
  assert drawn() == {'samples.png'}
  assert drawn('cd' * 8) == set()  # which has overwritten the images of these rows
