"""What the translation experiments share: the settings of a page of the paper, and its text."""

import dataclasses

from experiments.lab.decoding import DistillConfig, rule_of, tree_nodes
from experiments.lab.distillation import Distilling
from experiments.lab.settings import DISTILLED, Experiment, Regime, RunConfig, at_least, each_once
from experiments.lab.text import OnModelText, TextConfig
from fastdec import folders
from fastdec.errors import UserError
from fastdec.models.api import Model
from fastdec.models.fconv import FConvConfig
from fastdec.models.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True)
class TableConfig:
  """Which cells, measured on what; fields as in `configs/wmt14.py`."""

  ks: tuple[int, ...]
  regimes: tuple[Regime, ...]
  rules: tuple[str, ...]
  split: str
  sentences: int
  max_len: int
  rows: int
  timed: int
  repeats: int
  one_run: bool

  def __post_init__(self) -> None:
    each_once('table', ks=self.ks, regimes=self.regimes, rules=self.rules)
    # k = 1, the base, is always there
    at_least(2, 'table', **{f'ks[{i}]': k for i, k in enumerate(self.ks)})
    at_least(
      1, 'table', max_len=self.max_len, rows=self.rows, timed=self.timed, repeats=self.repeats
    )
    at_least(0, 'table', sentences=self.sentences)
    for rule in self.rules:
      if tree_nodes(rule) is None:
        rule_of(rule)


@dataclasses.dataclass(frozen=True)
class TranslationExperiment(OnModelText, Distilling, Experiment):
  """A page of the paper about translation at one scale."""

  data: TextConfig
  model: TransformerConfig | FConvConfig  # without its vocabulary, which the text gives
  retrain: RunConfig  # of the base, on distilled text
  distill: DistillConfig
  table: TableConfig

  runs = ('train', 'retrain', 'freeze', 'finetune')

  def __post_init__(self) -> None:
    super().__post_init__()
    limit = self.model.max_positions
    for name, length in (
      ('data.row_length', self.data.row_length),
      ('table.max_len', self.table.max_len),
    ):
      if length > limit:
        raise UserError(
          f'config.{name}={length} is not possible: model.max_positions={limit} is the most'
        )

  def run(self, k: int, regime: str) -> RunConfig:
    return self.retrain if k == 1 and regime in DISTILLED else super().run(k, regime)

  def model_over(self, vocab_size: int) -> Model:
    return folders.model_of(dataclasses.replace(self.model, vocab_size=vocab_size))
