"""Pictures of images: pixels stay as they are, and a map shows the calls that there were."""

import matplotlib.image
import numpy as np
import pytest

from experiments.papers.stern2018 import image_figures
from experiments.papers.stern2018.image_figures import CALL_COLOURS, GAP, LINE, SIDE
from fastdec.errors import UserError
from tests.experiments.measured import an_image_cell

COLUMNS = [(regime, rule) for regime in ('regular', 'finetune') for rule in ('exact', 'distance-2')]
RUN = [an_image_cell(k, *column) for k in (2, 10) for column in COLUMNS] + [
  an_image_cell(4, error='killed')
]
SWEEP = [an_image_cell(k, 'regular', f'distance-{tau}') for k in (2, 10) for tau in range(4)]


def random_image(seed, side=32):
  return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def block_sizes(*sizes):
  return np.array([*sizes, *[0] * (3072 - len(sizes))])


def read(path):
  return np.round(matplotlib.image.imread(path)[..., :3] * 255).astype(np.uint8)


@pytest.mark.parametrize(
  ('draw', 'cells'), [(image_figures.blocks, RUN), (image_figures.tau_sweep, SWEEP)]
)
def test_charts_show_what_is_there_and_say_where_there_is_nothing(draw, cells, tmp_path):
  for name, some in (('some.png', cells), ('none.png', [an_image_cell(error='killed')])):
    draw(some, tmp_path / name)
    assert matplotlib.image.imread(tmp_path / name).shape[:2] == (900, 1800)
  assert (tmp_path / 'some.png').read_bytes() != (tmp_path / 'none.png').read_bytes()


def test_cells_that_were_not_measured_whole_leave_gaps(tmp_path):
  image_figures.tau_sweep(
    [*SWEEP, an_image_cell(6, psnr=None), an_image_cell(8, mean_block_size=None)], tmp_path / 'a'
  )
  image_figures.blocks([*RUN, an_image_cell(6, mean_block_size=None)], tmp_path / 'b')


def test_a_sheet_repeats_the_pixels_of_each_image_and_changes_none(tmp_path):
  rows = [[random_image(2 * i, side=8), random_image(2 * i + 1)] for i in range(2)]
  image_figures.sheet(rows, tmp_path / 'sheet.png', ['input', 'original'])
  drawn, step = read(tmp_path / 'sheet.png'), SIDE + GAP
  for i, row in enumerate(rows):
    for j, image in enumerate(row):
      top, left = 2 * LINE + step * i, GAP + step * j
      times = SIDE // len(image)
      for y, x in np.ndindex(times, times):
        np.testing.assert_array_equal(
          drawn[top + y : top + SIDE : times, left + x : left + SIDE : times], image
        )
  assert (drawn[: 2 * LINE] < 128).any()  # the titles


def test_a_sheet_of_8_faces_is_a_small_file(tmp_path):
  rows = [[random_image(0, side=8), *(random_image(seed) for seed in range(3))] for _ in range(8)]
  titles = ['input', 'greedy', 'k = 10 approximate, of two lines', 'original']
  image_figures.sheet(rows, tmp_path / 'sheet.png', titles)
  assert (tmp_path / 'sheet.png').stat().st_size < 300_000  # noise is the worst there is


@pytest.mark.parametrize(
  ('rows', 'titles', 'mistake'),
  [
    ([[random_image(0)]], ['a', 'b'], 'a row of 1 images under 2 titles'),
    ([], ['a'], '0 rows under 1 titles'),
    ([[random_image(0) / 255]], ['a'], r'float64\[32, 32, 3\]'),
    ([[random_image(0)[:, :8]]], ['a'], r'uint8\[32, 8, 3\]'),
    ([[random_image(0, side=24)]], ['a'], r'uint8\[24, 24, 3\]'),
  ],
)
def test_other_sheets_are_refused_and_nothing_is_written(rows, titles, mistake, tmp_path):
  with pytest.raises(UserError, match=mistake):
    image_figures.sheet(rows, tmp_path / 'sheet.png', titles)
  assert not list(tmp_path.iterdir())


def test_a_map_shows_the_picture_and_depends_on_the_blocks(tmp_path):
  image = np.full((32, 32, 3), (10, 200, 30), np.uint8)
  for name, sizes in (('ten', [10] * 307 + [1]), ('one', [1] * 3071), ('all', [3071])):
    image_figures.block_map(image, block_sizes(*sizes), tmp_path / f'{name}.png')
  drawn = [read(tmp_path / f'{name}.png') for name in ('ten', 'one', 'all')]
  assert all(one.shape == (640, 1800, 3) for one in drawn)
  assert all((one[:, :600] == (10, 200, 30)).all(axis=-1).mean() > 0.75 for one in drawn)
  assert (drawn[0][:, 600:] != drawn[1][:, 600:]).mean() > 0.2


def test_blocks_that_touch_have_different_colours():
  # none touches more others than there are colours
  sizes = np.random.default_rng(0).integers(4, 11, 900)
  calls = np.repeat(np.arange(901), [1, *sizes])[:3072].reshape(32, 96)
  colours = image_figures._colouring(calls)
  assert colours[0, 0] == len(CALL_COLOURS) and (colours == len(CALL_COLOURS)).sum() == 1
  for one, other in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1])):
    touching = calls[one] != calls[other]
    assert (colours[one] != colours[other])[touching].all()
    assert (colours[one] == colours[other])[~touching].all()
  rows = colours.reshape(-1)
  # over the ends of rows too
  assert (rows[1:] != rows[:-1])[calls.reshape(-1)[1:] != calls.reshape(-1)[:-1]].all()


def test_a_call_differs_from_the_one_before_also_where_colours_run_out():
  calls = np.repeat(np.arange(97), [1] * 96 + [96]).reshape(2, 96)  # one call touches 96 others
  colours = image_figures._colouring(calls)
  assert set(colours[0]) == set(range(len(CALL_COLOURS) + 1)) and colours[1, 0] != colours[0, -1]


@pytest.mark.parametrize('sizes', [[3070], [3072], []])
def test_block_sizes_of_another_picture_are_refused(sizes, tmp_path):
  with pytest.raises(UserError, match=rf'block sizes of {1 + sum(sizes)} tokens'):
    image_figures.block_map(random_image(0), block_sizes(*sizes), tmp_path / 'map.png')
  assert not list(tmp_path.iterdir())
