"""What the image experiments share: the settings of a page of the paper, and its images."""

import dataclasses
import functools
import math
import pathlib
import re
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import fastdec as fd
from experiments.lab import record
from experiments.lab.settings import Experiment, Regime, at_least, each_once
from experiments.papers.stern2018.own_images import OwnImages, check_own, key_of, open_own
from fastdec import folders
from fastdec.data.images.corpus import (
  ImageData,
  Images,
  image_batches,
  open_images,
  written_batches,
)
from fastdec.data.images.resizing import SIDE, SMALL, shrink
from fastdec.errors import UserError
from fastdec.models.api import Model, Params
from fastdec.models.image_transformer import CHANNELS, INTENSITIES, ImageTransformerConfig

DEV_IMAGES = 32  # what an evaluation during training looks at, at most
FORECAST_IMAGES = 1000  # of the training set: what a forecast's weights are fitted to
TAU = 2  # the paper's


@dataclasses.dataclass(frozen=True)
class ImagesConfig:
  """Images and their cutting into batches; fields as in `configs/celeba.py`."""

  kind: Literal['embedded', 'npz', 'tfds']
  path: str
  folder: str
  rows: int
  max_train: int
  cache: str
  side: int = SIDE
  mirrored: bool = False
  black_corners: bool = True
  moved: int = 0
  own: str = ''

  def __post_init__(self) -> None:
    at_least(1, 'data', rows=self.rows)
    at_least(0, 'data', max_train=self.max_train, moved=self.moved)

  @property
  def data(self) -> ImageData:
    """Where the images are."""
    return ImageData(
      self.kind, self.path, self.folder, self.max_train or None, self.side, self.black_corners
    )


@dataclasses.dataclass(frozen=True)
class _RecordedImages(ImagesConfig):
  """What a run's record says of its images: those that a model wrote by their hash."""

  distilled: str = ''


@dataclasses.dataclass(frozen=True)
class TableConfig:
  """Which cells, measured on what; fields as in `configs/celeba.py`."""

  ks: tuple[int, ...]
  regimes: tuple[Regime, ...]
  taus: tuple[int, ...]
  split: str
  images: int
  rows: int
  timed: int
  repeats: int
  one_run: bool
  forecast: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    each_once('table', ks=self.ks, regimes=self.regimes)
    if unknown := set(self.regimes) - {'regular', 'finetune'}:
      raise UserError(
        f'config.table.regimes has {min(unknown)}: images have no teacher, give regular or finetune'
      )
    # k = 1, the base, is always there
    at_least(2, 'table', **{f'ks[{i}]': k for i, k in enumerate(self.ks)})
    at_least(2, 'table', **{f'forecast[{i}]': k for i, k in enumerate(self.forecast)})
    at_least(
      0, 'table', images=self.images, **{f'taus[{i}]': tau for i, tau in enumerate(self.taus)}
    )
    at_least(1, 'table', rows=self.rows, timed=self.timed, repeats=self.repeats)


@dataclasses.dataclass(frozen=True)
class OwnConfig:
  """Of how many small training images a base writes its own; fields as in `configs/celeba.py`."""

  images: int

  def __post_init__(self) -> None:
    at_least(0, 'distill', images=self.images)


@dataclasses.dataclass(frozen=True)
class ImageExperiment(Experiment):
  """A page of the paper about images at one scale."""

  data: ImagesConfig
  model: ImageTransformerConfig
  table: TableConfig
  distill: OwnConfig

  def __post_init__(self) -> None:
    super().__post_init__()
    small, large = self.model.source_size, self.model.size
    if (small, large) != (SMALL, self.data.side):
      given = f'config.model makes {large} x {large} pixels of {small} x {small}'
      raise UserError(
        f'{given}: leave source_size out, and let size be data.side, {self.data.side}'
      )
    if self.table.forecast and not self.model.forecast:
      given = f'config.table.forecast={self.table.forecast} with config.model.forecast=False'
      raise UserError(
        f'{given} is not possible: give forecast=(), or train a base with model.forecast=True'
      )

  @property
  def own(self) -> str:
    return self.data.own

  def open(self) -> 'Pictures':
    own = open_own(pathlib.Path(self.own)) if self.own else None
    return dataclasses.replace(self.photographs(), own=own)

  def photographs(self) -> 'Pictures':
    """What a base is trained on, whether a base has written images of its own or not."""
    return Pictures(self, open_images(self.data.data))

  def distilled_key(self) -> str:
    return key_of(pathlib.Path(self.own)) if self.own else ''

  def recorded_data(self, distilled: str) -> ImagesConfig:
    if not distilled:
      return self.data
    own = "the base's" if self.own else ''
    return _RecordedImages(**{**vars(self.data), 'own': own}, distilled=distilled)


