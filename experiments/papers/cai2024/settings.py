"""What `experiments.medusa` means: a language model of captions, heads on it, their trainings, what
is measured."""

import dataclasses
import pathlib
from typing import Any, Literal

from experiments.lab.captions import CaptionTraining
from experiments.lab.settings import HeadsTraining, RunConfig, at_least, check_anchors, each_once
from experiments.lab.text import OnModelText
from fastdec.decoding.methods.trees import medusa_choices
from fastdec.decoding.rules.typical import Typical
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.api import Model, Params

# heads on the frozen model; heads and model together, beginning with those
STAGES = ('medusa-1', 'medusa-2')


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """The heads; fields as in `configs/medusa.py`."""

  depth: int
  layers: int
  own_projection: bool
  draw: Literal['one', 'all']
  decay: float
  p1_share: float
  rooted: bool = False
  markov: int = 0
  anchors: int = 0

  def __post_init__(self) -> None:
    at_least(1, 'heads', depth=self.depth, layers=self.layers)
    at_least(0, 'heads', markov=self.markov)
    check_anchors(self.anchors, self.draw)
    if not 0 < self.decay <= 1:
      raise UserError(
        f'config.heads.decay={self.decay} is not possible: give 1 for equal weights,'
        ' or less, above 0'
      )
    if not 0 < self.p1_share < 1:
      raise UserError(
        f'config.heads.p1_share={self.p1_share} is not possible: give a share above 0 and below 1'
      )


@dataclasses.dataclass(frozen=True)
class MeasureConfig:
  """What is measured, on how much; fields as in `configs/medusa.py`."""

  published: str
  nodes: int
  most: int
  batches: tuple[int, ...]
  typical: float
  prompt: int
  calibrated: int
  split: Literal['dev', 'test']
  timed: int
  max_len: int
  repeats: int

  def __post_init__(self) -> None:
    each_once('measure', batches=self.batches)
    at_least(1, 'measure', **{f'batches[{i}]': value for i, value in enumerate(self.batches)})
    at_least(2, 'measure', nodes=self.nodes, most=self.most, max_len=self.max_len)
    names = ('prompt', 'calibrated', 'timed', 'repeats')
    at_least(1, 'measure', **{name: getattr(self, name) for name in names})
    medusa_choices(self.published)
    Typical(self.typical)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedusaExperiment(OnModelText, CaptionTraining, HeadsTraining):
  """The whole; fields as in `configs/medusa.py`."""

  scale: str
  text: Literal['own', 'data', 'mixed']
  heads: HeadsConfig
  measure: MeasureConfig

  def __post_init__(self) -> None:
    super().__post_init__()
    deep = Topology.from_choices(medusa_choices(self.measure.published)).max_depth
    if deep > self.heads.depth:
      given = f'config.measure.published={self.measure.published} is {deep} deep'
      raise UserError(
        f'{given}, and config.heads.depth={self.heads.depth}: give as many heads, or another tree'
      )

  def run(self, k: int, regime: str) -> RunConfig:
    return (
      self.train
      if k == 1
      else self.freeze
      if regime == self.regime_of(STAGES[0])
      else self.finetune
    )

  @property
  def writes(self) -> bool:
    """Whether the model writes text to train on."""
    return self.text != 'data'

  def regime_of(self, stage: str) -> str:
    """The regime of one of STAGES, as `Run` calls it."""
    frozen, together = ('distil', 'both') if self.writes else ('regular', 'finetune')
    return frozen if stage == STAGES[0] else together

  def on(self, own: pathlib.Path | None, stage: str = '') -> 'MedusaExperiment':
    """With the text that a stage is trained on: people's, what the model wrote into `own`, or both.

    Text `mixed` is both for Medusa-2 alone: there the model itself learns, and is to keep what it
    knows of people's.
    """
    written = str(own) if own and self.writes else ''
    mixed = bool(written) and self.text == 'mixed' and stage == STAGES[1]
    return dataclasses.replace(
      self, data=dataclasses.replace(self.data, distilled=written, mixed=mixed)
    )

  def heads_for(self, k: int) -> MedusaHeads:
    """k - 1 heads: with the model's own prediction they write k tokens at most."""
    heads = self.heads
    words = self.open().model.vocab_size if heads.own_projection or heads.markov else None
    return MedusaHeads(
      depth=k - 1,
      d_model=self.model.d_model,
      vocab_size=words if heads.own_projection else None,
      layers=heads.layers,
      rooted=heads.rooted,
      markov=heads.markov,
      words=words if heads.markov else None,
    )

  def fresh_heads(self, heads: MedusaHeads, model: Model, trunk: Params) -> Params:
    return heads.start(model, trunk)

  @property
  def asked(self) -> dict[str, Any]:
    """What cells must agree on."""
    names = ('split', 'timed', 'max_len', 'repeats', 'prompt', 'calibrated', 'most')
    return {'text': self.text, **{name: getattr(self.measure, name) for name in names}}
