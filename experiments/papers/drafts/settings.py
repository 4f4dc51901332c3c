"""What `configs/drafts.py` means: heads or a draft network for a finished base, and how it is
trained."""

import dataclasses
import pathlib
from typing import Any, Literal, Self

import numpy as np

from configs.common import locked, to_dataclass
from experiments.lab.captions import Captions, CaptionTraining
from experiments.lab.settings import TUNED, HeadsConfig, HeadsTraining, RunConfig, at_least
from experiments.lab.text import OnModelText, Text, TextConfig
from fastdec.errors import UserError
from fastdec.heads.block import MARKOV, BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.draft import DraftNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.tower import LayersConfig
from fastdec.models.api import Model
from fastdec.models.lm import LM
from fastdec.models.stacks import StackConfig
from fastdec.models.taps import check_taps
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.sharding import MeshConfig
from fastdec.training.drafts.losses import DraftLoss
from fastdec.training.drafts.start import INITS, layers_like

MODELS = {'translation': Transformer, 'lm': LM}  # what a base is


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftConfig:
  """What both kinds of draft networks say; fields as in `configs/drafts.py`."""

  layers: int
  taps: tuple[int, ...]
  words: int
  dropout: float
  init: str
  entry: str

  def __post_init__(self) -> None:
    at_least(1, 'draft', layers=self.layers)
    at_least(0, 'draft', words=self.words)
    if not 0 <= self.dropout < 1:
      raise UserError(
        f'config.draft.dropout={self.dropout} is not possible: give 0 for none, or below 1'
      )

  @property
  def depth(self) -> int:
    """How many guesses it is looked at and calibrated for."""
    raise NotImplementedError

  @property
  def begins_trained(self) -> bool:
    """Whether `init` names a trained draft."""
    return self.init not in INITS

  def check_init(self) -> None:
    """Raises UserError where there is nothing to begin at."""
    if self.begins_trained and not (self.init and pathlib.Path(self.init).is_dir()):
      choices = ' or '.join(INITS)
      raise UserError(
        f'config.draft.init={self.init!r} is no folder: give one with a trained draft, or {choices}'
      )

  def network(self, model: Model) -> DraftNetwork:
    """The network for a base.

    Raises:
      UserError: the base does not have these layers, or is no model that drafts are made for.
    """
    raise NotImplementedError

  def _sizes(self, model: Any) -> dict[str, Any]:
    check_taps(self.taps, model.layers)
    if self.words > model.vocab_size:
      raise UserError(
        f'config.draft.words={self.words} is not possible: the base has {model.vocab_size} words'
      )
    reads = {'taps': self.taps, 'fuses': True, 'norms_taps': True} if self.taps else {}
    sizes = {'vocab_size': model.vocab_size, 'd_target': model.d_model, 'words': self.words or None}
    return {'layers': self._layers(model), 'entry': self.entry, **reads, **sizes}

  def _layers(self, model: Model) -> LayersConfig:
    """Those of the base, with the draft's own dropout."""
    layers = layers_like(model, self.layers)
    if isinstance(layers, StackConfig):
      return dataclasses.replace(
        layers, dropout=self.dropout, attention_dropout=0.0, activation_dropout=0.0
      )
    return dataclasses.replace(layers, dropout=self.dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig(DraftConfig):
  """An autoregressive draft network; fields as in `configs/drafts.py`."""

  guesses: int

  def __post_init__(self) -> None:
    super().__post_init__()
    at_least(1, 'draft', guesses=self.guesses)

  @property
  def depth(self) -> int:
    return self.guesses

  def network(self, model: Model) -> EagleNetwork:
    return EagleNetwork(**self._sizes(model))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig(DraftConfig):
  """A one-pass draft network; fields as in `configs/drafts.py`."""

  k: int
  markov: int
  markov_kind: str
  candidates: int

  def __post_init__(self) -> None:
    super().__post_init__()
    at_least(2, 'draft', k=self.k)
    at_least(0, 'draft', markov=self.markov, candidates=self.candidates)
    if self.markov_kind not in MARKOV:
      given = f'config.draft.markov_kind={self.markov_kind!r}'
      raise UserError(f'{given} is unknown: choose one of {", ".join(MARKOV)}')

  @property
  def depth(self) -> int:
    return self.k - 1

  def network(self, model: Model) -> BlockNetwork:
    same = {name: getattr(self, name) for name in ('k', 'markov', 'markov_kind')}
    return BlockNetwork(**self._sizes(model), candidates=self.candidates or None, **same)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationText(OnModelText):
  """Parallel text for a draft on a translator."""

  model: TransformerConfig

  def model_over(self, vocab_size: int) -> Transformer:
    return Transformer(dataclasses.replace(self.model, vocab_size=vocab_size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionText(OnModelText, CaptionTraining):
  """Sentences for a draft on a language model."""

  def open(self) -> Captions:
    return Captions.over(self)


class OnBase(HeadsTraining):
  """Stern's heads on a finished base, trained as draft networks are."""

  heads: HeadsConfig

  def run(self, k: int, regime: str) -> RunConfig:
    return self.finetune if regime in TUNED else self.freeze

  def heads_for(self, k: int) -> BlockwiseHeads:
    heads: Any = self.heads
    words = self.open().model.vocab_size if heads.markov else None
    names = ('d_ff', 'layout', 'first', 'dropout', 'rooted', 'markov')
    same = {name: getattr(heads, name) for name in names}
    return BlockwiseHeads(k=k, d_model=self.model.d_model, words=words, **same)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationHeads(TranslationText, OnBase):
  heads: HeadsConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionHeads(CaptionText, OnBase):
  heads: HeadsConfig


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The training of one drafter on a finished base; fields as in `configs/drafts.py`. Subclasses
  say of which kind."""

  task: Literal['translation', 'lm']
  kind: Literal['heads', 'eagle', 'block']
  scale: str
  regime: Literal['regular', 'both']
  seed: int
  mesh: MeshConfig
  base: str
  data: TextConfig
  train: RunConfig
  finetune: RunConfig

  @classmethod
  def of(cls, config: Any) -> Self:
    """From a locked ConfigDict; what cannot be trained is a UserError, before any work."""
    return to_dataclass(cls, config)

  @property
  def run(self) -> RunConfig:
    """How it is trained."""
    return self.finetune if self.regime == 'both' else self.train

  def text(self, model: Model) -> OnModelText:
    """What is trained on, for a drafter on this model.

    Raises:
      UserError: the model is of another kind than the task means, or what `Training` says.
    """
    same: Any = {'seed': self.seed, 'mesh': self.mesh, 'train': self.run, 'data': self.data}
    kind: Any = TranslationText if self.task == 'translation' else CaptionText
    return kind(model=self._sizes(model), **same)

  def _sizes(self, model: Any) -> Any:
    wanted = MODELS[self.task]
    if not isinstance(model, wanted):
      given = f'task={self.task} means a base that is a {wanted.__name__}, and {self.base} holds a'
      raise UserError(
        f'{given} {type(model).__name__}: give another base, or the task that it was trained for'
      )
    return model.config


@dataclasses.dataclass(frozen=True)
class HeadsExperiment(Experiment):
  """Heads: block size k, and what `configs/wmt14.py` says of heads."""

  k: int
  heads: HeadsConfig

  def __post_init__(self) -> None:
    if self.k < 2:
      raise UserError(
        f'config.k={self.k} is not possible: give 2 or more, the root and k - 1 guesses'
      )

  def training(self, model: Model) -> TranslationHeads | CaptionHeads:
    """What `Run` trains on this model; errors as of `text`."""
    same: Any = {
      name: getattr(self, name) for name in ('seed', 'mesh', 'train', 'finetune', 'data', 'heads')
    }
    kind: Any = TranslationHeads if self.task == 'translation' else CaptionHeads
    return kind(model=self._sizes(model), freeze=self.train, **same)


@dataclasses.dataclass(frozen=True)
class DraftExperiment(Experiment):
  """A draft network: what both kinds have."""

  loss: DraftLoss
  p1_share: float
  draft: DraftConfig

  def __post_init__(self) -> None:
    if not 0 < self.p1_share < 1:
      raise UserError(
        f'config.p1_share={self.p1_share} is not possible: give a share above 0 and below 1'
      )


@dataclasses.dataclass(frozen=True)
class EagleExperiment(DraftExperiment):
  draft: EagleConfig


@dataclasses.dataclass(frozen=True)
class BlockExperiment(DraftExperiment):
  draft: BlockConfig


KINDS = {'heads': HeadsExperiment, 'eagle': EagleExperiment, 'block': BlockExperiment}


def experiment_of(config: Any) -> HeadsExperiment | DraftExperiment:
  """The experiment of a locked ConfigDict, by its `kind`; mistakes in it are UserErrors, its
  `table` aside."""
  return KINDS[config.kind].of(locked(**{name: config[name] for name in config if name != 'table'}))


def words_of(text: Text) -> np.ndarray:
  """The tokens of the training text, one behind the other: what a draft vocabulary is counted
  on."""
  return text.tokens('train', text.config.row_length).target.tokens
