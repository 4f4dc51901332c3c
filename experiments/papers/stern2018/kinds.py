"""Which experiment a config describes, and how its models are measured."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.lab.conditions import Conditions
from experiments.lab.report import Drawn
from experiments.lab.settings import Experiment
from experiments.papers.stern2018 import tables, tree_tables
from experiments.papers.stern2018.page import Measuring
from experiments.papers.stern2018.text_measure import TranslationMeasuring
from experiments.papers.stern2018.text_settings import TranslationExperiment


class Kind(NamedTuple):
  """What launchers need to know of a `config.task`."""

  experiment: type[Experiment]
  # on an experiment's split; the folder is for outputs
  measuring: Callable[[Any, pathlib.Path, Conditions], Measuring]
  rules: Callable[[Any], tuple[str, ...]]  # of an experiment, for heads
  tables: tuple[Callable[..., Drawn], ...]  # of cells


def _text(
  experiment: TranslationExperiment, folder: pathlib.Path, conditions: Conditions
) -> TranslationMeasuring:
  return TranslationMeasuring(experiment, experiment.open(), experiment.table.split, conditions)


KINDS = {
  'translation': Kind(
    TranslationExperiment,
    _text,
    lambda experiment: experiment.table.rules,
    (tables.table1, tables.rules_table, tree_tables.trees_table, tables.wallclock_table),
  )
}


def experiment_of(config: Any) -> Experiment:
  """The experiment of a locked ConfigDict, by its `task`; mistakes in it are UserErrors."""
  return KINDS[config.task].experiment.of(config)
