"""A picture of any size through a model of tiles: cut, decoded, put together."""

import io
import pathlib
import time

import numpy as np
import PIL.Image
import rich.progress as bars
from jaxtyping import UInt8

import fastdec as fd
from experiments.papers.stern2018.images import forecast_of, pictures_of, rule_of, strategy_of
from fastdec import folders
from fastdec.errors import UserError
from fastdec.evaluation.blocks import Blocks, count_blocks
from fastdec.files import whole_file
from fastdec.models.image_transformer import ImageTransformer

SIDE = 8
FORECAST = 16  # intensities of a block that a base without heads guesses, if it can
Picture = UInt8[np.ndarray, 'height width 3']


def read(path: pathlib.Path, most_tiles: int) -> Picture:
  """The picture in a file.

  Raises:
    UserError: there is none, it has other channels than red, green and blue, or more tiles than
      that.
  """
  try:
    with PIL.Image.open(path) as opened:
      mode, pixels = opened.mode, np.asarray(opened)
  except FileNotFoundError:
    raise UserError(f'there is no file {path}: name a picture, such as a PNG or JPEG') from None
  # Pillow's words for damaged files
  except (OSError, SyntaxError, PIL.Image.DecompressionBombError) as error:
    raise UserError(f'{path} cannot be read as a picture ({error}): give a PNG or JPEG') from None
  if mode != 'RGB':
    kinds = {
      'L': 'grey',
      '1': 'black and white',
      'RGBA': 'with alpha',
      'LA': 'grey with alpha',
      'P': 'with a palette',
    }
    what = f'{kinds[mode]} ({mode})' if mode in kinds else f'of mode {mode}'
    raise UserError(f'{path} is {what}: give it in RGB without alpha')
  count = _counts(pixels)[0] * _counts(pixels)[1]
  if count > most_tiles:
    width, height = pixels.shape[1], pixels.shape[0]
    raise UserError(
      f'{path} has {width} x {height} pixels, which are {count} tiles of {SIDE} x {SIDE}, and'
      f' --most_tiles={most_tiles}'
      ' is the most: shrink or crop it, or raise the limit'
    )
  return pixels


def check_output(path: pathlib.Path, source: pathlib.Path) -> None:
  """Raises UserError where the result could not be written."""
  if path.suffix.lower() != '.png':
    raise UserError(f'--output={path} is no PNG: give a name that ends in .png')
  if path.exists() and path.samefile(source):
    raise UserError(f'--output={path} is the picture itself: give another name')
  if not path.parent.is_dir():
    raise UserError(
      f'there is no folder {path.parent} for --output={path}: make it, or give another'
    )


def write(path: pathlib.Path, picture: Picture) -> None:
  """The picture as a PNG, whole or not at all."""
  encoded = io.BytesIO()
  PIL.Image.fromarray(picture).save(encoded, 'png')
  with whole_file(path) as file:
    file.write(encoded.getvalue())


def cut(picture: Picture) -> UInt8[np.ndarray, 'n 8 8 3']:
  """Tiles in raster scan; where the sides are no multiples of 8, the last pixels go on."""
  down, across = _counts(picture)
  beyond = (0, down * SIDE - picture.shape[0]), (0, across * SIDE - picture.shape[1]), (0, 0)
  whole = np.pad(picture, beyond, mode='edge')
  return whole.reshape(down, SIDE, across, SIDE, 3).swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)


def joined(tiles: UInt8[np.ndarray, 'n h h 3'], picture: Picture) -> Picture:
  """The large tiles of a picture side by side, without what went beyond it."""
  (down, across), large = _counts(picture), tiles.shape[1]
  whole = (
    tiles.reshape(down, across, large, large, 3)
    .swapaxes(1, 2)
    .reshape(down * large, across * large, 3)
  )
  factor = large // SIDE
  return whole[: picture.shape[0] * factor, : picture.shape[1] * factor]


class Upscaler:
  """A model of tiles with its heads, if it has any; else guesses are its own forecast, if it makes
  one.

  Args:
    workdir: of a finished image run.
    rule: when a guess is accepted; see `images.rule_of`.
    rows: tiles decoded at once.

  Raises:
    UserError: there is no such run, it is not about images, or the rule is unknown.
  """

  def __init__(self, workdir: pathlib.Path, rule: str, rows: int) -> None:
    rule_of(rule)  # an unknown one is told before anything is loaded
    folder = folders.open(workdir)
    self.model, self.params = folder.model, folder.params()
    if not isinstance(self.model, ImageTransformer):
      raise UserError(
        f'{workdir} holds a {type(self.model).__name__}: give the workdir of an image run'
      )
    if folder.has_heads:
      self.strategy = strategy_of((folder.heads, folder.head_params()), None, rule)
    else:
      self.strategy = forecast_of(FORECAST, rule) if self.model.forecasts else fd.Greedy()
    self.rows, self.seconds = rows, 0.0
    self.blocks: Blocks | None = None  # of the last picture

  @property
  def times(self) -> int:
    """How many times as high and wide a picture becomes."""
    return self.model.config.size // SIDE

  def __call__(self, picture: Picture) -> Picture:
    """The picture, as many times as high and wide as the model makes a tile."""
    tiles = cut(picture)
    rows = min(self.rows, len(tiles))
    padded = np.concatenate([tiles, np.repeat(tiles[-1:], -len(tiles) % rows, axis=0)])
    start, outputs = time.monotonic(), []
    for batch in bars.track(np.split(padded, len(padded) // rows), 'Upscaling', transient=True):
      outputs.append(fd.decode(self.model, self.params, batch, self.strategy).checked())

    def made(name):
      return np.concatenate([np.asarray(getattr(out, name)) for out in outputs])[: len(tiles)]

    self.seconds, self.blocks = (
      time.monotonic() - start,
      count_blocks(made('lengths'), made('block_sizes')),
    )
    return joined(pictures_of(made('tokens')), picture)

  def summary(self) -> str:
    """How it went, in two lines."""
    found = self.blocks
    assert found is not None, 'there is no summary before the first picture'
    sizes = ', '.join(
      f'{size}: {100 * n / found.calls:.0f} %' for size, n in enumerate(found.histogram, 1) if n
    )
    large = self.model.config.size
    name = 'tile' if found.outputs == 1 else 'tiles'
    tiles = f'{found.outputs} {name} of {SIDE} x {SIDE} -> {large} x {large}, each on its own'
    calls = f'{found.calls_per_output:.0f} calls a tile, mean block {found.mean_block_size:.2f}'
    return (
      f'{tiles}, in {self.seconds:.1f} s with compilation: {calls}\ncalls by block size: {sizes}'
    )


def _counts(picture: Picture) -> tuple[int, int]:
  """Tiles down and across."""
  return -(-picture.shape[0] // SIDE), -(-picture.shape[1] // SIDE)
