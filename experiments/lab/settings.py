"""What the pages of the paper share: settings of runs and heads, and what a training run asks of an
experiment."""

import dataclasses
import hashlib
import math
import pathlib
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from jax.sharding import Mesh
from jaxtyping import Array

from configs.common import to_dataclass
from fastdec.errors import UserError
from fastdec.fields import Between, Share
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.api import Model, Params
from fastdec.sharding import MeshConfig, check_rows, make_mesh
from fastdec.training.loop import LoopConfig
from fastdec.training.optimizer import OptimizerConfig

Regime = Literal['regular', 'distil', 'finetune', 'both']
DISTILLED = ('distil', 'both')  # regimes that train on a teacher's translations
TUNED = ('finetune', 'both')  # regimes whose heads train together with the base


Count = Annotated[int, Between(1, math.inf)]
Zero = Annotated[int, Between(0, math.inf)]  # a count that may be none
Seed = Annotated[int, Between(0, 2**32 - 1)]
Counts = tuple[Count, ...]


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """One training run, by Adam; the schedules are those of `OptimizerConfig`."""

  steps: Count
  warmup: Count  # steps
  every: Count  # steps between evaluations and checkpoints
  schedule: str = 'rsqrt'  # or 'noam', T2T's older one; 'linear' and 'cosine' fall to 0
  constant: float = 2.0  # with a short warm-up the paper's 2.0 would peak too high
  label_smoothing: Share = 0.1
  average: Count = 2  # checkpoints whose mean is the result
  span: Share = 0.0  # share of the run over which they stand; 0: they stand `every` apart
  rows: Zero = 0  # of a batch; 0: the text's. All heads at once train faster on small batches
  accumulate: Count = 1  # parts of a batch computed one after the other, to save memory
  b2: float = 0.997  # Adam's, as in T2T v3
  clip: float = 0.0  # longer gradients are shortened to this norm; 0: none is
  heads_rate: float = 1.0  # heads trained together with the base: this many times its rate
  weight_norm: bool = False  # kernels as directions and lengths (Salimans and Kingma 2016)

  @classmethod
  def falling(cls, **settings: Any) -> Self:
    """A run whose rate falls from `constant` to 0, averaged over its last twentieth."""
    return cls(**{'schedule': 'linear', 'average': 5, 'span': 0.05} | settings)

  def loop(self) -> LoopConfig:
    """How long, and how often what."""
    return LoopConfig(
      self.steps,
      log_every=min(50, self.every),
      eval_every=self.every,
      checkpoint_every=self.every,
      keep=self.average,
      span=self.span,
      accumulate=self.accumulate,
    )

  def optimizer(self, d_model: int) -> OptimizerConfig:
    """The rate for a model of this width."""
    names = ('schedule', 'constant', 'warmup', 'steps', 'b2', 'clip', 'heads_rate', 'weight_norm')
    return OptimizerConfig(d_model=d_model, **{name: getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """Blockwise heads (Stern et al. 2018) and how they are trained; see fastdec/heads/blockwise.py."""

  d_ff: Count
  layout: str = 'separate'  # or 'paper', the paper's dense layer
  first: str = 'identity'  # or 'transformed': p1 goes through a head too
  p1_share: Share = 0.0  # of the loss in fine-tuning; 0: that of head 2. Short runs need more
  draw: Literal['one', 'all'] = 'one'  # heads that a minibatch trains; the paper draws one
  decay: Annotated[float, Between(1e-6, 1)] = 1.0  # each later head's loss counts this many times
  dropout: Share = 0.1  # on hidden units and outputs; short runs need none
  rooted: bool = False  # heads read the root's embedding too (Ankner et al. 2024)
  markov: Zero = 0  # rank of a bias from the token guessed before; 0: none
  anchors: Zero = 0  # places of each row that all heads at once learn at; 0: all

  def __post_init__(self) -> None:
    check_anchors(self.anchors, self.draw)
    for name in ('p1_share', 'dropout'):
      if getattr(self, name) == 1:
        raise UserError(f'config.heads.{name}=1.0 is not possible: give a share below 1')

  def module(self, model: Any, k: int) -> BlockwiseHeads:
    """The heads for blocks of k tokens on a model."""
    names = 'd_ff', 'layout', 'first', 'dropout', 'rooted', 'markov'
    d_embed = getattr(model.config, 'd_embed', None) if self.rooted else None
    words = model.vocab_size if self.markov else None
    same = {name: getattr(self, name) for name in names}
    return BlockwiseHeads(k=k, d_model=model.d_model, d_embed=d_embed, words=words, **same)

  def fresh(self, module: Any, model: Any, trunk: Params) -> Params | None:
    """Parameters that new heads begin at; None: what their `init` draws."""
    return None

  @property
  def conditions(self) -> dict[str, str]:
    """What heads see that the paper's do not, as a condition of what is measured with them."""
    seen = ['the root'] * self.rooted + [
      f'the token guessed before, by a bias of rank {self.markov}'
    ] * bool(self.markov)
    return {'heads_see': ' and '.join(seen)} if seen else {}


class DataSettings(Protocol):
  """What every training's data says of itself."""

  @property
  def rows(self) -> int:
    """Rows of a batch."""
    ...


class ModelSettings(Protocol):
  """What every model's sizes say."""

  @property
  def d_model(self) -> int:
    """The width."""
    ...

  @property
  def dtype(self) -> Any:
    """What the model computes in."""
    ...


class HeadSettings(Protocol):
  """How heads are trained; see `HeadsConfig`."""

  @property
  def p1_share(self) -> float: ...

  @property
  def draw(self) -> Literal['one', 'all']: ...

  @property
  def decay(self) -> float: ...

  @property
  def anchors(self) -> int: ...


class TableSettings(Protocol):
  """What every table of a paper's page says."""

  @property
  def ks(self) -> tuple[int, ...]:
    """Block sizes above 1."""
    ...

  @property
  def regimes(self) -> tuple[Regime, ...]: ...

  @property
  def split(self) -> str: ...

  @property
  def one_run(self) -> bool:
    """Whether one run for the largest of `ks` serves all of them, in every regime."""
    ...


class Material(Protocol):
  """What is trained on, and the model for it; `Training.open` prepares it."""

  @property
  def tokenizer_path(self) -> pathlib.Path | None:
    """The tokenizer's file; None: pictures."""
    ...

  @property
  def model(self) -> Model:
    """The model that the config means."""
    ...

  @property
  def content(self) -> str:
    """A hash of what people wrote or photographed, wherever it lies."""
    ...

  def init(self, key: Array) -> Params:
    """What a base model begins with."""
    ...

  def train_batches(self, rows: int = 0, seed: int | None = None) -> Any:
    """Endless batches, by index; 0 rows: as many as the config says; None: shuffled by the
    experiment's seed."""
    ...

  def dev_batches(self) -> list[Any]:
    """Batches to look at during training."""
    ...

  def check_base(self, folder: pathlib.Path) -> None:
    """Raises UserError where the run in a folder was trained on something else."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
  """A base model and how it is trained: what `Run` asks for. Subclasses say which data and which
  model."""

  seed: int
  mesh: MeshConfig
  train: RunConfig  # of the base
  data: DataSettings
  model: ModelSettings

  runs: ClassVar[tuple[str, ...]] = ('train',)
  distilled: ClassVar[str] = ''  # a folder of a teacher's translations to train on
  own: ClassVar[str] = ''  # a folder of what the base itself writes, to train heads on

  @classmethod
  def of(cls, config: Any) -> Self:
    """From a locked ConfigDict; what cannot be trained or measured is a UserError, before any
    work."""
    return to_dataclass(cls, config)

  def __post_init__(self) -> None:
    if not 0 <= self.seed < 2**32:
      raise UserError(
        f'seed={self.seed} is not possible: give a whole number from 0 to {2**32 - 1}'
      )
    for name in self.runs:
      run: RunConfig = getattr(self, name)
      at_least(
        1,
        name,
        **{
          part: getattr(run, part) for part in ('steps', 'warmup', 'every', 'average', 'accumulate')
        },
      )
      at_least(0, name, rows=run.rows)
      check_rows(run.rows or self.data.rows, self.mesh.data, run.accumulate)
      run.optimizer(self.model.d_model)
      run.loop()

  def open(self) -> Material:
    """Prepares what is trained on, where that has not been done; then opens it."""
    raise NotImplementedError

  def run(self, k: int, regime: str) -> RunConfig:
    """The settings of the base's training, or of the heads'."""
    return self.train

  def distilled_key(self) -> str:
    """A hash of the text that is trained on where a model wrote it; '' where people did."""
    return ''

  def recorded_data(self, distilled: str) -> Any:
    """What a run's record says of the data: its settings, a model's text by its hash."""
    return self.data

  @property
  def devices(self) -> Mesh | None:
    """The mesh; None where it is one device, which needs none."""
    return None if self.mesh == MeshConfig() else make_mesh(self.mesh)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsTraining(Training):
  """A base model, heads on it, and how both are trained."""

  freeze: RunConfig  # of heads on a frozen base
  finetune: RunConfig  # of heads and base together
  heads: HeadSettings

  runs = ('train', 'freeze', 'finetune')

  def heads_for(self, k: int) -> Any:
    """The heads for block size k: a module of `fastdec.heads`."""
    raise NotImplementedError

  def fresh_heads(self, heads: Any, model: Model, trunk: Params) -> Params | None:
    """What new heads on a trunk begin at; None: what their `init` draws."""
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment(HeadsTraining):
  """A page of the paper at one scale: what all have. Subclasses say which data, model and table."""

  task: Literal['translation', 'images']
  scale: str
  k: int
  regime: Regime
  base: str
  heads: HeadsConfig
  table: TableSettings

  def __post_init__(self) -> None:
    if self.k < 1:
      raise UserError(f'k={self.k} is not possible: give 1 for the base model, 2 or more for heads')
    super().__post_init__()
    self._heads(2, words=2)

  def run(self, k: int, regime: str) -> RunConfig:
    if k == 1:
      return self.train
    return self.finetune if regime in TUNED else self.freeze

  def heads_for(self, k: int) -> BlockwiseHeads:
    return self._heads(k, self.open().model.vocab_size if self.heads.markov else None)

  def _heads(self, k: int, words: int | None) -> BlockwiseHeads:
    heads, d_embed = self.heads, getattr(self.model, 'd_embed', None)
    names = ('d_ff', 'layout', 'first', 'dropout', 'rooted', 'markov')
    same = {name: getattr(heads, name) for name in names}
    return BlockwiseHeads(
      k=k,
      d_model=self.model.d_model,
      d_embed=d_embed if heads.rooted else None,
      words=words,
      **same,
    )


def seed_of(seed: int, name: str) -> int:
  """The seed of one of several things that draw under the experiment's seed."""
  return int.from_bytes(hashlib.sha256(f'{seed} {name}'.encode()).digest()[:4])


def check_anchors(anchors: int, draw: str) -> None:
  """Raises UserError where heads cannot be learnt at so many places of each row."""
  at_least(0, 'heads', anchors=anchors)
  if anchors and draw != 'all':
    given = f'config.heads.anchors={anchors} with config.heads.draw={draw} is not possible'
    raise UserError(
      f'{given}: a sample of places is for all heads at once, give draw=all, or anchors=0'
    )


def each_once(part: str, **values: tuple[Any, ...]) -> None:
  """Raises UserError, naming config.<part>.<name>, where a list is empty or has an entry twice."""
  for name, value in values.items():
    if not value or len(set(value)) < len(value):
      raise UserError(f'config.{part}.{name}={value} is not possible: give one or more, each once')


def at_least(least: int, part: str, **values: int) -> None:
  """Raises UserError, naming config.<part>.<name>, where a value is less than that."""
  for name, value in values.items():
    if value < least:
      raise UserError(f'config.{part}.{name}={value} is not possible: give {least} or more')
