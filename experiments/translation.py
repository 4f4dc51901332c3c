"""What the translation experiments share: the settings of a page of the paper, and its text."""

import dataclasses
import pathlib
from typing import Any, Literal

from jax.sharding import Mesh

from configs.common import to_dataclass
from experiments.decoding import DistillConfig, rule_of
from fastdec.data.caching import tokenizer_of, tokens_of
from fastdec.data.lines import Pair
from fastdec.data.packing import packed_batches
from fastdec.data.text import TextData, load_pairs, open_text
from fastdec.data.tokenizer import Tokenizer
from fastdec.data.tokens import TokenPairs
from fastdec.errors import UserError
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.sharding import HEADS, TRANSFORMER, MeshConfig, Table, check_rows, make_mesh
from fastdec.training.loop import LoopConfig
from fastdec.training.optimizer import OptimizerConfig

DEV_BATCHES = 8  # of training size: what an evaluation during training looks at
Regime = Literal['regular', 'distil', 'finetune', 'both']
DISTILLED = ('distil', 'both')  # regimes that train on a teacher's translations
TUNED = ('finetune', 'both')  # regimes whose heads train together with the base


@dataclasses.dataclass(frozen=True)
class TextConfig:
  """Parallel text and its cutting into batches; fields as in `configs/wmt14.py`."""

  kind: Literal['embedded', 'files', 'archives', 'tfds']
  folder: str
  train: str
  dev: str
  test: str
  suffix: str
  source: str
  target: str
  vocab_size: int
  rows: int
  row_length: int
  max_train: int
  cache: str
  distilled: str = ''

  def __post_init__(self) -> None:
    _at_least(1, 'data', vocab_size=self.vocab_size, rows=self.rows, row_length=self.row_length)
    _at_least(0, 'data', max_train=self.max_train)

  @property
  def data(self) -> TextData:
    """Where the lines are, those of training as people wrote them."""
    max_train = self.max_train or None
    if self.kind == 'embedded':
      return TextData('embedded', max_train=max_train)
    if self.kind == 'tfds':
      return TextData('tfds', folder=self.folder, source=self.source, target=self.target, max_train=max_train)
    folder = pathlib.Path(self.folder)
    if not self.folder or not folder.is_dir():
      raise UserError(f"there is no folder '{self.folder}' with the text: name it by --config.data.folder=...")
    if self.kind == 'archives':
      return TextData('archives', folder=self.folder, source=self.source, target=self.target, max_train=max_train)
    files = {split: self._files(folder / getattr(self, split), self.suffix) for split in ('train', 'dev', 'test')}
    return TextData('files', **files, max_train=max_train)

  @property
  def training(self) -> TextData:
    """Where the lines to train on are: those of `data`, or a teacher's (experiments.distill)."""
    if not self.distilled:
      return self.data
    if not pathlib.Path(self.distilled).is_dir():
      remedy = 'run experiments.distill, or leave --config.data.distilled empty'
      raise UserError(f"there is no folder '{self.distilled}' with distilled text: {remedy}")
    return TextData('files', train=self._files(pathlib.Path(self.distilled) / 'train'))

  def _files(self, stem: pathlib.Path, suffix: str = '') -> tuple[str, ...]:
    return tuple(f'{stem}.{language}{suffix}' for language in (self.source, self.target))


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """One training run; fields as in `configs/wmt14.py`."""

  steps: int
  schedule: str
  constant: float
  warmup: int
  label_smoothing: float
  every: int
  average: int
  rows: int = 0
  accumulate: int = 1

  def loop(self) -> LoopConfig:
    """How long, and how often what."""
    return LoopConfig(
      self.steps,
      log_every=min(50, self.every),
      eval_every=self.every,
      checkpoint_every=self.every,
      keep=self.average,
      accumulate=self.accumulate,
    )

  def optimizer(self, d_model: int) -> OptimizerConfig:
    """The rate for a model of this width."""
    return OptimizerConfig(d_model=d_model, schedule=self.schedule, constant=self.constant, warmup=self.warmup)


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """The heads of every k; fields as in `configs/wmt14.py`."""

  d_ff: int
  layout: str
  first: str
  p1_share: float
  draw: Literal['one', 'all']
  decay: float

  def __post_init__(self) -> None:
    _at_least(1, 'heads', d_ff=self.d_ff)
    if not 0 < self.decay <= 1:
      raise UserError(f'config.heads.decay={self.decay} is not possible: give 1 for equal weights, or above 0')
    if not 0 <= self.p1_share < 1:
      raise UserError(f'config.heads.p1_share={self.p1_share} is not possible: give 0 for equal shares, or below 1')


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

  def __post_init__(self) -> None:
    for name in ('ks', 'regimes', 'rules'):
      if not getattr(self, name) or len(set(getattr(self, name))) < len(getattr(self, name)):
        raise UserError(f'config.table.{name}={getattr(self, name)} is not possible: give one or more, each once')
    _at_least(2, 'table', **{f'ks[{i}]': k for i, k in enumerate(self.ks)})  # k = 1, the base, is always there
    _at_least(1, 'table', max_len=self.max_len, rows=self.rows, timed=self.timed, repeats=self.repeats)
    _at_least(0, 'table', sentences=self.sentences)
    for rule in self.rules:
      rule_of(rule)


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A page of the paper at one scale."""

  scale: str
  k: int
  regime: Regime
  base: str
  seed: int
  mesh: MeshConfig
  data: TextConfig
  model: TransformerConfig  # but for its vocabulary, which the text gives
  train: RunConfig  # of the base and the teacher
  retrain: RunConfig  # of the base, on distilled text
  freeze: RunConfig  # of heads on a frozen base
  finetune: RunConfig  # of heads and base together
  heads: HeadsConfig
  distill: DistillConfig
  table: TableConfig

  @classmethod
  def of(cls, config: Any) -> 'Experiment':
    """From a locked ConfigDict; what cannot be trained or measured is a UserError, before any work."""
    return to_dataclass(cls, config)

  def __post_init__(self) -> None:
    if self.k < 1:
      raise UserError(f'k={self.k} is not possible: give 1 for the base model, 2 or more for heads')
    if not 0 <= self.seed < 2**32:
      raise UserError(f'seed={self.seed} is not possible: give a whole number from 0 to {2**32 - 1}')
    for name in ('train', 'retrain', 'freeze', 'finetune'):
      run: RunConfig = getattr(self, name)
      counts = ('steps', 'warmup', 'every', 'average', 'accumulate')
      _at_least(1, name, **{count: getattr(run, count) for count in counts})
      _at_least(0, name, rows=run.rows)
      check_rows(run.rows or self.data.rows, self.mesh.data, run.accumulate)
      run.optimizer(self.model.d_model)
    self.blockwise(2)
    limit = self.model.max_positions
    for name, length in (('data.row_length', self.data.row_length), ('table.max_len', self.table.max_len)):
      if length > limit:
        raise UserError(f'config.{name}={length} is not possible: model.max_positions={limit} is the most')

  def run(self, k: int, regime: str) -> RunConfig:
    """The settings of the base's training, or of the heads'."""
    if k == 1:
      return self.retrain if regime in DISTILLED else self.train
    return self.finetune if regime in TUNED else self.freeze

  def transformer(self, vocab_size: int) -> Transformer:
    """The model over so many pieces."""
    return Transformer(dataclasses.replace(self.model, vocab_size=vocab_size))

  @property
  def devices(self) -> Mesh | None:
    """The mesh; None where it is one device, which needs none."""
    return None if self.mesh == MeshConfig() else make_mesh(self.mesh)

  def table_of(self, k: int) -> Table:
    """How the parameters of a base model, or of heads with it, lie on the mesh."""
    return TRANSFORMER if k == 1 else (*TRANSFORMER, *HEADS[self.heads.layout])

  def blockwise(self, k: int) -> BlockwiseHeads:
    heads = self.heads
    return BlockwiseHeads(k=k, d_model=self.model.d_model, d_ff=heads.d_ff, layout=heads.layout, first=heads.first)


@dataclasses.dataclass(frozen=True)
class Text:
  """Lines, tokenizer and ids of an experiment."""

  experiment: Experiment
  tokenizer: Tokenizer
  tokenizer_path: pathlib.Path

  @classmethod
  def of(cls, experiment: Experiment) -> 'Text':
    """Prepares the text and learns the pieces, where that has not been done; then opens them."""
    config = experiment.data
    text = open_text(config.data, config.cache)
    if config.distilled:
      open_text(config.training, config.cache)  # a mistake shows before the tokenizer is learnt
    return cls(experiment, *tokenizer_of(text, config.vocab_size, config.cache))

  def pairs(self, split: str) -> list[Pair]:
    """All lines of a split, in memory."""
    config = self.experiment.data
    return load_pairs(config.training if split == 'train' else config.data, split, config.cache)

  def tokens(self, split: str, max_length: int | None = None) -> TokenPairs:
    """Ids of a split, computed once."""
    config = self.experiment.data
    text = open_text(config.training if split == 'train' else config.data, config.cache)
    return tokens_of(text, split, self.tokenizer, max_length, config.cache)

  def train_batches(self, rows: int = 0) -> Any:
    """Endless packed batches, reshuffled every epoch."""
    return self._packed('train', rows or self.experiment.data.rows)

  def dev_batches(self) -> list[Any]:
    """Packed batches of the dev set, at most `DEV_BATCHES`, none of them twice."""
    config = self.experiment.data
    full = int(self.tokens('dev', config.row_length).lengths.max(1).sum()) // (config.rows * config.row_length)
    packed = self._packed('dev', config.rows)
    return [packed[i] for i in range(min(max(full, 1), DEV_BATCHES))]

  def _packed(self, split: str, rows: int) -> Any:
    config = self.experiment.data
    tokens = self.tokens(split, config.row_length)
    return packed_batches(tokens, rows, config.row_length, self.experiment.seed)


def _at_least(least: int, part: str, **values: int) -> None:
  for name, value in values.items():
    if value < least:
      raise UserError(f'config.{part}.{name}={value} is not possible: give {least} or more')
