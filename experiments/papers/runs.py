"""Which training run a config of `experiments.train` describes."""

import pathlib
from typing import Any

from experiments.lab.run import Run
from experiments.papers.drafts import settings as drafts
from experiments.papers.drafts.run import DraftRun
from experiments.papers.stern2018 import kinds


def run_of(config: Any, workdir: pathlib.Path) -> Run | DraftRun:
  """The run of a locked ConfigDict: of a draft network where it has a `draft`; mistakes in it are UserErrors."""
  if 'draft' in config:
    return DraftRun(drafts.experiment_of(config), workdir)
  experiment = kinds.experiment_of(config)
  base = pathlib.Path(experiment.base) if experiment.base else None
  return Run(experiment, experiment.k, experiment.regime, base, workdir)
