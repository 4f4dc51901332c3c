"""The graph of `experiments.medusa`; every cell is a node of its own.

target -> own (what it writes itself, if that is trained on) -> medusa-1 -> medusa-2
medusa-1, medusa-2 -> each its trees -> each its cells
"""

import functools
import pathlib
from collections.abc import Mapping

from experiments.lab import graph, self_distillation
from experiments.lab.measured_page import MeasuredPage
from experiments.lab.run import Run
from experiments.papers.cai2024.cells import TREES, MedusaCell
from experiments.papers.cai2024.measure import Measuring, models_hash
from experiments.papers.cai2024.settings import STAGES, MedusaExperiment
from fastdec.evaluation import tree_figure
from fastdec.evaluation.tree_calibration import Calibration

TITLES = {'medusa-1': 'heads on the frozen model', 'medusa-2': 'heads and model together'}


class MedusaPage(MeasuredPage[MedusaCell]):
  """See `MeasuredPage`; also own/, and of each stage <stage>-tree.json and .png."""

  kind = MedusaCell
  experiment: MedusaExperiment

  def plans(self) -> list[MedusaCell]:
    """Every tree at every batch size; typical acceptance at the first."""
    batches = self.experiment.measure.batches
    keys = [(stage, tree, b) for stage in STAGES for tree in TREES for b in batches[: 1 if tree == 'typical' else None]]
    return [MedusaCell(*key) for key in keys]

  def runs(self) -> list[Run]:
    return [self.run('target'), *map(self.run, STAGES)]

  def run(self, name: str) -> Run:
    """A training run."""
    workdir = self.workdir / name
    if name == 'target':
      return Run(self.experiment.on(None), 1, 'regular', None, workdir)
    base = self.workdir / ('target' if name == STAGES[0] else STAGES[0])
    experiment = self.experiment.on(self._own)
    return Run(experiment, experiment.heads.depth + 1, experiment.regime_of(name), base, workdir)

  def calibrations(self) -> Mapping[str, Calibration]:
    """Those of the heads that there are now."""
    return {stage: Calibration.load(self._tree(stage)) for stage in STAGES if self._is_calibrated(stage)}

  @functools.cached_property
  def measuring(self) -> Measuring:
    """Measures the finished runs."""
    return Measuring(self.experiment.on(None), self.workdir, self.conditions)

  @property
  def _own(self) -> pathlib.Path:
    return self.workdir / 'own'

  def _tree(self, stage: str) -> pathlib.Path:
    return self.workdir / f'{stage}-tree.json'

  def _models(self, plan: MedusaCell) -> str | None:
    if not self._is_calibrated(plan.stage):
      return None
    return models_hash(self.workdir, plan, Calibration.load(self._tree(plan.stage)))

  def _is_trained(self, name: str) -> bool:
    """Whether a run, and all that it comes from, are finished and of one piece."""
    chain = ['target', *STAGES][: 1 + ['target', *STAGES].index(name)]
    return all(self.run(one).is_current for one in chain) and (name == 'target' or self._is_written())

  def _is_written(self) -> bool:
    config = self.experiment.measure
    return self.experiment.text != 'own' or self_distillation.is_written(
      self._own, self_distillation.record_of(self.workdir / 'target', config.prompt, config.max_len)
    )

  def _is_calibrated(self, stage: str) -> bool:
    return (
      self._is_trained(stage)
      and self._tree(stage).is_file()
      and (self._tree(stage).stat().st_mtime > (self.workdir / stage / 'model' / 'config.json').stat().st_mtime)
    )

  def _nodes(self) -> list[graph.Node]:
    target = self._training(self.run('target'), 'the language model')
    config, is_own = self.experiment.measure, self.experiment.text == 'own'

    def write(_: float | None) -> None:
      text, data = self.experiment.on(None).open(), self.experiment.data
      self_distillation.write(self._own, self.workdir / 'target', text, data, config.prompt, config.max_len)

    title = 'writing text with the language model'
    is_written = lambda: self.run('target').is_current and self._is_written()
    own = [graph.Node('own', title, ('target',), is_written, write)] if is_own else []
    first, second = STAGES
    trainings = [
      self._training(self.run(first), TITLES[first], ('own' if is_own else 'target',)),
      self._training(self.run(second), TITLES[second], (first,)),
    ]
    return [target, *own, *trainings, *map(self._calibration, STAGES), *map(self._node, self.plans())]

  def _calibration(self, stage: str) -> graph.Node:
    def calibrate(_: float | None) -> None:
      found = self.measuring.calibrate(stage, self._tree(stage))
      tree = found.tree.cut(self.experiment.measure.nodes)
      said = f'{stage.capitalize()}: {len(tree.choices) + 1} nodes'
      tree_figure.draw(tree, said, self._tree(stage).with_suffix('.png'))

    is_done = lambda: self._is_calibrated(stage)
    return graph.Node(f'{stage}-tree', f'growing the tree of {stage}', (stage,), is_done, calibrate)

  def _node(self, plan: MedusaCell) -> graph.Node:
    title = f'{plan.stage}, tree: {TREES[plan.tree]}, batch {plan.batch}'
    measure = lambda cell: self.measuring.cell(cell, Calibration.load(self._tree(cell.stage)))
    return self._cell(plan, title, (f'{plan.stage}-tree',), measure)

  def _prepare(self, run: Run) -> None:
    if run.workdir.name == 'target':  # the text of the others comes of it
      super()._prepare(run)
