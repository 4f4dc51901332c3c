"""One drafter on a finished base, in a folder that the user names.

configs/drafts.py with a kind has the settings; fastdec/training/drafts/trainer.py trains.
"""

import dataclasses
import pathlib
from typing import Annotated, Any, Literal

from experiments.lab import train
from experiments.lab.costs import make_in_place
from experiments.lab.text import TextConfig
from experiments.lab.train import HeadsConfig, Seed, Several, seed_of
from fastdec.errors import UserError
from fastdec.fields import Between
from fastdec.heads.transformed import Transformed
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.lm import LM
from fastdec.models.transformer import Transformer
from fastdec.text.load import open_folder
from fastdec.training.drafts.losses import DraftLoss
from fastdec.training.drafts.settings import BlockConfig, EagleConfig
from fastdec.training.drafts.trainer import train_heads, train_network
from fastdec.training.run import RunConfig

MODELS = {'translation': Transformer, 'lm': LM}  # bases


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


def settings_of(kind: str) -> type:
  """The class of the settings of one drafter of this kind."""
  if kind == 'all':
    raise UserError(
      'kind=all is the table of experiments.drafts, and kind=losses another: give kind=eagle, block'
      ' or heads'
    )
  if kind == 'heads':
    return HeadsOnBase
  return NetworkOnBase


def train_one(c: Any, workdir: pathlib.Path) -> bool:
  """Trains one drafter (of a HeadsOnBase or a NetworkOnBase) in a folder that the user names, or
  continues; False if it was finished. The folder gets draft/, the network, or model/, the base with
  heads; both where both learn."""
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
  run, name = c.train, 'train'
  if together:
    run, name = c.finetune, 'finetune'
  train.check(run, model, c.data.rows, c.mesh, name)
  same = {'base': base, 'run': run, 'data': c.data, 'seed': c.seed, 'mesh': c.mesh}
  if isinstance(c, HeadsOnBase):
    same |= {'heads': c.heads, 'k': c.k, 'together': together}
    return make_in_place(workdir, train_heads, order=seed_of(c.seed, f'k{c.k}-{c.regime}'), **same)
  c.draft.network(model)  # a mistake shows before the workdir is made
  p1_share = c.p1_share if together else 0.0
  same |= {'draft': c.draft, 'loss': c.loss, 'p1_share': p1_share}
  same['order'] = seed_of(c.seed, f'{c.kind}-{c.regime}')
  return make_in_place(workdir, train_network, **same)


def check_kind(base: pathlib.Path, task: str) -> Any:
  """The model of a base.

  Raises:
    UserError: the folder has no model, or not the kind that the task needs.
  """
  model = open_folder(base).model
  if isinstance(model, Transformed):
    model = model.model
  wanted = MODELS[task]
  if not isinstance(model, wanted):
    raise UserError(
      f'task={task} means a base that is a {wanted.__name__}, and {base} holds a'
      f' {type(model).__name__}: give another base, or the task that it was trained for'
    )
  return model
