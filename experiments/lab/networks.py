"""Drafters on a finished base, as stages: a draft network, and one drafter alone.

  eagle = stage(root, 'eagle', networks.network, base=base, draft=EagleConfig(), loss=..., ...)

The result is the stage's draft/ (`load_draft` takes the stage itself). `alone` fills a folder that
the user names: configs/drafts.py, with a kind, for experiments.train.
"""

import dataclasses
import pathlib
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from experiments.lab import train
from experiments.lab.text import TextConfig
from experiments.lab.train import HeadsConfig, Seed, Several, Tokens, Zero, seed_of
from fastdec import folders
from fastdec.errors import UserError
from fastdec.fields import Between, Layers
from fastdec.folders.drafts import draft_content, load_draft, save_draft
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import DraftNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.shortlist import most_frequent
from fastdec.heads.transformed import Transformed
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.api import Params
from fastdec.models.lm import LM
from fastdec.models.stacks import StackConfig
from fastdec.models.taps import check_taps
from fastdec.models.transformer import Transformer
from fastdec.struct import Bound
from fastdec.training.drafts.calibration import warmth_of
from fastdec.training.drafts.losses import DraftLoss, draft_accuracy
from fastdec.training.drafts.start import INITS, begin, layers_like
from fastdec.training.drafts.tasks import finetuned_draft_task, frozen_draft_task, split
from fastdec.training.run import RunConfig, carry_out
from fastdec.training.stage import in_place

MODELS = {'translation': Transformer, 'lm': LM}  # bases
SAMPLE = 16  # batches of the training text, on which a network is evaluated


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
  """A draft network: what both kinds have (fastdec/heads/draft.py)."""

  layers: Layers = 1  # of the base's kind and sizes
  taps: tuple[int, ...] = ()  # layers of the base whose states are read; (): its last state
  words: Zero = 0  # of a draft vocabulary, the most frequent ones of the training text; 0: all
  dropout: Annotated[float, Between(0, 0.99)] = 0.0
  # 'target': the layers begin as the base's last ones; or 'fresh'; or the folder of a trained draft
  init: str = 'target'
  entry: str = 'joined'  # eagle: or 'beside' (EAGLE-3)

  def __post_init__(self) -> None:
    if self.begins_trained and not (self.init and pathlib.Path(self.init).is_dir()):
      raise UserError(
        f'config.draft.init={self.init!r} is no folder: give one with a trained draft, or'
        f' {" or ".join(INITS)}'
      )

  @property
  def begins_trained(self) -> bool:
    """True if `init` names a trained draft."""
    return self.init not in INITS

  @property
  def key(self) -> dict[str, Any]:
    """Settings that count in a stage's name; a trained draft counts by its content."""
    settings = {'is': type(self).__name__, **dataclasses.asdict(self)}
    if self.begins_trained:
      settings['init'] = draft_content(self.init)
    return settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig(NetworkConfig):
  """A layer that reads the base's hidden state and the next token, and then its own."""

  guesses: Tokens = 7  # in a row, for which it is evaluated and calibrated

  @property
  def depth(self) -> int:
    """Guesses of a chain."""
    return self.guesses


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig(NetworkConfig):
  """The rows of a block in one pass, and a bias from the token before each."""

  k: Several = 8  # the root and 7 guesses
  markov: Zero = 64  # rank of the bias; 0: none
  markov_kind: Literal['vanilla', 'gated', 'rnn'] = 'vanilla'
  candidates: Zero = 0  # words of each row that the bias may reorder in decoding; 0: all

  @property
  def depth(self) -> int:
    """Guesses of a chain."""
    return self.k - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnBase:
  """The training of one drafter on a finished base."""

  data: TextConfig
  train: RunConfig  # on a base that stays as it is (regular)
  finetune: RunConfig  # of drafter and base together (both)
  base: str = ''  # the folder of the finished base
  task: Literal['translation', 'lm'] = 'translation'
  scale: str = ''
  regime: Literal['regular', 'both'] = 'regular'
  seed: Seed = 0
  mesh: MeshConfig = MeshConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsOnBase(OnBase):
  """Heads on a finished base."""

  heads: HeadsConfig
  k: Several = 8  # the root and k - 1 guesses
  kind: Literal['heads'] = 'heads'


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkOnBase(OnBase):
  """A draft network on a finished base."""

  draft: EagleConfig | BlockConfig
  loss: DraftLoss = DraftLoss(anchors=16)
  p1_share: Annotated[float, Between(1e-6, 0.999999)] = 0.5  # of the loss, for the base (both)
  kind: Literal['eagle', 'block'] = 'eagle'


