"""Pictures: labels cover nothing, and the worked example shows every token of every call."""

import itertools

import matplotlib.image
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from experiments.papers.stern2018 import example, figures, published
from fastdec.evaluation.labels import Label, place
from tests.experiments.measured import a_cell, an_image_cell

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


def test_figure_4_shows_distilled_and_fine_tuned_cells(tmp_path):
  run = [a_cell(k, 'both', speedup=k / 3) for k in (2, 8)] + [
    a_cell(8),
    a_cell(10, 'both', error='killed'),
  ]
  for cells, name in ((run, 'some.png'), ([], 'none.png')):
    figures.speedups(cells, tmp_path / name)
    assert matplotlib.image.imread(tmp_path / name).shape[:2] == (900, 1200)
  assert (tmp_path / 'some.png').read_bytes() != (tmp_path / 'none.png').read_bytes()
  assert (
    published.FIGURE4[8] == (4.69, 3.31)
    and published.FIGURE4[1] == (1.0, 1.0)
    and len(published.FIGURE4) == 6
  )
  assert len(list(tmp_path.iterdir())) == 2


def test_figure_4_shows_images_that_are_fine_tuned_and_approximate(tmp_path):
  others = [
    an_image_cell(6, 'regular'),
    an_image_cell(6, rule='exact'),
    an_image_cell(6, rule='distance-3'),
  ]
  for cells, name in (([an_image_cell(6)], 'some.png'), (others, 'others.png'), ([], 'none.png')):
    figures.speedups(cells, tmp_path / name)
  some, other, none = (
    (tmp_path / f'{name}.png').read_bytes() for name in ('some', 'others', 'none')
  )
  assert some != none == other


def test_the_worked_example_as_text_and_as_a_picture(tmp_path):
  blocks = [[' Once'], [' upon', ' a'], [' time', ',', ' in']]
  assert example.as_text('Es war einmal, in', blocks) == (
    'source        Es war einmal, in\nprompt        Once\ncall 1 (2)    upon| a\ncall 2 (3)   '
    ' time|,| in\n'
  )
  example.picture('Es war einmal, in', blocks, tmp_path / 'short.png')
  example.picture('Es kostet $8 ' * 20, [*blocks, ['$', '_8^']], tmp_path / 'long.png')
  short, long = (
    matplotlib.image.imread(tmp_path / f'{name}.png').shape for name in ('short', 'long')
  )
  assert long[0] > short[0] and long[1] > short[1]
