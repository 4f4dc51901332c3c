"""What the translation experiments share: the settings of a page of the paper, and its text."""

import dataclasses
import hashlib
import pathlib
from typing import Any

from configs.common import to_dataclass
from fastdec.data.packing import TokenPairs, packed_batches, tokenise
from fastdec.data.text import Pair, TextData, load_pairs
from fastdec.data.tokenizer import Tokenizer
from fastdec.errors import UserError
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.transformer import Transformer, TransformerConfig

DEV_BATCHES = 8  # of training size: what an evaluation during training looks at


@dataclasses.dataclass(frozen=True)
class TextConfig:
  """Parallel text and its cutting into batches; fields as in `configs/wmt14.py`."""

  kind: str
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

  @property
  def data(self) -> TextData:
    """Where the lines are."""
    if self.kind == 'embedded':
      return TextData('embedded', max_train=self.max_train or None)
    folder = pathlib.Path(self.folder)
    if not folder.is_dir():
      raise UserError(f'there is no folder {folder} with the text: name it by --config.data.folder=...')
    languages = (self.source, self.target)
    files = {
      split: tuple(str(folder / f'{getattr(self, split)}.{language}{self.suffix}') for language in languages)
      for split in ('train', 'dev', 'test')
    }
    return TextData('files', **files, max_train=self.max_train or None)


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


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  d_ff: int
  layout: str
  first: str


@dataclasses.dataclass(frozen=True)
class TableConfig:
  """Which cells, measured on what; fields as in `configs/wmt14.py`."""

  ks: tuple[int, ...]
  tunes: tuple[str, ...]
  rules: tuple[str, ...]
  split: str
  sentences: int
  max_len: int
  rows: int
  timed: int
  repeats: int


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A page of the paper at one scale."""

  scale: str
  k: int
  tune: str
  base: str
  seed: int
  data: TextConfig
  model: TransformerConfig  # but for its vocabulary, which the text gives
  train: RunConfig
  freeze: RunConfig
  finetune: RunConfig
  heads: HeadsConfig
  table: TableConfig

  @classmethod
  def of(cls, config: Any) -> 'Experiment':
    """From a locked ConfigDict; a wrong field or type is a UserError."""
    experiment = to_dataclass(cls, config)
    for k in (experiment.k, *experiment.table.ks):
      if k < 1:
        raise UserError(f'k={k} is not possible: give 1 for the base model, 2 or more for heads')
    return experiment

  def transformer(self, vocab_size: int) -> Transformer:
    """The model over so many pieces."""
    return Transformer(dataclasses.replace(self.model, vocab_size=vocab_size))

  def blockwise(self, k: int) -> BlockwiseHeads:
    return BlockwiseHeads(k=k, d_model=self.model.d_model, **dataclasses.asdict(self.heads))


@dataclasses.dataclass(frozen=True)
class Text:
  """Lines, tokenizer and ids of an experiment."""

  experiment: Experiment
  tokenizer: Tokenizer
  tokenizer_path: pathlib.Path

  @classmethod
  def of(cls, experiment: Experiment) -> 'Text':
    """Prepares the text and learns the pieces, where that has not been done; then reads them."""
    config = experiment.data
    cache = pathlib.Path(config.cache)
    pairs = load_pairs(config.data, 'train', cache)
    digest = hashlib.sha256(repr((config.vocab_size, pairs)).encode()).hexdigest()[:16]
    path = cache / f'tokenizer-{digest}.model'
    if path.exists():
      return cls(experiment, Tokenizer.load(path), path)
    lines = (line for pair in pairs for line in pair)
    return cls(experiment, Tokenizer.train(lines, path, config.vocab_size), path)

  def pairs(self, split: str) -> list[Pair]:
    config = self.experiment.data
    return load_pairs(config.data, split, config.cache)

  def tokens(self, split: str, max_length: int | None = None) -> TokenPairs:
    """Ids of a split, computed once."""
    path = pathlib.Path(self.experiment.data.cache) / f'{self.tokenizer_path.stem}-{split}.npz'
    return tokenise(self.pairs(split), self.tokenizer, max_length, path)

  def train_batches(self) -> Any:
    """Endless packed batches, reshuffled every epoch."""
    return self._packed('train')

  def dev_batches(self) -> list[Any]:
    """Packed batches of the dev set, at most `DEV_BATCHES`, none of them twice."""
    config = self.experiment.data
    full = int(self.tokens('dev', config.row_length).lengths.max(1).sum()) // (config.rows * config.row_length)
    packed = self._packed('dev')
    return [packed[i] for i in range(min(max(full, 1), DEV_BATCHES))]

  def _packed(self, split: str) -> Any:
    config = self.experiment.data
    tokens = self.tokens(split, config.row_length)
    return packed_batches(tokens, config.rows, config.row_length, self.experiment.seed)