def network(
  folder: pathlib.Path,
  *,
  base: pathlib.Path,
  draft: Any,
  loss: DraftLoss,
  run: RunConfig,
  data: TextConfig,
  seed: int,
  order: int,
  p1_share: float = 0.0,
  mesh: MeshConfig = MeshConfig(),
) -> None:
  """Trains a draft network on a finished base; then calibrates it.

  Args:
    folder: of the stage. It gets draft/, and model/ where the base learns too.
    base: of the finished base.
    draft: settings of the network.
    loss: of a place in the text.
    run, data, seed, mesh: see `train.base`.
    order: draws the order of the batches.
    p1_share: share of the loss that is the base's own; 0: it stays as it is.
  """
  # Open the text and the base.
  material = data.open()
  target = Bound(*train.trunk_of(base, material))
  dev = material.dev_batches(material.own_dev() if data.own else None)
  batches = material.train_batches(run.rows, order)
  samples = {'dev': dev, 'training': [batches[i] for i in range(SAMPLE)]}

  # Start the network, over the most frequent words if it has a draft vocabulary.
  module = network_of(draft, target.module)
  ids = None
  if module.words is not None:
    words = material.tokens('train', data.row_length).target.tokens
    ids = most_frequent(target.module, words, module.words)
  start = start_of(draft, module, target, jax.random.fold_in(jax.random.key(seed), 1), ids)
  fixed = split(start.params)[1]
  if p1_share:
    task = finetuned_draft_task(target, start, loss, p1_share, run.label_smoothing)
  else:
    task = frozen_draft_task(target, start, loss)

  def parts(params: Params) -> tuple[Bound, Bound]:
    """The network and the base, of what is trained."""
    learnt, of_target = params, target.params
    if p1_share:
      learnt, of_target = params['heads'], params['model']
    return Bound(module, learnt | fixed), Bound(target.module, of_target)

  def evaluate(params: Params) -> dict[str, float]:
    figures = {}
    for name, sample in samples.items():
      accuracy = draft_accuracy(*parts(params), sample, draft.depth, loss.anchors)
      figures |= {f'{name} {figure}': value for figure, value in accuracy.items()}
    return figures

  def save(params: Params) -> None:
    learnt, of_target = parts(params)
    if p1_share:
      folders.save(
        target.module, of_target.params, folder / 'model', tokenizer=material.tokenizer_path
      )
    warmth = warmth_of(learnt, of_target, dev, draft.depth, loss.anchors)
    save_draft(folder / 'draft', (module, learnt.params | {'warmth': jnp.asarray(warmth)}))

  # Train, calibrate and save.
  modules = [target.module, module]
  carry_out(folder, task, batches, run, modules, evaluate, save, seed, mesh)


def network_of(draft: Any, model: Any) -> DraftNetwork:
  """The network of these settings for a base.

  Raises:
    UserError: the base lacks these layers or words, or is of a kind that has no drafts.
  """
  check_taps(draft.taps, model.layers)
  if draft.words > model.vocab_size:
    raise UserError(
      f'config.draft.words={draft.words} is not possible: the base has {model.vocab_size} words'
    )
  layers: Any = layers_like(model, draft.layers)
  dropout = {'dropout': draft.dropout}
  if isinstance(layers, StackConfig):
    dropout |= {'attention_dropout': 0.0, 'activation_dropout': 0.0}
  sizes: Any = {'layers': dataclasses.replace(layers, **dropout), 'entry': draft.entry}
  sizes |= {'vocab_size': model.vocab_size, 'd_target': model.d_model, 'words': draft.words or None}
  if draft.taps:
    sizes |= {'taps': draft.taps, 'fuses': True, 'norms_taps': True}
  if isinstance(draft, EagleConfig):
    return EagleNetwork(**sizes)
  markov = {'markov': draft.markov, 'markov_kind': draft.markov_kind}
  return BlockNetwork(k=draft.k, candidates=draft.candidates or None, **markov, **sizes)


