"""The picture of blocks against the clock: a box a token, a column a call, as long as it took."""

import pytest
from matplotlib.patches import Rectangle

from experiments.pictures.blocks import Lane, figure


def test_columns_fill_the_time_and_boxes_are_the_tokens():
  lanes = [
    Lane('greedy decoding', [['a'], [' b'], ['c'], ['$']], 8.0),
    Lane('blocks', [['a'], [' b', 'c', '$']], 5.0),
  ]
  (axes,) = figure('a sentence', lanes, '1.60 times as fast').axes
  boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
  words = [text.get_text() for text in axes.texts]
  assert len(boxes) == 8 and words.count('b') == words.count(r'\$') == 2
  assert 'greedy decoding: 3 calls, 8.0 ms' in words and 'blocks: 1 calls, 5.0 ms' in words
  # a call takes 2 ms above and 2.5 ms below
  assert boxes[0].get_width() / boxes[-1].get_width() == pytest.approx(2 / 2.5)
  assert '1.60 times as fast' in axes.get_xlabel()
