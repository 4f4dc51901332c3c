"""The training of a base as a stage, and settings that trainings share. Drafters on a finished base
are trained by fastdec/training/drafts/trainer.py.

  base = stage(root, 'base', train.base, model=c.model, run=c.train, data=c.data, seed=c.seed)

The result is the stage's model/ (`folders.load` takes the stage itself). Data is text or images: a
dataclass with a `key`, whose `open()` returns the material to train on.
"""

import dataclasses
import functools
import hashlib
import pathlib
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
import numpy as np

from fastdec import folders
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.errors import UserError
from fastdec.fields import Between
from fastdec.fields import Count as Count
from fastdec.fields import Seed as Seed
from fastdec.fields import Zero as Zero
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.kernels.sharding import AXES, MeshConfig, check_rows, choose_shardings, partition_of
from fastdec.models.api import Model, Params
from fastdec.struct import Bound
from fastdec.training.losses import dev_loss
from fastdec.training.processes import is_first
from fastdec.training.run import Rows as Rows
from fastdec.training.run import RunConfig, Training, carry_out
from fastdec.training.state import base_task

Regime = Literal['regular', 'distil', 'finetune', 'both']
DISTILLED = ('distil', 'both')  # regimes that train on a teacher's translations
TUNED = ('finetune', 'both')  # regimes whose heads train together with the base


Counts = tuple[Count, ...]
# Bounds of what a call, or a batch, can hold.
WIDEST = 999  # tokens of a call
Tokens = Annotated[int, Between(1, WIDEST)]
Several = Annotated[int, Between(2, WIDEST)]  # tokens, at least two
Part = Annotated[float, Between(0, 0.999)]


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """Blockwise heads (Stern et al. 2018), see fastdec/heads/blockwise.py, and their training."""

  d_ff: Count
  layout: str = 'separate'  # or 'paper', the paper's dense layer
  first: str = 'identity'  # or 'transformed': p1 goes through a head too
  p1_share: Part = 0.0  # of the loss in fine-tuning; 0: that of head 2. Short runs need more
  draw: Literal['one', 'all'] = 'one'  # heads that a minibatch trains; the paper draws one
  decay: Annotated[float, Between(1e-6, 1)] = 1.0  # multiplies the loss of each later head
  dropout: Part = 0.1  # on hidden units and outputs; short runs need none
  rooted: bool = False  # heads read the root's embedding too (Ankner et al. 2024)
  markov: Zero = 0  # rank of a bias from the token guessed before; 0: none
  anchors: Zero = 0  # places of each row that all heads at once learn at; 0: all

  def __post_init__(self) -> None:
    if self.anchors and self.draw != 'all':
      raise UserError(
        f'config.heads.anchors={self.anchors} with config.heads.draw={self.draw} is not possible:'
        ' give draw=all, or anchors=0'
      )

  def module(self, model: Any, k: int) -> BlockwiseHeads:
    """The heads for blocks of k tokens on a model; raises UserError if they are impossible."""
    extra: dict[str, Any] = {}
    if self.rooted:
      extra['d_embed'] = getattr(model.config, 'd_embed', None)
    if self.markov:
      extra['words'] = model.vocab_size
    for name in ('d_ff', 'layout', 'first', 'dropout', 'rooted', 'markov'):
      extra[name] = getattr(self, name)
    return BlockwiseHeads(k=k, d_model=model.d_model, **extra)

  def fresh(self, module: Any, model: Any, trunk: Params) -> Params | None:
    """Parameters that new heads begin with; None: those that their `init` draws."""
    return None

  @property
  def conditions(self) -> dict[str, str]:
    """Extra inputs of heads, which the paper's lack, as a condition of their rows."""
    seen = []
    if self.rooted:
      seen.append('the root')
    if self.markov:
      seen.append(f'the token guessed before, by a bias of rank {self.markov}')
    return {'heads_see': ' and '.join(seen)} if seen else {}


def seed_of(seed: int, name: str) -> int:
  """A seed for one use of random numbers, derived from the experiment's seed."""
  return int.from_bytes(hashlib.sha256(f'{seed} {name}'.encode()).digest()[:4])


def spaced(total: int, most: int) -> np.ndarray:
  """Indices from 0 to total - 1, evenly spaced, at most `most`; 0: all."""
  return np.linspace(0, total - 1, min(most or total, total)).round().astype(int)


def each_once(part: str, **values: tuple[Any, ...]) -> None:
  """Raises UserError, naming config.<part>.<name> (of part '' config.<name>), where a list is empty
  or has an entry twice."""
  for name, value in values.items():
    if not value or len(set(value)) < len(value):
      where = '.'.join(filter(None, ('config', part, name)))
      raise UserError(f'{where}={value} is not possible: give one or more, each once')


