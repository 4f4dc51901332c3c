"""Enlarges a picture of any size tile by tile: reads, cuts, decodes, joins and writes it."""

import pathlib
from typing import Any

import jax
import numpy as np
import rich.progress as bars
from jaxtyping import UInt8

import fastdec as fd
from experiments.stern2018.images import decode_images, make_strategy, parse_rule, to_images
from fastdec import extras, folders
from fastdec.errors import UserError
from fastdec.files import open_file, whole_file
from fastdec.models.image_transformer import ImageTransformer

with extras.explained():
  import PIL.Image
  import PIL.ImageOps

SIDE = 8
FORMATS = ('PNG', 'JPEG', 'WEBP', 'BMP', 'PPM')  # others may call programs
FORECAST = 16  # intensities of a block that a base without heads guesses, if it can
Picture = UInt8[np.ndarray, 'height width 3']


def load(workdir: pathlib.Path, rule: str) -> tuple[Any, Any, Any]:
  """Loads a model, its parameters and a strategy: by its heads, or else by its own forecast.

  Raises:
    UserError: the run does not exist or is not about images, or the rule is unknown.
  """
  accepts = parse_rule(rule)  # an unknown one shows before anything is loaded
  folder = folders.open(workdir)
  if not isinstance(folder.model, ImageTransformer):
    raise UserError(
      f'{workdir} holds a {type(folder.model).__name__}: give the workdir of an image run'
    )
  if folder.has_heads:
    strategy: Any = make_strategy((folder.heads, folder.head_params()), None, rule)
  elif folder.model.forecasts:
    strategy = fd.LinearForecast(FORECAST, accepts)
  else:
    strategy = fd.Greedy()
  return folder.model, folder.params(), strategy


def enlarge(
  picture: Picture, model: Any, params: Any, strategy: Any, rows: int
) -> tuple[Picture, str]:
  """Enlarges a picture tile by tile. Returns it with a sentence about the calls that it took."""
  tiles, parts = cut(picture), []
  rows = min(rows, len(tiles))
  for first in bars.track(range(0, len(tiles), rows), 'Upscaling', transient=True):
    parts.append(decode_images(model, params, strategy, tiles[first : first + rows], rows))
  out = jax.tree.map(lambda *each: np.concatenate(each), *parts)
  large = model.config.size
  return join(to_images(out.tokens), picture), (
    f'{len(out.lengths)} tiles of {SIDE} x {SIDE} -> {large} x {large}, each on its own,'
    f' {np.mean(out.calls):.0f} calls a tile, mean block {out.mean_block_size:.2f}'
  )


# --- tiles


def cut(picture: Picture) -> UInt8[np.ndarray, 'n 8 8 3']:
  """Cuts a picture into tiles, in raster scan; repeats the last pixels up to a multiple of 8."""
  down, across = _count_tiles(picture)
  beyond = (0, down * SIDE - picture.shape[0]), (0, across * SIDE - picture.shape[1]), (0, 0)
  whole = np.pad(picture, beyond, mode='edge')
  return whole.reshape(down, SIDE, across, SIDE, 3).swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)


def join(tiles: UInt8[np.ndarray, 'n h h 3'], picture: Picture) -> Picture:
  """Joins the large tiles of a picture, and crops them to its sides."""
  (down, across), large = _count_tiles(picture), tiles.shape[1]
  grid = tiles.reshape(down, across, large, large, 3).swapaxes(1, 2)
  whole, factor = grid.reshape(down * large, across * large, 3), large // SIDE
  return whole[: picture.shape[0] * factor, : picture.shape[1] * factor]


def _count_tiles(picture: Picture) -> tuple[int, int]:
  """Counts the tiles down and across."""
  return -(-picture.shape[0] // SIDE), -(-picture.shape[1] // SIDE)


# --- files


def read(path: pathlib.Path, most_tiles: int) -> Picture:
  """Reads the picture in a file, turned as its EXIF data say.

  Raises:
    UserError: there is none, it has other channels than red, green and blue, or more tiles than
      `most_tiles`.
  """
  try:
    with open_file(path) as file, PIL.Image.open(file, formats=FORMATS) as opened:
      tiles = -(-opened.width // SIDE) * -(-opened.height // SIDE)
      if opened.mode != 'RGB':
        raise UserError(f'{path} has mode {opened.mode}: give it in RGB without alpha')
      if tiles > most_tiles:  # before its pixels take memory
        raise UserError(
          f'{path} has {tiles} tiles of {SIDE} x {SIDE} pixels, and --most_tiles={most_tiles} is'
          ' the most: shrink or crop it, or raise the limit'
        )
      return np.asarray(PIL.ImageOps.exif_transpose(opened))
  except UserError:
    raise
  except FileNotFoundError:
    raise UserError(f'there is no file {path}: name a picture, such as a PNG or JPEG') from None
  # what Pillow raises for damaged files
  except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
    raise UserError(f'{path} cannot be read as a picture ({error}): give a PNG or JPEG') from None


def write(path: pathlib.Path, picture: Picture) -> None:
  """Writes the picture as a PNG, whole or not at all."""
  with whole_file(path) as file:
    PIL.Image.fromarray(picture).save(file, 'png')
