"""What `experiments.drafts` means: all kinds of drafters on one base, how each is trained, and what
is measured."""

import dataclasses
import pathlib
from typing import Any, Literal

from configs.common import to_dataclass
from experiments.lab.decoding import DistillConfig
from experiments.lab.distillation import Distilling
from experiments.lab.settings import HeadsConfig, RunConfig, at_least, each_once
from experiments.lab.text import OnText, TextConfig
from experiments.papers.drafts.cells import CHAINS, DRAFTERS, NETWORKS
from experiments.papers.drafts.settings import (
  BlockConfig,
  BlockExperiment,
  CaptionHeads,
  CaptionText,
  DraftExperiment,
  EagleConfig,
  EagleExperiment,
  TranslationHeads,
  TranslationText,
  experiment_of,
)
from fastdec.errors import UserError
from fastdec.models.lm import LMConfig
from fastdec.models.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True)
class TableConfig:
  """What all tables have; fields as in `configs/drafts.py`."""

  base_run: RunConfig
  small_run: RunConfig
  heads: HeadsConfig
  eagle: EagleConfig
  block: BlockConfig
  distill: DistillConfig
  rows: tuple[str, ...]
  nodes: tuple[int, ...]
  gamma: int
  short: tuple[int, ...]
  lookup: int
  batches: tuple[int, ...]
  temperatures: tuple[float, ...]
  prompt: int
  split: Literal['dev', 'test']
  sentences: int
  timed: int
  calibrated: int
  max_len: int
  repeats: int

  def __post_init__(self) -> None:
    each_once(
      'table',
      rows=self.rows,
      nodes=self.nodes,
      batches=self.batches,
      temperatures=self.temperatures,
    )
    for row in self.rows:
      if row not in DRAFTERS:
        raise UserError(
          f'config.table.rows={self.rows} name {row!r}: known are {", ".join(DRAFTERS)}'
        )
    at_least(
      self.gamma + 1, 'table', **{f'nodes[{i}]': value for i, value in enumerate(self.nodes)}
    )
    at_least(1, 'table', **{f'short[{i}]': value for i, value in enumerate(self.short)})
    if len(set(self.short)) < len(self.short) or max(self.short, default=0) >= self.gamma:
      given = f'config.table.short={self.short} is not possible: config.table.gamma={self.gamma}'
      raise UserError(f'{given} is the longest chain, so give fewer guesses, each once')
    at_least(1, 'table', **{f'batches[{i}]': value for i, value in enumerate(self.batches)})
    at_least(
      1,
      'table',
      **{n: getattr(self, n) for n in ('gamma', 'lookup', 'prompt', 'timed', 'calibrated')},
    )
    at_least(1, 'table', repeats=self.repeats)
    at_least(2, 'table', max_len=self.max_len)
    at_least(0, 'table', sentences=self.sentences)
    if min(self.temperatures) < 0:
      raise UserError(
        f'config.table.temperatures={self.temperatures} is not possible: give 0, or 1e-6 to 1e6'
      )
    if self.distill.beam != 1 or self.distill.samples:
      raise UserError(
        'config.table.distill writes what the base itself does: give beam=1, and samples=0'
      )
    for row in self.rows:
      if row not in NETWORKS:
        continue
      name = 'eagle' if row == 'eagle' else 'block'
      depth = getattr(self, name).depth
      if self.gamma > depth:
        given = (
          f'config.table.gamma={self.gamma} is not possible: config.table.{name} makes'
          f' {depth} guesses'
        )
        raise UserError(f'{given}, so give as many or fewer')


@dataclasses.dataclass(frozen=True)
class TranslationTable(TableConfig):
  base: TransformerConfig
  small: TransformerConfig


@dataclasses.dataclass(frozen=True)
class CaptionTable(TableConfig):
  base: LMConfig
  small: LMConfig


TABLES = {'translation': TranslationTable, 'lm': CaptionTable}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writing(TranslationText, Distilling):
  """How a translator writes its own text."""


