"""Has a base write its own images of the small training images, shard by shard; see
`own_images`."""

import pathlib
import time

import numpy as np
from jaxtyping import UInt8

import fastdec as fd
from experiments.lab.against_plain import spaced
from experiments.lab.model_text import author_of, record_of
from experiments.lab.shards import Shards, make_all
from experiments.papers.stern2018 import own_images
from experiments.papers.stern2018.images import ImageExperiment
from fastdec import folders
from fastdec.data.images.corpus import shrink
from fastdec.errors import UserError
from fastdec.files import locked
from fastdec.models.api import Model, Params
from fastdec.sharding import partition_of, place
from fastdec.training.checkpoint import check_workdir, claim_workdir
from fastdec.training.progress import Progress

ROWS = 64  # images at once
SHARD_SIZE = 512  # images between two points to resume from


def write(
  experiment: ImageExperiment, base: pathlib.Path, folder: pathlib.Path, budget: float | None = None
) -> bool:
  """Has the base write images of the small training images, or goes on; true when all are written.

  Of every one, or of as many as `distill.images` says, evenly spaced. Where the training is on
  mirrored images, the mirrored ones have images of their own. Several processes may share the work.

  Args:
    experiment: whose training images are meant.
    base: the workdir of the finished base.
    folder: of the result.
    budget: seconds after which no further shard is begun; at least one is.

  Raises:
    UserError: a base that is not finished, or that this config does not mean; a folder of something
      else; a full disk.
  """
  start = time.monotonic()
  pictures, mirrored = experiment.photographs(), experiment.data.mirrored
  model, params = folders.load(base)
  if model != pictures.model:
    raise UserError(
      f'{base} holds another model than this config means: give the base run of the same config'
    )
  pictures.check_base(base)
  record: dict[str, object] = {
    'teacher': author_of(model, params),
    'images': pictures.content,
    'mirrored': mirrored,
  }
  originals = pictures.images.array('train')
  source = shrink(originals)
  if mirrored:
    source = np.concatenate([source, source[:, :, ::-1]])
  if 0 < experiment.distill.images < len(source):
    source = source[spaced(len(source), experiment.distill.images)]
    record['written'] = len(source)
  if is_finished(folder, record):
    return True
  parts = folder / 'parts'
  check_workdir(parts, record)
  with locked(parts / 'lock'):
    claim_workdir(parts, record)
  if experiment.devices:
    params = place(params, experiment.devices, partition_of(model, experiment.mesh.model))
  shards = Shards(parts, SHARD_SIZE, len(source))

  def make(span: range) -> list[list[int]]:
    made: list[list[int]] = []
    for first in range(span.start, span.stop, ROWS):
      inputs = source[first : min(first + ROWS, span.stop)]
      made += greedily(model, params, inputs)
      progress.add(len(inputs))
    return made

  with Progress(len(source), 'image') as progress:
    if not make_all(shards, make, progress, start, budget):
      return False
  with locked(parts / 'lock'):
    if not is_finished(folder, record):  # another process has not done it meanwhile
      tokens = np.concatenate(
        [np.array(shards.read(shard), np.uint8) for shard in range(len(shards))]
      )
      own_images.save(folder, source, tokens.reshape(-1, *originals.shape[1:]), record)
  return True


def is_finished(folder: pathlib.Path, record: dict[str, object]) -> bool:
  """Whether the folder has these images, whole.

  Raises:
    UserError: it has others.
  """
  there = record_of(folder)
  if there:
    check_workdir(folder, {'content': there.get('content'), **record})
  return bool(there)


def greedily(model: Model, params: Params, inputs: UInt8[np.ndarray, 'n 8 8 3']) -> list[list[int]]:
  """The intensities of the images that greedy decoding writes, in calls of `ROWS` images, so that
  one program does."""
  padded = np.concatenate([inputs, np.zeros((ROWS - len(inputs), *inputs.shape[1:]), np.uint8)])
  return fd.decode(model, params, padded, fd.Greedy()).checked().tokens[: len(inputs)].tolist()
