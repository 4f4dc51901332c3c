"""Which experiment a config describes."""

from typing import Any

from experiments.images import ImageExperiment
from experiments.settings import Experiment
from experiments.translation import TranslationExperiment

KINDS = {'translation': TranslationExperiment, 'images': ImageExperiment}


def experiment_of(config: Any) -> Experiment:
  """The experiment of a locked ConfigDict, by its `task`; mistakes in it are UserErrors."""
  return KINDS[config.task].of(config)