@dataclasses.dataclass(frozen=True)
class SideBySide:
  """The whole page.

  Attributes:
    shared: a draft's experiment, whose data, training, loss and seed are those of all drafts.
    table: the base, what stands beside the drafts, and what is measured.
  """

  shared: DraftExperiment
  table: TranslationTable | CaptionTable

  @classmethod
  def of(cls, config: Any) -> 'SideBySide':
    """From a locked ConfigDict; what cannot be trained or measured is a UserError, before any
    work."""
    if config.regime != 'regular':
      raise UserError(
        f'regime={config.regime} trains another base for each draft: the table is for'
        ' regime=regular'
      )
    shared = experiment_of(config)
    if not isinstance(shared, DraftExperiment):
      raise UserError(
        f'kind={config.kind} is one row of the table, which has all kinds: leave out the kind'
      )
    return cls(shared, to_dataclass(TABLES[config.task], config.table, 'config.table'))

  def __post_init__(self) -> None:
    self.base()
    self.small()
    self.table.eagle.check_init()
    self.table.block.check_init()
    limit = getattr(self.table.base, 'max_positions', None)
    if limit is not None and self.table.max_len > limit:
      raise UserError(
        f'config.table.max_len={self.table.max_len} is not possible:'
        f' max_positions={limit} is the most'
      )

  @property
  def task(self) -> str:
    return self.shared.task

  @property
  def data(self) -> TextConfig:
    """The text as people wrote it."""
    return dataclasses.replace(self.shared.data, own='', distilled='')

  def base(self, model: Any = None) -> OnText:
    """The training of the base; or its text, where the model is another one."""
    return self._of_people(model or self.table.base, self.table.base_run)

  def small(self) -> OnText:
    """The training of the draft model."""
    return self._of_people(self.table.small, self.table.small_run)

  def writing(self, model: Any) -> Writing:
    """How a base, whose settings these are, writes its own text."""
    return Writing(
      model=model, distill=self.table.distill, **self._same(self.table.base_run, self.data)
    )

  def heads(self, row: str, model: Any, own: str) -> TranslationHeads | CaptionHeads:
    """The training of heads on a base, on its own text in a folder."""
    markov = self.table.block.markov if row == 'markov' else 0
    heads = dataclasses.replace(self.table.heads, rooted=row != 'heads', markov=markov)
    same: dict[str, Any] = {
      **self._same(self.shared.train, dataclasses.replace(self.shared.data, own=own)),
      'freeze': self.shared.train,
      'finetune': self.shared.finetune,
    }
    kind = TranslationHeads if self.task == 'translation' else CaptionHeads
    return kind(model=model, heads=heads, **same)

  def draft(self, row: str, base: pathlib.Path, own: str) -> DraftExperiment:
    """The experiment of a draft network, as `experiments.train` has it."""
    names = [field.name for field in dataclasses.fields(DraftExperiment)]
    same = {name: getattr(self.shared, name) for name in names if name not in ('kind', 'draft')}
    same |= {'base': str(base), 'data': dataclasses.replace(self.shared.data, own=own)}
    if row == 'eagle':
      return EagleExperiment(kind='eagle', draft=self.table.eagle, **same)
    layers = 2 if row == 'block-2' else self.table.block.layers
    return BlockExperiment(
      kind='block', draft=dataclasses.replace(self.table.block, layers=layers), **same
    )

  @property
  def trees(self) -> tuple[str, ...]:
    """The rows that draft trees too."""
    return tuple(row for row in self.table.rows if row not in CHAINS)

  @property
  def asked(self) -> dict[str, Any]:
    """What cells must agree on."""
    names = ('split', 'sentences', 'timed', 'max_len', 'repeats', 'calibrated', 'gamma', 'lookup')
    return {'task': self.task, **{name: getattr(self.table, name) for name in names}}

  def _of_people(self, model: Any, run: RunConfig) -> OnText:
    kind = TranslationText if self.task == 'translation' else CaptionText
    return kind(model=model, **self._same(run, self.data))

  def _same(self, run: RunConfig, data: TextConfig) -> dict[str, Any]:
    return {'seed': self.shared.seed, 'mesh': self.shared.mesh, 'train': run, 'data': data}
