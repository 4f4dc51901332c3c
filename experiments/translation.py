"""What the translation experiments share: the settings of a page of the paper, its text, and its training runs."""

import dataclasses
import hashlib
import pathlib
from typing import Any

import jax

from configs.common import to_dataclass
from fastdec import folders
from fastdec.data.packing import TokenPairs, packed_batches, tokenise
from fastdec.data.text import Pair, TextData, load_pairs
from fastdec.data.tokenizer import Tokenizer
from fastdec.errors import UserError
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.training.checkpoint import average_checkpoints, claim_workdir
from fastdec.training.loop import LoopConfig, train
from fastdec.training.losses import dev_loss, head_accuracy
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import Task, base_task, finetuned_heads_task, frozen_heads_task

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


def train_base(experiment: Experiment, workdir: pathlib.Path, budget: float | None = None) -> bool:
  """Trains the base model, or goes on; True when it is finished and `workdir/model` is written."""
  text = Text.of(experiment)
  model = experiment.transformer(text.tokenizer.vocab_size)
  task = base_task(model, experiment.train.label_smoothing)
  dev = text.dev_batches()
  evaluate = lambda params: dev_loss(model, params, dev)
  params = _run(experiment, text, task, {}, experiment.train, evaluate, workdir, budget)
  if params is not None:
    folders.save(workdir / 'model', model, params, text.tokenizer_path)
  return params is not None


def train_heads(
  experiment: Experiment,
  k: int,
  tune: str,
  base: str | pathlib.Path,
  workdir: pathlib.Path,
  budget: float | None = None,
) -> bool:
  """Trains heads for block size k on the base model, or goes on; True when `workdir/model` is written.

  Args:
    experiment: the settings.
    k: 2 or more.
    tune: 'freeze' leaves the trunk as it is (the paper's 'regular'), 'finetune' trains it on.
    base: the workdir of the finished base run.
    workdir: of this run.
    budget: seconds after which to stop, to be continued.
  """
  model, trunk = folders.load(base)
  text = Text.of(experiment)
  if model != experiment.transformer(text.tokenizer.vocab_size):
    raise UserError(f'{base} holds another model than this config means: give the base run of the same config')
  heads = experiment.blockwise(k)
  config: RunConfig = getattr(experiment, tune)
  make_task = frozen_heads_task if tune == 'freeze' else finetuned_heads_task
  split = (lambda params: (trunk, params)) if tune == 'freeze' else (lambda params: (params['model'], params['heads']))
  dev = text.dev_batches()

  def evaluate(params: Any) -> dict[str, float]:
    accuracy = head_accuracy(model, heads, *split(params), dev)
    return {f'accuracy of head {i}': value for i, value in enumerate(accuracy, start=1)}

  task = make_task(model, heads, trunk, config.label_smoothing)
  params = _run(experiment, text, task, {'heads': heads, 'tune': tune}, config, evaluate, workdir, budget)
  if params is not None:
    model_params, head_params = split(params)
    folders.save(workdir / 'model', model, model_params, text.tokenizer_path, (heads, head_params))
  return params is not None


def train_run(
  experiment: Experiment, k: int, tune: str, base: pathlib.Path, workdir: pathlib.Path, budget: float | None = None
) -> bool:
  """`train_base` for k = 1, else `train_heads`."""
  if k == 1:
    return train_base(experiment, workdir, budget)
  return train_heads(experiment, k, tune, base, workdir, budget)


def is_finished(workdir: pathlib.Path) -> bool:
  """True where a training run has left its model."""
  return (workdir / 'model' / 'config.json').is_file()


def _run(
  experiment: Experiment,
  text: Text,
  task: Task,
  what: dict[str, Any],
  config: RunConfig,
  evaluate: Any,
  workdir: pathlib.Path,
  budget: float | None,
) -> Any:
  """The averaged parameters of a finished run, or None where the budget ended first."""
  asked = {'seed': experiment.seed, 'data': experiment.data, 'model': experiment.model, **what, 'training': config}
  plain = lambda x: dataclasses.asdict(x) if dataclasses.is_dataclass(x) else x
  claim_workdir(workdir, {name: plain(value) for name, value in asked.items()})
  optimizer = OptimizerConfig(
    d_model=experiment.model.d_model, schedule=config.schedule, constant=config.constant, warmup=config.warmup
  )
  loop = LoopConfig(
    config.steps,
    log_every=min(50, config.every),
    eval_every=config.every,
    checkpoint_every=config.every,
    keep=config.average,
  )
  key = jax.random.key(experiment.seed)
  trained = train(task, text.train_batches(), optimizer, loop, workdir, key, evaluate, budget)
  return average_checkpoints(workdir, config.average) if trained.is_finished else None
