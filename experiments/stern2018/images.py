"""Super-resolution (Stern et al. 2018, Table 2), from the top: blocks of intensities, and what
accepting near ones costs.

A base makes 32 x 32 pixels of 8 x 8, one intensity after another. Heads are trained on it, frozen
(regular) or together with it (finetune), for each k. `table2` makes the base and lists the cells of
the table; `runs.make_rows` trains and measures what is missing of them. `Split` is the task: the
images on which models are measured. What they decode is kept in images/. Then table2.md and the
pictures are drawn from the rows there are.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
import pathlib
import re
import shutil
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

import fastdec as fd
from experiments.lab import train
from experiments.lab.compare import run_batches
from experiments.lab.report import write
from experiments.lab.rows import Row
from experiments.lab.train import (
  Count,
  HeadsConfig,
  Rows,
  Seed,
  Several,
  Tokens,
  Zero,
  author_of,
  each_once,
  say_left_out,
  spaced,
)
from experiments.lab.workdir import Workdir
from experiments.stern2018 import image_tables, runs, tables
from experiments.stern2018.image_tables import TAU
from experiments.stern2018.runs import Base, Cell, Task
from experiments.stern2018.tables import FITTED, FORECAST, UNTRAINED
from fastdec import extras, folders
from fastdec.data.images import npz
from fastdec.data.images.corpus import (
  ImageData,
  Images,
  image_batches,
  open_images,
  written_batches,
)
from fastdec.data.images.resizing import SIDE, SMALL, shrink
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.evaluation.agreement import check_gaps, find_gaps
from fastdec.evaluation.image_quality import bicubic, psnr, ssim
from fastdec.fields import Between, read
from fastdec.files import read_json, whole_file, write_json
from fastdec.heads.transformed import without_heads
from fastdec.kernels.sharding import MeshConfig, make_own_mesh, mesh_of, place_module
from fastdec.models.api import Model, Params
from fastdec.models.image_transformer import CHANNELS, INTENSITIES, ImageTransformerConfig
from fastdec.struct import Bound
from fastdec.training.drafts.trainer import read_trunk
from fastdec.training.losses import dev_loss
from fastdec.training.processes import agreed, is_first
from fastdec.training.progress import Progress
from fastdec.training.run import RunConfig
from fastdec.training.stage import in_place, inputs_of
from fastdec.training.written import in_turns

DEV_IMAGES = 32  # of an evaluation during training, at most
FORECAST_IMAGES = 1000  # of the training set: what a forecast's weights are fitted to
PART = 64  # images that a base writes at once; a killed stage resumes after the last part
WITHIN, CENTRED = f'distance-{TAU}', f'window-{TAU}'
COLUMNS = 'exact', WITHIN, CENTRED  # rules of the table; they are timed
open_once = functools.lru_cache(maxsize=1)(open_images)  # every stage needs their hash


# --- settings


@dataclasses.dataclass(frozen=True)
class ImagesConfig:
  """Images, and their cutting into batches."""

  kind: Literal['embedded', 'npz', 'tfds'] = 'embedded'
  path: str = ''  # of kind npz
  folder: str = ''  # of kind tfds: its data_dir
  rows: Rows = 2  # of a batch
  max_train: Zero = 0  # 0: all
  side: int = SIDE  # pixels of the images that are written: 32, or 16, to which they are shrunk
  mirrored: bool = False  # every other training image is, drawn again each time
  black_corners: bool = True  # of kind npz; False leaves out images that have one, being turned
  moved: Zero = 0  # the most intensities by which training images are moved, drawn again each time
  own: str = ''  # a folder of images that a base has written (`write_images`), for heads to learn

  def __post_init__(self) -> None:
    train.check_read(self, {'path': ('npz',), 'folder': ('tfds',), 'black_corners': ('npz',)})

  @property
  def originals(self) -> 'ImagesConfig':
    """The photographs, which a base is trained on."""
    return dataclasses.replace(self, own='')

  @property
  def key(self) -> str:
    """All that a training on them depends on, first a hash of the images, wherever they lie."""
    key = f'{self.images.key[:16]} rows={self.rows} mirrored={self.mirrored} moved={self.moved}'
    if self.own:
      key += f' own={read_record(self.own).content}'
    return key

  @property
  def images(self) -> Images:
    """The photographs."""
    max_train = self.max_train or None
    return open_once(
      ImageData(self.kind, self.path, self.folder, max_train, self.side, self.black_corners)
    )

  def open(self) -> 'Pictures':
    """Reads the images to train on."""
    if not self.own:
      return Pictures(self, self.images)
    return Pictures(self, self.images, open_written(pathlib.Path(self.own)))


@dataclasses.dataclass(frozen=True)
class Measure:
  """What to measure, and on which images."""

  ks: tuple[Several, ...] = (2, 4, 6, 8, 10)  # k = 1, the base, is always there
  regimes: tuple[Literal['regular', 'finetune'], ...] = ('regular', 'finetune')
  # Distances accepted; 2 is always.
  taus: tuple[Annotated[int, Between(0, INTENSITIES - 1)], ...] = tuple(range(9))
  taus_of: Literal['largest', 'all'] = 'largest'  # the k whose taus, but 0 and 2, are measured
  forecast: tuple[Several, ...] = ()  # block sizes that the base's forecast guesses, without heads
  own: bool = False  # heads learn from images that the base writes first
  one_run: bool = False  # one run for the largest k serves all; the paper trains one for each
  split: Literal['dev', 'test'] = 'dev'
  images: Zero = 0  # 0: all
  rows: Count = 64  # images decoded at once
  timed: Count = 1  # images timed one by one, evenly spaced
  repeats: Count = 3

  def __post_init__(self) -> None:
    each_once('table', ks=self.ks, regimes=self.regimes)


@dataclasses.dataclass(frozen=True)
class OwnConfig:
  """Number of images that a base writes."""

  images: Zero = 0  # small training images, evenly spaced; 0: all


@dataclasses.dataclass(frozen=True)
class Table2:
  """Settings of the page; presets are in configs/celeba.py."""

  data: ImagesConfig
  model: ImageTransformerConfig
  train: RunConfig  # of the base
  freeze: RunConfig  # of heads on it
  finetune: RunConfig  # of both together
  heads: HeadsConfig
  table: Measure = Measure()
  distill: OwnConfig = OwnConfig()
  task: Literal['images'] = 'images'
  scale: str = ''
  # k, regime and base: the one run of experiments.train and experiments.evaluate
  k: Tokens = 1
  regime: Literal['regular', 'finetune'] = 'regular'
  base: str = ''
  seed: Seed = 0
  mesh: MeshConfig = MeshConfig()

  def __post_init__(self) -> None:
    for name in ('train', 'freeze', 'finetune'):
      train.check(getattr(self, name), self.model, self.data.rows, self.mesh, name)
    train.check_decoding(self.mesh, {'table': self.table.rows})
    self.heads.module(folders.model_of(self.model), 2)  # a mistake shows
    small, large = self.model.source_size, self.model.size
    if (small, large) != (SMALL, self.data.side):
      raise UserError(
        f'config.model makes {large} x {large} pixels of {small} x {small}: leave source_size out,'
        f' and let size be data.side, {self.data.side}'
      )
    if self.table.forecast and not self.model.forecast:
      raise UserError(
        f'config.table.forecast={self.table.forecast} with config.model.forecast=False is not'
        ' possible: give forecast=(), or train a base with model.forecast=True'
      )
    if self.table.own and self.data.own:
      raise UserError(
        f'config.table.own=True with config.data.own={self.data.own} is not possible: give one of'
        ' them'
      )


# --- the page


def table2(c: Table2, work: Workdir) -> None:
  """Makes Table 2, a sweep over distances, and blocks by a forecast, compared with the base."""
  extras.require('skimage')  # before the base is trained
  base = work.stage('base', train.base, **runs.base_inputs(c))
  data = c.data
  if c.table.own:
    images = c.distill.images
    written = work.stage('own', write_images, base=base, data=data, images=images, mesh=c.mesh)
    data = dataclasses.replace(data, own=str(written))

  split = Split(c, data, work.root / 'images', base)
  rows = runs.make_rows(split, work, list_cells(c))
  if rows and is_first():
    image_tables.blocks(rows, work.root / 'table2.png')
    image_tables.tau_sweep(rows, work.root / 'tau.png')
    tables.figure4(rows, work.root / 'figure4.png')
    image_tables.samples(split.folder, c.table.split, max(c.table.ks), rows, work.root)
    write(work, 'table2', [make(rows) for make in image_tables.TABLES], 'table2.png')


def list_cells(c: Table2) -> list[Cell]:
  """Returns the cells: greedy; blocks by forecast; then each regime and k. The largest k, or every
  k, is also measured at the other distances."""
  table = c.table
  swept: tuple[str, ...] = ()
  for tau in dict.fromkeys(table.taus):
    if tau not in (0, TAU):
      swept += (f'distance-{tau}',)
  swept_ks = (max(table.ks),)
  if table.taus_of == 'all':
    swept_ks = table.ks
  forecasts = [FORECAST]
  if table.own or c.data.own:
    forecasts.append(FITTED)

  # A forecast has no likeliest window.
  cells: list[Cell] = [(1, 'regular', ('exact',))]
  columns = (forecasts, table.forecast, ('exact', WITHIN)), (table.regimes, table.ks, COLUMNS)
  for regimes, ks, rules in columns:
    for regime, k in itertools.product(regimes, ks):
      cells.append((k, regime, rules + swept if k in swept_ks else rules))
  return cells


def plans(c: Table2) -> list[Row]:
  """Returns the names of the rows of the page."""
  rows: list[Row] = []
  for k, regime, rules in list_cells(c):
    for rule in rules:
      row: Row = {'k': k, 'regime': regime, 'rule': rule}
      rows.append({**row, 'tolerance': image_tables.distance(row)})
  return rows


# --- one run: experiments.train, experiments.distill and experiments.evaluate


train_run = runs.train_run


def evaluate(c: Table2, work: Workdir) -> None:
  """Measures only the run in the workdir, by the rules of the table."""
  runs.check_model(work.root, folders.model_of(c.model))
  split = Split(c, c.data, work.root / 'images', work.root)
  runs.evaluate_run(split, work, COLUMNS, image_tables.TABLES)


def distil(c: Table2, teacher: pathlib.Path, workdir: pathlib.Path) -> str:
  """Has a base write its own images; returns a sentence about the finished folder."""
  inputs = {'base': teacher, 'data': c.data.originals, 'images': c.distill.images, 'mesh': c.mesh}
  in_place(workdir, write_images, **inputs)
  n, height, width, _ = open_written(workdir).written.shape
  return f'{workdir}/images.npz has {n:,} images of {height} x {width} pixels that the base wrote'


# --- images: photographs, and those that a base writes


@dataclasses.dataclass(frozen=True)
class Pictures:
  """Material that models of images are trained on; see `lab/train.py`."""

  config: ImagesConfig
  images: Images
  written: 'WrittenImages | None' = None  # heads learn from these

  def save(self, folder: pathlib.Path, base: Bound, heads: Any = None) -> None:
    """Writes a model, perhaps with heads, as the result of a training."""
    folders.save(base.module, base.params, folder / 'model', heads)

  def model_of(self, config: ImageTransformerConfig) -> Model:
    """Returns the model of these sizes."""
    return folders.model_of(config)

  def fresh(self, module: Any, key: Array) -> Params:
    """Returns parameters to begin at; those of a forecast by least squares on training images."""
    params = module.init(key)
    if module.config.forecast:
      images = self.images.array('train', min(FORECAST_IMAGES, self.images.counts['train']))
      weights = fd.fit_forecast(module, shrink(images), images)
      params['forecast']['weights'] = jnp.asarray(weights)
    return params

  def train_batches(self, rows: int = 0, seed: int = 0) -> Any:
    """Returns endless batches, by index; 0 rows: as many as the config says."""
    c, rows = self.config, rows or self.config.rows
    if self.written is not None:
      return written_batches(self.written.source, self.written.written, rows, seed)
    self._say_left_out('train')
    return image_batches(self.images, 'train', rows, seed, c.mirrored, c.moved)

  def dev_batches(self) -> list[Any]:
    """Returns batches for evaluations during training."""
    rows = min(self.config.rows, self.images.counts['dev'])
    self._say_left_out('dev')
    batches = image_batches(self.images, 'dev', rows, seed=0)
    return [batches[i] for i in range(max(1, min(DEV_IMAGES, self.images.counts['dev']) // rows))]

  def _say_left_out(self, split: str) -> None:
    left_out, kept = self.images.dropped.get(split, 0), self.images.counts[split]
    say_left_out(left_out, kept, f'images of the {split} set', 'they have a black corner')

  def read_base(self, folder: pathlib.Path) -> Bound:
    """Returns the base of a run, without heads; see `check_base`."""
    base = read_trunk(folder)
    self.check_base(folder)
    return base

  def check_base(self, folder: pathlib.Path) -> None:
    """Raises UserError where a run was trained on other images, or another base wrote the own
    ones."""
    if made := inputs_of(folder):
      data = made.get('data')
      if not isinstance(data, dict) or str(data.get('key')).split(' ')[0] != self.images.key[:16]:
        remedy = 'give a run of the same config, on the same images'
        raise UserError(f'{folder} was trained on other images than this config means: {remedy}')
    if self.config.own:
      record, images = read_record(self.config.own), f'the images in {self.config.own} were written'
      if record.teacher != author_of(*without_heads(*folders.load(folder))):
        raise UserError(f'{images} by another model than {folder}: {HOW_TO_WRITE}')
      if (record.images, record.mirrored) != (self.images.key[:16], self.config.mirrored):
        raise UserError(f'{images} of other images than this config means: {HOW_TO_WRITE}')


class WrittenImages(NamedTuple):
  """Small images, and the large ones that a base has written from them."""

  source: UInt8[np.ndarray, 'n 8 8 3']
  written: UInt8[np.ndarray, 'n h h 3']


HOW_TO_WRITE = (
  'let it write them by experiments.distill --teacher=BASE, BASE being the folder of the base'
)


def write_images(
  folder: pathlib.Path, *, base: pathlib.Path, data: ImagesConfig, images: int,
  mesh: MeshConfig = MeshConfig(),
) -> None:  # fmt: skip
  """Has a base enlarge small training images, greedily: heads learn to guess what it writes.

  The images are written to parts/, then together to images.npz. The last file, images.json, says
  which model has written them, and from which photographs. There are mirror images too where the
  training has them, and `images` of all, evenly spaced (0: all). Heads of the base are ignored.
  """
  if agreed((folder / 'images.json').is_file()):  # killed while parts were being removed
    shutil.rmtree(folder / 'parts', ignore_errors=True)
    return
  pictures = data.originals.open()
  pictures.check_base(base)
  model, params = without_heads(*folders.load(base))
  teacher, source = author_of(model, params), shrink(pictures.images.array('train'))
  if data.mirrored:
    source = np.concatenate([source, source[:, :, ::-1]])
  source = source[spaced(len(source), images)]
  devices, parts, rows = make_own_mesh(mesh), [], PART
  if devices is not None:
    rows = -(-PART // devices.shape['data']) * devices.shape['data']
  params = place_module(model, params, devices)

  def write(first: int, path: pathlib.Path) -> None:
    inputs = source[first : first + PART]
    made = to_images(decode_images(model, params, fd.Greedy(), inputs, rows).tokens)
    with whole_file(path) as file:
      np.save(file, made)

  firsts = range(0, len(source), PART)
  with Progress(len(source), 'image', quiet=not is_first()) as progress:
    for first, path in in_turns(firsts, lambda i: folder / 'parts' / f'{i:06}.npy', write):
      parts.append(path)
      progress.add(len(source[first : first + PART]))
  if not is_first():
    return
  written = np.concatenate([*map(np.load, parts)])
  with whole_file(folder / 'images.npz') as file:
    np.savez_compressed(file, source=source, written=written)
  content = hashlib.sha256(source.tobytes() + written.tobytes()).hexdigest()[:16]
  record = Record(teacher, pictures.images.key[:16], content, data.mirrored)
  write_json(folder / 'images.json', dataclasses.asdict(record))
  shutil.rmtree(folder / 'parts')


def open_written(folder: pathlib.Path) -> WrittenImages:
  """Opens the images that a base has written into a folder.

  Raises:
    UserError: they are not there, not whole, or cannot be read.
  """
  read_record(folder)  # the record is written last
  shapes = {'source': (8, 8, 3), 'written': (-1, -1, 3)}
  return WrittenImages(**npz.read(folder / 'images.npz', shapes, 'images'))


@dataclasses.dataclass(frozen=True)
class Record:
  """images.json: hashes of the model that wrote images, of the photographs, and of the images."""

  teacher: str
  images: str
  content: str
  mirrored: bool


def read_record(folder: str | pathlib.Path) -> Record:
  """Reads the record of images that a base has written."""
  file = pathlib.Path(folder) / 'images.json'
  if not file.is_file():
    raise UserError(f'{folder} holds no images that a base has written: {HOW_TO_WRITE}')
  return read(Record, read_json(file), str(file), mark=': ')


# --- decoding


@functools.cache
def parse_rule(name: str) -> fd.MinBlock:
  """Returns the rule of a name: 'exact', 'distance-2', 'window-2', 'min-3'. All are of one
  structure, so that a sweep over them is one compiled program."""
  most = INTENSITIES // 2
  allowed = f'exact, distance-N, min-N or window-N (N from 1, of a window below {most})'
  match = re.fullmatch(r'exact|(distance|min|window)-(\d{1,9})', name)
  if match is None:
    raise UserError(f'the rule {name} is unknown: give {allowed}, such as {WITHIN}')
  kind, number = match[1], int(match[2] or 0)
  if (kind == 'min' and number == 0) or (kind == 'window' and not 1 <= number < most):
    raise UserError(f'the rule {name} is unknown: give {allowed}, such as {WITHIN}')
  if kind == 'min':
    return fd.MinBlock(fd.Distance(0), number)
  return fd.MinBlock(fd.Distance(number), 1)


def make_strategy(heads: Any, k: int | None, name: str) -> fd.Blockwise:
  """Returns blockwise decoding by the rule of this name.

  'window-2' accepts as 'distance-2' does; its guesses are the middle of the five intensities that
  are likeliest together.
  """
  kind, _, number = name.partition('-')
  if kind == 'window':
    return fd.Blockwise(heads, k, parse_rule(name), int(number))
  return fd.Blockwise(heads, k, parse_rule(name))


def decode_images(model: Any, params: Any, strategy: Any, inputs: np.ndarray, rows: int) -> Decoded:
  """Decodes small images, `rows` at once, in one program."""

  def decode(batch: np.ndarray) -> Decoded:
    return fd.decode(model, params, batch, strategy).checked()

  return run_batches(decode, rows, inputs)


def to_images(tokens: Any) -> UInt8[np.ndarray, 'n h h 3']:
  """Returns decoded intensities [n, h * h * 3] as images."""
  pixels = np.asarray(tokens, np.uint8)
  side = math.isqrt(pixels.shape[1] // CHANNELS)
  return pixels.reshape(-1, side, side, CHANNELS)


# --- the task


class Split(Task):
  """The first images of a split, on which models are measured; opened on first use.

  Args:
    c: the settings.
    data: the images that heads have learnt from.
    folder: where outputs are written, as <split>-k<k>-<regime>-<rule>.npz with the arrays input,
      output, original (uint8), block_sizes, and models and base, hashes of the model and of its
      base. Another config overwrites them.
    base: the folder of the base that all models begin at.
  """

  timed_rules, blocks = COLUMNS, image_tables.PAPERS_TABLE2

  def __init__(
    self, c: Table2, data: ImagesConfig, folder: pathlib.Path, base: pathlib.Path
  ) -> None:
    super().__init__(c, data, c.table.split)
    self.folder, self.base_folder = folder, base

  def __reduce__(self) -> Any:
    """A job opens the images itself."""
    return Split, (self.c, self.data, self.folder, self.base_folder)

  @functools.cached_property
  def originals(self) -> UInt8[np.ndarray, 'n h h 3']:
    """The images."""
    return self.data.images.array(self.split, self.c.table.images or None)

  @functools.cached_property
  def inputs(self) -> UInt8[np.ndarray, 'n 8 8 3']:
    """The images, shrunk."""
    return shrink(self.originals)

  @functools.cached_property
  def bicubic_psnr(self) -> float:
    """PSNR of bicubic enlargements, in dB."""
    return psnr(bicubic(self.inputs, self.originals.shape[1]), self.originals)

  @functools.cached_property
  def fitted(self) -> np.ndarray:
    """Weights of a forecast, fitted to the images that the base has written."""
    written = open_written(pathlib.Path(self.data.own))
    return fd.fit_forecast(folders.model_of(self.c.model), *written)

  def check(self) -> None:
    extras.require('skimage')  # measures likeness

  def base(self, work: Workdir, regime: str) -> Base:
    return Base(self.base_folder, self.data, 'regular')

  def key(self, folder: pathlib.Path, k: int, regime: str, rule: str) -> Row:
    key = super().key(folder, k, regime, rule)
    key |= {'outputs': len(self.inputs), 'images': self.data.images.key[:16]}
    if regime == FITTED:
      key['own_images'] = read_record(self.data.own).content
    return key | {'timing_images': self.c.table.timed}

  def strategies(
    self, target: Bound, folder: pathlib.Path, k: int, regime: str, rules: Sequence[str]
  ) -> dict[str, Any]:
    """Returns the strategy of each rule, in order: greedy, by a forecast, or by heads."""
    if k == 1:
      return dict.fromkeys(rules, fd.Greedy())
    if regime in UNTRAINED:
      weights = self.fitted if regime == FITTED else None
      return {rule: fd.LinearForecast(k, parse_rule(rule), weights) for rule in rules}
    heads = runs.prepare(*folders.load_heads(folder), mesh_of(target.params))
    return {rule: make_strategy(heads, k, rule) for rule in rules}

  def timed_inputs(self) -> list[tuple[Any]]:
    timed = self.inputs[spaced(len(self.inputs), self.c.table.timed)]
    return [(image[None],) for image in timed]

  def decode(self, target: Bound, strategy: Any) -> Decoded:
    rows = runs.choose_rows(self.c.table.rows, len(self.inputs), target)
    return decode_images(target.module, target.params, strategy, self.inputs, rows)

  def batches(self, greedy: Decoded) -> tuple[list[Any], list[Any]]:
    few = min(DEV_IMAGES, len(self.inputs))
    rows, made = min(self.c.data.rows, few), to_images(greedy.tokens)
    written: Any = written_batches(self.inputs[:few], made[:few], rows, seed=0)
    return self.c.data.originals.open().dev_batches(), [written[i] for i in range(few // rows)]

  def model_figures(self, target: Bound) -> Row:
    """Returns the bits an intensity that a model needs for the originals, and bicubic PSNR."""
    model, params = target
    rows = min(self.c.table.rows, len(self.inputs), 8)
    whole = len(self.inputs) // rows * rows
    sources = self.inputs[:whole].reshape(-1, rows, *self.inputs.shape[1:])
    targets = self.originals[:whole].reshape(-1, rows, model.fixed_length).astype(np.int32)
    batches = (
      {'source': source, 'target': target, 'target_segment': np.ones_like(target)}
      for source, target in zip(sources, targets, strict=True)
    )
    bits = dev_loss(model, params, batches)['nll'] / np.log(2)
    return {'bits_per_dimension': bits, 'bicubic_psnr': self.bicubic_psnr}

  def quality(self, key: Row, target: Bound, strategy: Any, out: Decoded, greedy: Decoded) -> Row:
    """Returns likeness and block sizes, and keeps the images."""
    if key['rule'] == 'exact':
      self.check_only_near_ties(target, out, greedy)
    made, plain = to_images(out.tokens), to_images(greedy.tokens)
    self.keep(key, output=made, block_sizes=out.block_sizes)
    return {
      'tolerance': image_tables.distance(key),
      'mean_block_size': out.mean_block_size,
      'calls_per_output': float(np.mean(out.calls)),
      'psnr': psnr(made, self.originals),
      'ssim': ssim(made, self.originals),
      'psnr_to_greedy': psnr(made, plain),
      'same_as_greedy': float((made == plain).all(axis=(1, 2, 3)).mean()),
    }

  def keep(self, key: Row, **arrays: Any) -> None:
    """Writes the images that a row made, with the inputs, the originals, and hashes of the model
    and of its base."""
    arrays = {'input': self.inputs, 'original': self.originals, **arrays}
    for author, content in ('models', key['models']), ('base', folders.content(self.base_folder)):
      arrays[author] = np.frombuffer(bytes.fromhex(content), np.uint8)[None]
    name = f'{key["split"]}-k{key["k"]}-{key["regime"]}-{key["rule"]}.npz'
    with whole_file(self.folder / name) as file:
      np.savez_compressed(file, **arrays)

  def check_only_near_ties(self, target: Bound, out: Decoded, greedy: Decoded) -> None:
    """Raises UserError where an image differs first from greedy decoding's at a place that is not a
    near tie."""
    gaps = [np.zeros(0)]
    # one by one: scoring takes memory
    for i in np.flatnonzero((out.tokens != greedy.tokens).any(axis=1)):
      ours, plain = (jax.tree.map(lambda x, i=i: x[i : i + 1], one) for one in (out, greedy))
      gaps.append(find_gaps((target.module, target.params), self.inputs[i : i + 1], ours, plain))
    check_gaps(np.concatenate(gaps), len(self.inputs), self.c.model.dtype)

  def summary(self, row: Row) -> str:
    block, likeness = f'mean block {row["mean_block_size"]:.2f}', f'PSNR {row["psnr"]:.2f} dB'
    return f'k={row["k"]} {row["regime"]} {row["rule"]}: {block}, {likeness}'
