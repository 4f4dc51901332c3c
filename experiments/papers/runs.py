"""Which training run a config of `experiments.train` describes."""

import pathlib
from typing import Any

from experiments.lab.run import Run
from experiments.papers.drafts import settings as drafts
from experiments.papers.drafts.run import DraftRun
from experiments.papers.stern2018 import kinds
from fastdec import folders
from fastdec.errors import UserError
from fastdec.heads.transformed import Transformed


def run_of(config: Any, workdir: pathlib.Path) -> Run | DraftRun:
  """The run of a locked ConfigDict: of heads, a draft network or a base; mistakes in it are
  UserErrors."""
  if 'kind' in config:
    return _run_on_base(drafts.experiment_of(config), workdir)
  experiment = kinds.experiment_of(config)
  base = pathlib.Path(experiment.base) if experiment.base else None
  return Run(experiment, experiment.k, experiment.regime, base, workdir)


def _run_on_base(
  experiment: drafts.HeadsExperiment | drafts.DraftExperiment, workdir: pathlib.Path
) -> Run | DraftRun:
  if isinstance(experiment, drafts.DraftExperiment):
    return DraftRun(experiment, workdir)
  if not experiment.base:
    raise UserError('heads are trained on a base model: name its workdir by --config.base=...')
  base = pathlib.Path(experiment.base)
  model = folders.open(base).model
  training = experiment.training(model.model if isinstance(model, Transformed) else model)
  return Run(training, experiment.k, experiment.regime, base, workdir)