def base(
  folder: pathlib.Path, *, model: Any, run: RunConfig, data: Any, seed: int,
  start: pathlib.Path | None = None, order: int | None = None, mesh: MeshConfig = MeshConfig(),
) -> None:  # fmt: skip
  """Trains a model from fresh parameters, or a finished one further.

  Args:
    folder: of the stage.
    model: its settings, without the vocabulary, which the data gives.
    run, data, seed, mesh: as of other trainings, see `drafts.trainer.OnBase`.
    start: the folder of a finished base; None: fresh parameters.
    order: draws the order of the batches; None: `seed`.
  """
  material = data.open()
  module = material.model_of(model)
  dev = material.dev_batches()
  if start is None:
    task = base_task(module, run.label_smoothing)
    task = dataclasses.replace(task, init=functools.partial(material.fresh, module))
  else:
    trunk, params = material.read_base(start)
    if trunk != module:
      raise UserError(f'{start} holds another model than this config means: give one of its sizes')
    task = base_task(module, run.label_smoothing, params)
  batches = material.train_batches(run.rows, seed if order is None else order)

  def save(params: Params) -> None:
    material.save(folder, Bound(module, params))

  def evaluate(params: Params) -> dict[str, float]:
    return dev_loss(module, params, dev)

  training = Training(task, batches, [module], save, evaluate)
  carry_out(folder, training, run, seed, mesh)


def author_of(model: Model, params: Params, tokenizer: Tokenizer | None = None) -> str:
  """A hash of all that decides what a model writes: its settings, its parameters, and its pieces
  (None: it writes images)."""
  digest = hashlib.sha256(repr(model).encode())
  if tokenizer is not None:
    digest.update(tokenizer.model_proto)
  for path, leaf in jax.tree.leaves_with_path(params):
    digest.update(repr((path, leaf.dtype)).encode() + np.asarray(leaf).tobytes())
  return digest.hexdigest()[:16]


def check(run: RunConfig, model: Any, rows: int, mesh: MeshConfig, name: str) -> None:
  """Raises UserError, before any work, where a run (config.<name>) is impossible."""
  try:
    check_rows(run.rows or rows, mesh.data, run.accumulate)
    if mesh.model > 1:
      check_split(folders.model_of(model), mesh)
    run.optimizer(model.d_model)
    run.loop()
  except UserError as error:
    raise UserError(f'config.{name}: {error}') from None


def check_decoding(mesh: MeshConfig, rows: Mapping[str, int]) -> None:
  """Raises UserError, before any work, where rows that are decoded at once (config.<name>.rows)
  cannot be divided over the devices."""
  for name, count in rows.items():
    try:
      check_rows(count, mesh.data)
    except UserError as error:
      raise UserError(f'config.{name}: {error}') from None


@functools.cache
def check_split(module: Any, mesh: MeshConfig) -> None:
  """Raises UserError, before any work, where parameters cannot be divided over the devices."""
  shapes = jax.eval_shape(module.init, jax.random.key(0))
  devices = jax.sharding.AbstractMesh((mesh.data, mesh.model), AXES)
  with warnings.catch_warnings(action='ignore'):  # of words: the text gives their number
    choose_shardings(shapes, devices, partition_of(module, mesh.model))


def check_read(data: Any, kinds: Mapping[str, tuple[str, ...]]) -> None:
  """Raises UserError where config.data has a setting that data of its kind does not read; `kinds`
  are those that do, by the names of such settings."""
  defaults = {field.name: field.default for field in dataclasses.fields(data)}
  for name, reading in kinds.items():
    value = getattr(data, name)
    if data.kind not in reading and value != defaults[name]:
      raise UserError(
        f'config.data.{name}={value} is not read, since config.data.kind={data.kind}: leave it out,'
        f' or give kind={" or ".join(reading)} too'
      )


def say_left_out(left_out: int, kept: int, what: str, reason: str) -> None:
  """Prints how many texts or images are not used, and why; nothing if all are."""
  if left_out and is_first():
    print(f'{left_out:,} of {left_out + kept:,} {what} are left out: {reason}', flush=True)


def check_lengths(lengths: Mapping[str, int], model: Any, name: str = 'model') -> None:
  """Raises UserError, before any work, where a length (config.<its name>) is more than the
  positions of a model (config.<name>)."""
  limit = model.max_positions
  for field, length in lengths.items():
    if limit is not None and length > limit:
      raise UserError(
        f'config.{field}={length} is not possible: {name}.max_positions={limit} is the most'
      )