@dataclasses.dataclass(frozen=True)
class Pictures:
  """The images of an experiment; see `settings.Material`."""

  experiment: ImageExperiment
  images: Images
  own: OwnImages | None = None

  tokenizer_path = None

  @property
  def model(self) -> Model:
    return folders.model_of(self.experiment.model)

  @property
  def content(self) -> str:
    return self.images.key[:16]

  def init(self, key: Array) -> Params:
    """Fresh parameters; a forecast's by least squares on training images."""
    model: Any = self.model  # loops do without `init`
    params = model.init(key)
    if self.experiment.model.forecast:
      images = self.images.array('train', min(FORECAST_IMAGES, self.images.counts['train']))
      weights = fd.fit_forecast(model, shrink(images), images)
      params['forecast']['weights'] = jnp.asarray(weights)
    return params

  def train_batches(self, rows: int = 0, seed: int | None = None) -> Any:
    seed = self.experiment.seed if seed is None else seed
    data = self.experiment.data
    if self.own is not None:
      return written_batches(self.own.source, self.own.written, rows or data.rows, seed)
    return image_batches(self.images, 'train', rows or data.rows, seed, data.mirrored, data.moved)

  def dev_batches(self) -> list[Any]:
    rows = min(self.experiment.data.rows, self.images.counts['dev'])
    batches = image_batches(self.images, 'dev', rows, seed=0)
    return [batches[i] for i in range(max(1, min(DEV_IMAGES, self.images.counts['dev']) // rows))]

  def check_base(self, folder: pathlib.Path) -> None:
    """Raises UserError where a run was trained on other images, or its model has not written the
    own ones."""
    there = record.part(record.read(folder), 'data').get('content', self.content)
    if there != self.content:
      remedy = 'give a run of the same config, on the same images'
      raise UserError(f'{folder} was trained on other images than this config means: {remedy}')
    if self.own is not None:
      check_own(
        pathlib.Path(self.experiment.own), folder, self.content, self.experiment.data.mirrored
      )


def forecast_of(k: int, name: str, weights: np.ndarray | None = None) -> fd.LinearForecast:
  """Blocks guessed by the base's linear forecast, or by one of other weights, accepted by the rule
  of this name."""
  return fd.LinearForecast(k, rule_of(name), weights)


def strategy_of(heads: Any, k: int | None, name: str) -> fd.Blockwise:
  """Blockwise decoding by the rule of this name; 'window-2' is 'distance-2' with each guess at the
  middle of the five intensities that are likeliest together."""
  kind, _, number = name.partition('-')
  return fd.Blockwise(heads, k, rule_of(name), int(number) if kind == 'window' else 0)


@functools.cache
def rule_of(name: str) -> fd.MinBlock:
  """'exact', 'distance-2', 'min-3': all of one structure, so that a sweep over them is one compiled
  program."""
  match = re.fullmatch(r'exact|(distance|min|window)-(\d{1,9})', name)
  if (
    match is None
    or name == 'min-0'
    or (match[1] == 'window' and not 1 <= int(match[2]) < INTENSITIES // 2)
  ):
    allowed = (
      f'exact, distance-N, min-N or window-N (N from 1, of a window below {INTENSITIES // 2})'
    )
    raise UserError(f'the rule {name} is unknown: give {allowed}, such as distance-{TAU}')
  number = int(match[2] or 0)
  return fd.MinBlock(
    fd.Distance(0 if match[1] == 'min' else number), number if match[1] == 'min' else 1
  )


def pictures_of(tokens: Any) -> np.ndarray:
  """Decoded intensities [n, h * h * 3] as images uint8[n, h, h, 3]."""
  pixels = np.asarray(tokens, np.uint8)
  side = math.isqrt(pixels.shape[1] // CHANNELS)
  return pixels.reshape(-1, side, side, CHANNELS)
