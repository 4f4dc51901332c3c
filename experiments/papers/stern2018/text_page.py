"""The pages of the paper about translation: Tables 1 and 4, Figure 4, the worked example; with a
teacher."""

import dataclasses
import pathlib
from collections.abc import Iterable

from experiments.lab import graph
from experiments.lab.distillation import asked, distill
from experiments.lab.model_text import record_of
from experiments.lab.run import Run
from experiments.lab.settings import DISTILLED, TUNED, seed_of
from experiments.papers.stern2018.page import BlockwisePage, ModelCells
from experiments.papers.stern2018.text_measure import BEAM, TranslationMeasuring
from experiments.papers.stern2018.text_settings import TranslationExperiment
from fastdec.training.checkpoint import check_workdir


def table1_cells(experiment: TranslationExperiment) -> list[ModelCells]:
  """The cells of Table 1 that the config asks for."""
  table, found = experiment.table, []
  for regime in dict.fromkeys(('regular', *table.regimes)):
    if regime not in TUNED:
      found.append(ModelCells(1, regime, ('exact',), table.split))
    if regime in table.regimes:
      found += [ModelCells(k, regime, table.rules, table.split) for k in table.ks]
  return found


def table4_cells(experiment: TranslationExperiment) -> list[ModelCells]:
  """The cells of Table 4: on the test set, everything distilled."""
  tuned = [ModelCells(k, 'both', ('exact',), 'test') for k in experiment.table.ks]
  return [ModelCells(1, 'distil', ('exact', BEAM), 'test'), *tuned]


def figure4_cells(experiment: TranslationExperiment) -> list[ModelCells]:
  """The cells of Figure 4: Table 4's with block sizes above 1."""
  return [one for one in table4_cells(experiment) if one.k > 1]


class TranslationPage(BlockwisePage):
  """See `BlockwisePage`; in the workdir also teacher/ and distilled/."""

  experiment: TranslationExperiment

  def teacher(self) -> Run:
    """The run whose model translates the training text: the base with another seed."""
    experiment = self.settings(1, 'regular')
    experiment = dataclasses.replace(experiment, seed=seed_of(experiment.seed, 'teacher'))
    return Run(experiment, 1, 'regular', None, self.workdir / 'teacher')

  def open(self) -> TranslationMeasuring:
    text = self.material(self.settings(1, 'regular'))
    return TranslationMeasuring(self.experiment, text, self.split, self.conditions)

  def settings(self, k: int, regime: str) -> TranslationExperiment:
    distilled = str(self._distilled) if regime in DISTILLED else ''
    # the base's, not the distilled base's
    own = self.experiment.data.own if k > 1 and regime not in DISTILLED else ''
    data = dataclasses.replace(self.experiment.data, distilled=distilled, own=own)
    return dataclasses.replace(self.experiment, data=data)

  @property
  def _distilled(self) -> pathlib.Path:
    """The teacher's translations: the config's, or those made here."""
    return pathlib.Path(self.experiment.data.distilled or self.workdir / 'distilled')

  def preparing(self, regime: str) -> list[graph.Node]:
    """Teacher and distilled text, where a regime needs it and the config has none."""
    if regime not in DISTILLED or self.experiment.data.distilled:
      return []
    teacher, workdir = self.teacher(), self._distilled

    def distil(budget: float | None) -> None:
      distill(self.settings(1, 'regular'), teacher.workdir, workdir, budget)

    is_done = (workdir / 'config.json').is_file
    return [
      graph.Node('teacher', 'training the teacher', (), lambda: teacher.is_current, teacher.train),
      graph.Node(
        'distilled',
        'translating the training text with the teacher',
        ('teacher',),
        is_done,
        distil,
        True,
      ),
    ]

  def runs(self) -> list[Run]:
    found = super().runs()
    return [*found, self.teacher()] if self._needs_teacher(found) else found

  def check(self) -> None:
    record = self._distilled / 'config.json'
    if record.is_file() and self._needs_teacher(super().runs()):
      there = record_of(self._distilled)
      check_workdir(self._distilled, {**there, 'distill': asked(self.experiment.distill)})
    super().check()

  def _needs_teacher(self, runs: Iterable[Run]) -> bool:
    return not self.experiment.data.distilled and any(run.regime in DISTILLED for run in runs)
