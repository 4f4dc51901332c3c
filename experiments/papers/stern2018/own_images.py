"""A model's own images: what a base writes greedily of the small training images, for heads on it to learn from.

  folder/images.npz    uint8 arrays: source [n, 8, 8, 3], what was read, and written [n, h, h, 3]
  folder/config.json   written last: which model wrote them of which images, and a hash of both arrays
  folder/parts/        while they are being written: shards of images

Exact acceptance asks heads for the intensities that the base would choose, not for those of a photograph.
"""

import dataclasses
import hashlib
import pathlib
import shutil
import time
import zipfile
from typing import Any

import numpy as np
from jaxtyping import UInt8

import fastdec as fd
from experiments.lab.model_text import author_of, record_of
from experiments.lab.progress import Progress
from experiments.lab.shards import Shards, make_all
from fastdec import folders, gate
from fastdec.data.images.corpus import Images, shrink
from fastdec.errors import UserError
from fastdec.files import locked, whole_file, write_json
from fastdec.models.api import Model
from fastdec.training.checkpoint import check_workdir, claim_workdir

ROWS = 64  # images at once
SHARD_SIZE = 512  # images between two points to resume from


@dataclasses.dataclass(frozen=True)
class OwnImages:
  """What was read, what was written of it, and a hash of both."""

  source: UInt8[np.ndarray, 'n 8 8 3']
  written: UInt8[np.ndarray, 'n h h 3']
  key: str


def write(
  images: Images,
  mirrored: bool,
  model: Model,
  base: pathlib.Path,
  folder: pathlib.Path,
  budget: float | None = None,
) -> bool:
  """Has the base write an image of every small training image, or goes on; true when all are written.

  Args:
    images: of which those of the training split are meant.
    mirrored: of the mirrored ones too.
    model: that the base is of.
    base: the workdir of the finished base.
    folder: of the result.
    budget: seconds after which no further shard is begun; at least one is.

  Raises:
    UserError: a base that is not finished or makes images of another size, a folder of something else, a full disk.
  """
  start = time.monotonic()
  found, params = folders.load(base)
  if found != model:
    raise UserError(f'{base} holds another model than this config means: give the base run of the same config')
  record = {'teacher': author_of(model, params), 'images': images.key[:16], 'mirrored': mirrored}
  there = record_of(folder)
  if there:
    check_workdir(folder, {**there, **record})
    return True
  parts = folder / 'parts'
  check_workdir(parts, record)
  with locked(parts / 'lock'):
    claim_workdir(parts, record)
  originals = images.array('train')
  source = shrink(originals)
  if mirrored:
    source = np.concatenate([source, source[:, :, ::-1]])
  shards = Shards(parts, SHARD_SIZE, len(source))

  def made(span: range) -> list[Any]:
    inputs = source[span.start : span.stop]
    written = []
    for first in gate.passing(range(0, len(inputs), ROWS)):
      some = inputs[first : first + ROWS]
      padded = np.concatenate([some, np.zeros((ROWS - len(some), *some.shape[1:]), np.uint8)])
      written += fd.decode(model, params, padded, fd.Greedy()).checked().tokens[: len(some)].tolist()
      progress.add(len(some))
    return written

  with gate.at_work(budget), Progress(len(source), 'image') as progress:
    if not make_all(shards, made, progress, start, budget):
      return False
  rows = [tokens for shard in range(len(shards)) for tokens in shards.read(shard) or ()]
  written = np.array(rows, np.uint8).reshape(-1, *originals.shape[1:])
  with whole_file(folder / 'images.npz') as file:
    np.savez_compressed(file, source=source, written=written)
  write_json(folder / 'config.json', {**record, 'content': _content(source, written)})
  shutil.rmtree(parts)
  return True


def open_own(folder: pathlib.Path) -> OwnImages:
  """The images that a base has written into a folder.

  Raises:
    UserError: they are not there, not whole, or cannot be read.
  """
  key = key_of(folder)
  path = folder / 'images.npz'
  try:
    with np.load(path) as found:
      source, written = found['source'], found['written']
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    raise UserError(f'{path} cannot be read ({error}): remove {folder}, and let it be made again') from None
  if _content(source, written) != key:
    raise UserError(f'{path} is not what {folder}/config.json says: remove {folder}, and let it be made again')
  return OwnImages(source, written, key)


def summary(folder: pathlib.Path) -> str:
  """What is in a finished folder, in a sentence."""
  written = open_own(folder).written
  n, height, width, _ = written.shape
  return f'{folder}/images.npz holds {n:,} images of {height} x {width} pixels that the base has written'


def key_of(folder: pathlib.Path) -> str:
  """The hash that a finished folder says its images have."""
  record = record_of(folder)
  if not isinstance(record.get('content'), str):
    raise UserError(f'{folder} holds no images that a base has written: {_HOW}')
  return record['content']


def check_writer(folder: pathlib.Path, base: pathlib.Path) -> None:
  """Raises UserError where the images in a folder were not written by the run in `base`, its heads aside."""
  if record_of(folder).get('teacher') != author_of(*folders.load(base)):
    raise UserError(f'the images in {folder} were written by another model than {base}: {_HOW}')


_HOW = 'let it write them by experiments.distill --teacher=BASE, BASE being the folder of the base'


def _content(source: np.ndarray, written: np.ndarray) -> str:
  return hashlib.sha256(source.tobytes() + written.tobytes()).hexdigest()[:16]
