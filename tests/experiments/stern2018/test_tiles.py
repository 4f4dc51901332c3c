"""Pictures of any size: cut into tiles and joined again; what cannot be upscaled is refused before
any decoding."""

import numpy as np
import PIL.Image
import pytest

from experiments.stern2018 import tiles
from fastdec import folders
from fastdec.errors import UserError
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig

RNG = np.random.default_rng(0)
SMALL = dict(
  d_model=8, d_ff=8, heads=1, encoder_layers=1, decoder_layers=1, block_length=96, dropout=0.0
)


def picture(height, width, channels=(3,)):
  return RNG.integers(0, 256, (height, width, *channels)).astype(np.uint8)


@pytest.mark.parametrize('height, width, count', [(8, 8, 1), (16, 8, 2), (9, 17, 6), (1, 1, 1)])
def test_tiles_come_back_in_their_places(height, width, count):
  small = picture(height, width)
  cut = tiles.cut(small)
  assert cut.shape == (count, 8, 8, 3)
  large = tiles.join(cut.repeat(4, axis=1).repeat(4, axis=2), small)
  np.testing.assert_array_equal(large, small.repeat(4, axis=0).repeat(4, axis=1))


def test_what_goes_beyond_the_picture_is_its_edge():
  (tile,) = tiles.cut(picture(3, 5))
  assert (tile[3:] == tile[2]).all() and (tile[:, 5:] == tile[:, 4:5]).all()


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return untrained(tmp_path_factory.mktemp('tiles') / 'run')


def untrained(folder, **sizes):
  """A model folder whose weights are as they begin: it repeats what it sees."""
  import jax

  model = ImageTransformer(ImageTransformerConfig(**SMALL | sizes))
  folders.save(model, jax.jit(model.init)(jax.random.key(0)), folder)
  return folder


def test_a_picture_becomes_four_times_as_large(run, tmp_path, launch):
  PIL.Image.fromarray(picture(9, 8)).save(tmp_path / 'photo.png')
  ended = launch('upscale', f'--workdir={run}', '--rule=exact', tmp_path / 'photo.png')
  assert ended.code == 0 and '32 x 36 pixels' in ended.out and 'each on its own' in ended.out
  with PIL.Image.open(tmp_path / 'photo-x4.png') as large:
    assert large.size == (32, 36) and large.mode == 'RGB'


def test_a_model_of_smaller_tiles_makes_it_twice_as_large(tmp_path, launch):
  PIL.Image.fromarray(picture(9, 8)).save(tmp_path / 'photo.png')
  folder = untrained(tmp_path / 'run', size=16, block_length=48)
  ended = launch('upscale', f'--workdir={folder}', '--rule=window-2', tmp_path / 'photo.png')
  assert ended.code == 0 and '8 x 8 -> 16 x 16' in ended.out
  with PIL.Image.open(tmp_path / 'photo-x2.png') as large:
    assert large.size == (16, 18)


@pytest.mark.parametrize('name, pixels, words', [
  ('grey.png', picture(8, 8, ()), 'has mode L: give it in RGB without alpha'),
  ('alpha.png', picture(8, 8, (4,)), 'has mode RGBA'),
  ('large.png', picture(300, 300), '1444 tiles of 8 x 8 pixels, and --most_tiles=1024 is the most'),
  ('text.png', None, 'cannot be read as a picture'),
  ('missing.png', None, 'there is no file'),
])  # fmt: skip
def test_a_file_that_is_not_a_picture_is_refused(name, pixels, words, run, tmp_path, launch):
  path = tmp_path / name
  if pixels is not None:
    PIL.Image.fromarray(pixels).save(path)
  elif name == 'text.png':
    path.write_text('no picture')
  ended = launch('upscale', f'--workdir={run}', path)
  assert ended.code == 2 and words in ended.err and ended.err.count('\n') == 1
  assert not list(tmp_path.glob('*-x4.png'))


@pytest.mark.parametrize('flag, words', [
  ('--rule=near-2', 'the rule near-2 is unknown: give exact, distance-N'),
  ('--rule=distance--1', 'is unknown'),
  ('--output=photo.png', 'is the picture itself'),
  ('--output=photo.jpg', 'must be a PNG'),
  ('--output=nowhere/photo.png', 'needs the folder nowhere'),
  ('--workdir=nowhere', 'nowhere is not a folder'),
])  # fmt: skip
def test_mistakes_show_before_anything_is_decoded(flag, words, run, tmp_path, launch, monkeypatch):
  monkeypatch.chdir(tmp_path)
  PIL.Image.fromarray(picture(8, 8)).save('photo.png')
  ended = launch('upscale', f'--workdir={run}', flag, 'photo.png')
  assert ended.code == 2 and words in ended.err


def test_a_picture_is_never_half_written(tmp_path, monkeypatch):
  tiles.write(tmp_path / 'large.png', picture(8, 8))
  before = (tmp_path / 'large.png').read_bytes()

  def full(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr('os.fsync', full)
  with pytest.raises(UserError, match='No space left'):
    tiles.write(tmp_path / 'large.png', picture(8, 8))
  assert (tmp_path / 'large.png').read_bytes() == before and len(list(tmp_path.iterdir())) == 1


UPRIGHT = {  # by EXIF's orientation, what a viewer makes of what the camera wrote
  1: lambda x: x, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud,
  5: lambda x: x.swapaxes(0, 1), 6: lambda x: np.rot90(x, -1),
  7: lambda x: x[::-1, ::-1].swapaxes(0, 1), 8: np.rot90,
}  # fmt: skip


@pytest.mark.parametrize('value', UPRIGHT)
def test_a_photograph_is_read_upright(value, tmp_path):
  camera, orientation = picture(16, 24), PIL.Image.Exif()
  orientation[0x0112] = value
  PIL.Image.fromarray(camera).save(tmp_path / 'photo.png', exif=orientation)
  np.testing.assert_array_equal(tiles.read(tmp_path / 'photo.png', 99), UPRIGHT[value](camera))