def start_of(
  draft: Any, module: DraftNetwork, target: Bound, key: Array, ids: Int[np.ndarray, ' w'] | None
) -> Bound:
  """The network with the parameters that its training begins with: `draft.init`."""
  if not draft.begins_trained:
    return Bound(module, begin(module, target, key, draft.init, ids))
  stored, params = load_draft(draft.init, dtype='float32')
  shape, wanted = _shape(stored), _shape(module)
  if shape != wanted:
    other = ', '.join(name for name in wanted if shape.get(name) != wanted[name])
    raise UserError(
      f'{draft.init} holds another draft than config.draft means ({other}): give its settings'
    )
  if ids is not None and not np.array_equal(params['ids'], ids):
    raise UserError(
      f'{draft.init} drafts other words than those that are frequent in this text: give the text'
      ' that it was trained on'
    )
  return Bound(module, {name: x for name, x in params.items() if name != 'warmth'})


def _shape(network: DraftNetwork) -> dict[str, Any]:
  """Settings of a network that shape its parameters."""
  settings: dict[str, Any] = {'kind': type(network), 'layers': type(network.layers)}
  for part, module in (('', network), ('layers.', network.layers)):
    for name in [field.name for field in dataclasses.fields(module)]:
      if name not in ('layers', 'dtype', 'candidates') and not name.endswith('dropout'):
        settings[part + name] = getattr(module, name)
  return settings


def settings_of(kind: str) -> type:
  """The class of the settings of one drafter of this kind."""
  if kind == 'all':
    raise UserError(
      'kind=all is the table of experiments.drafts, and kind=losses another: give kind=eagle, block'
      ' or heads'
    )
  return HeadsOnBase if kind == 'heads' else NetworkOnBase


def alone(c: Any, workdir: pathlib.Path) -> bool:
  """Trains one drafter in a folder that the user names, or continues; False if it was finished.

  Args:
    c: a HeadsOnBase or a NetworkOnBase.
    workdir: gets draft/, the network; or model/, the base with heads; both where both learn.

  Raises:
    OutOfTime: the budget ended first.
  """
  if not c.base:
    raise UserError('a drafter is trained on a base model: name its workdir by --config.base=...')
  together = c.regime == 'both'
  if together and (c.data.own or not c.data.distilled):
    raise UserError(
      "regime=both trains the base too, on a teacher's text: name it by"
      ' --config.data.distilled=..., and leave out config.data.own'
    )
  base = pathlib.Path(c.base)
  model = check_kind(base, c.task)
  run = c.finetune if together else c.train
  train.check(run, model, c.data.rows, c.mesh, 'finetune' if together else 'train')
  same = {'base': base, 'run': run, 'data': c.data, 'seed': c.seed, 'mesh': c.mesh}
  if isinstance(c, HeadsOnBase):
    same |= {'heads': c.heads, 'k': c.k, 'together': together}
    return in_place(workdir, train.heads, order=seed_of(c.seed, f'k{c.k}-{c.regime}'), **same)
  network_of(c.draft, model)  # a mistake shows before the workdir is made
  order, p1_share = seed_of(c.seed, f'{c.kind}-{c.regime}'), c.p1_share if together else 0.0
  same |= {'draft': c.draft, 'loss': c.loss, 'p1_share': p1_share, 'order': order}
  return in_place(workdir, network, **same)


def check_kind(base: pathlib.Path, task: str) -> Any:
  """The model of a base.

  Raises:
    UserError: there is none, or it is of another kind than the task needs.
  """
  model = folders.open(base).model
  model = model.model if isinstance(model, Transformed) else model
  wanted = MODELS[task]
  if not isinstance(model, wanted):
    raise UserError(
      f'task={task} means a base that is a {wanted.__name__}, and {base} holds a'
      f' {type(model).__name__}: give another base, or the task that it was trained for'
    )
  return model
