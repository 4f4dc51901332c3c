"""The picture of masks: each as one would write it by hand, and drawn as it is."""

import numpy as np
import pytest

from experiments.pictures import masks

EXPECTED = {  # by the beginning of the title: rows, columns, who sees what
  'causal: a chain': ('root a aa aaa', '0 1 2 root a aa aaa -', '11110000 11111000 11111100'
                                                                ' 11111110'),
  'padding': ('sentence_1 sentence_2 sentence_3 sentence_4', '0 1 2 3 4 5 6 7',
              '11111111 11100000 11111000 11111100'),
  'tree': (
    'root a b aa ab ba', '0 1 2 root a b aa ab ba', '111100000 111110000 111101000 111110100'
                                                    ' 111110010 111101001'
  ),
  'sliding': (
    'root a b aa ab ba', '0 1 2 3 4 root a b aa ab ba',
    '00111100000 00011110000 00011101000 00001110100 00001110010 00001101001',
  ),
  'local': ('7 8 9', '8 9 2 3 4 5 6 7', '00011111 10011111 11000011'),
  'EAGLE: a chain': ('a aa aaa', '0 1 2 3 a aa aaa - -', '111110000 111111000 111111100'),
  'EAGLE: a tree': (
    'a b aa ba baa aaa', '0 1 2 3 a b aa ba baa aaa',
    '1111100000 1111010000 1111101000 1111010100 1111010110 1111101001',
  ),
  'a block': ('root ? ? ?', '0 1 2 3 root ? ? ? - -', ' '.join(4 * ['1111111100'])),
  'convolution': (
    'root a b aa ab ba', '1 2 root a b aa ab ba', '11100000 01110000 01101000 00110100 00110010'
                                                  ' 00101001'
  ),
}  # fmt: skip


@pytest.fixture(scope='module')
def made():
  return masks.every_mask()


@pytest.mark.slow
def test_every_mask_is_as_one_would_write_it_by_hand(made):
  for title, (rows, columns, sees) in EXPECTED.items():
    (mask,) = (mask for mask in made if mask.title.startswith(title))
    assert mask.rows == tuple(name.replace('_', ' ') for name in rows.split())
    assert mask.columns == tuple(name.strip('-') for name in columns.split())
    assert [''.join(map(str, row)) for row in mask.sees.astype(int)] == sees.split()
  np.testing.assert_array_equal(made[0].sees, np.tri(6, 8, dtype=bool))
  (local,) = (mask for mask in made if mask.edges)
  assert [local.columns[edge] for edge in local.edges] == ['9', '3', '6']


def test_the_picture_has_a_panel_for_each_and_tells_old_from_new(made):
  picture = masks.figure(made)
  panels = [axes for axes in picture.axes if axes.images]
  assert [axes.get_title() for axes in panels] == [mask.title for mask in made]
  for axes, mask in zip(panels, made, strict=True):
    drawn = np.asarray(axes.images[0].get_array())
    np.testing.assert_array_equal(drawn > 0, mask.sees)
    assert (drawn[:, mask.committed] < 2).all() and (drawn[:, ~mask.committed] != 1).all()
    assert len(axes.lines) == len(mask.edges)


def test_the_command_writes_the_picture(made, launch, tmp_path, monkeypatch):
  monkeypatch.setattr(masks, 'every_mask', lambda: made)
  assert launch('masks', f'--out={tmp_path}/masks.png').code == 0
  assert (tmp_path / 'masks.png').stat().st_size > 1000
