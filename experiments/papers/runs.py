"""Which training run a config of `experiments.train` describes."""

import pathlib
from typing import Any

from experiments.lab.run import Run
from experiments.papers.stern2018 import kinds


def run_of(config: Any, workdir: pathlib.Path) -> Run:
  """The run of a locked ConfigDict: of heads or a base; mistakes in it are UserErrors."""
  experiment = kinds.experiment_of(config)
  base = pathlib.Path(experiment.base) if experiment.base else None
  return Run(experiment, experiment.k, experiment.regime, base, workdir)
