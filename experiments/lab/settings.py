"""Settings that papers share: trainings, heads, and kinds of numbers."""

import dataclasses
import hashlib
import math
from typing import Annotated, Any, Literal, Self

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import Between, Share
from fastdec.fields import Seed as Seed
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.api import Params
from fastdec.training.loop import LoopConfig
from fastdec.training.optimizer import OptimizerConfig

Regime = Literal['regular', 'distil', 'finetune', 'both']
DISTILLED = ('distil', 'both')  # regimes that train on a teacher's translations
TUNED = ('finetune', 'both')  # regimes whose heads train together with the base


Count = Annotated[int, Between(1, math.inf)]
Zero = Annotated[int, Between(0, math.inf)]  # a count that may be none
Counts = tuple[Count, ...]
Part = Annotated[float, Between(0, 0.999)]


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
    """Length and intervals of the training loop."""
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
  """Blockwise heads (Stern et al. 2018), see fastdec/heads/blockwise.py, and their training."""

  d_ff: Count
  layout: str = 'separate'  # or 'paper', the paper's dense layer
  first: str = 'identity'  # or 'transformed': p1 goes through a head too
  p1_share: Part = 0.0  # of the loss in fine-tuning; 0: that of head 2. Short runs need more
  draw: Literal['one', 'all'] = 'one'  # heads that a minibatch trains; the paper draws one
  decay: Annotated[float, Between(1e-6, 1)] = 1.0  # each later head's loss counts this many times
  dropout: Part = 0.1  # on hidden units and outputs; short runs need none
  rooted: bool = False  # heads read the root's embedding too (Ankner et al. 2024)
  markov: Zero = 0  # rank of a bias from the token guessed before; 0: none
  anchors: Zero = 0  # places of each row that all heads at once learn at; 0: all

  def __post_init__(self) -> None:
    check_anchors(self.anchors, self.draw)

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
    """Extra inputs of heads, which the paper's lack, as a condition of their rows."""
    seen = ['the root'] * self.rooted + [
      f'the token guessed before, by a bias of rank {self.markov}'
    ] * bool(self.markov)
    return {'heads_see': ' and '.join(seen)} if seen else {}


def seed_of(seed: int, name: str) -> int:
  """The seed of one of several things that draw under the experiment's seed."""
  return int.from_bytes(hashlib.sha256(f'{seed} {name}'.encode()).digest()[:4])


def spaced(total: int, most: int) -> np.ndarray:
  """Indices from 0 to total - 1, evenly spaced, at most `most`; 0: all."""
  return np.linspace(0, total - 1, min(most or total, total)).round().astype(int)


def check_anchors(anchors: int, draw: str) -> None:
  """Raises UserError where a sample of places is not for all heads at once."""
  if anchors and draw != 'all':
    given = f'config.heads.anchors={anchors} with config.heads.draw={draw} is not possible'
    raise UserError(f'{given}: give draw=all, or anchors=0')


def each_once(part: str, **values: tuple[Any, ...]) -> None:
  """Raises UserError, naming config.<part>.<name>, where a list is empty or has an entry twice."""
  for name, value in values.items():
    if not value or len(set(value)) < len(value):
      raise UserError(f'config.{part}.{name}={value} is not possible: give one or more, each once')
