"""The pages of the paper about translation: Tables 1 and 4, Figure 4, the worked example; with a teacher."""

import dataclasses
import json
import pathlib

from experiments.lab import graph
from experiments.lab.distillation import distill
from experiments.lab.run import Run
from experiments.lab.settings import DISTILLED, TUNED
from experiments.papers.stern2018 import text_measure
from experiments.papers.stern2018.page import Group, Page
from experiments.papers.stern2018.text_settings import TranslationExperiment
from fastdec.training.checkpoint import check_workdir


def table1_groups(experiment: TranslationExperiment) -> list[Group]:
  """The cells of Table 1 that the config asks for."""
  table, found = experiment.table, []
  for regime in dict.fromkeys(('regular', *table.regimes)):
    if regime not in TUNED:
      found.append(Group(1, regime, ('exact',), table.split))
    if regime in table.regimes:
      found += [Group(k, regime, table.rules, table.split) for k in table.ks]
  return found


def table4_groups(experiment: TranslationExperiment) -> list[Group]:
  """The cells of Table 4: on the test set, everything distilled."""
  tuned = [Group(k, 'both', ('exact',), 'test') for k in experiment.table.ks]
  return [Group(1, 'distil', ('exact', text_measure.BEAM), 'test'), *tuned]


def figure4_groups(experiment: TranslationExperiment) -> list[Group]:
  """The cells of Figure 4: Table 4's with block sizes above 1."""
  return [group for group in table4_groups(experiment) if group.k > 1]


class TranslationPage(Page):
  """See `Page`; in the workdir also teacher/ and distilled/."""

  experiment: TranslationExperiment

  def teacher(self) -> Run:
    """The run whose model translates the training text: the base with another seed."""
    experiment = self._settings('regular')
    experiment = dataclasses.replace(experiment, seed=(experiment.seed + 1) % 2**32)
    return Run(experiment, 1, 'regular', None, self.workdir / 'teacher')

  def _open(self, split: str) -> text_measure.Measuring:
    return text_measure.Measuring(self.experiment, self._settings('regular').open(), split, self.conditions)

  def _settings(self, regime: str) -> TranslationExperiment:
    distilled = str(self._distilled) if regime in DISTILLED else ''
    return dataclasses.replace(self.experiment, data=dataclasses.replace(self.experiment.data, distilled=distilled))

  @property
  def _distilled(self) -> pathlib.Path:
    """The teacher's translations: the config's, or those made here."""
    return pathlib.Path(self.experiment.data.distilled or self.workdir / 'distilled')

  def _preparing(self, regime: str) -> list[graph.Node]:
    """Teacher and distilled text, where a regime needs it and the config has none."""
    if regime not in DISTILLED or self.experiment.data.distilled:
      return []
    teacher, workdir = self.teacher(), self._distilled

    def distil(budget: float | None) -> None:
      distill(self._settings('regular'), teacher.workdir, workdir, budget)

    is_done = (workdir / 'config.json').is_file
    return [
      graph.Node('teacher', 'training the teacher', (), lambda: teacher.is_current, teacher.train),
      graph.Node('distilled', 'translating the training text with the teacher', ('teacher',), is_done, distil, True),
    ]

  def _checked(self, runs: list[Run]) -> list[Run]:
    if self.experiment.data.distilled or not any(run.regime in DISTILLED for run in runs):
      return runs
    record = self._distilled / 'config.json'
    if record.is_file():
      wanted = {'distill': json.loads(json.dumps(dataclasses.asdict(self.experiment.distill)))}
      check_workdir(self._distilled, {**json.loads(record.read_text()), **wanted})
    return [*runs, self.teacher()]
