"""The graph of `experiments.medusa`; every cell is a node of its own.

target -> own (what it writes itself, if that is trained on) -> medusa-1 -> medusa-2
medusa-1, medusa-2 -> each its trees -> each its cells
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from experiments.lab import graph, self_distillation
from experiments.lab.page import Group, Page
from experiments.lab.run import Run
from experiments.papers.cai2024.cells import TREES, MedusaCell
from experiments.papers.cai2024.measure import MedusaMeasuring, models_hash
from experiments.papers.cai2024.settings import STAGES, MedusaExperiment
from fastdec.evaluation import tree_figure
from fastdec.evaluation.tree_calibration import Calibration

TITLES = {'medusa-1': 'heads on the frozen model', 'medusa-2': 'heads and model together'}


class MedusaPage(Page[MedusaCell]):
  """See `Page`; also own/, and of each stage <stage>-tree.json and .png."""

  kind = MedusaCell
  experiment: MedusaExperiment

  def groups(self) -> list[Group[MedusaCell]]:
    """Every tree at every batch size, and typical acceptance at the first, each by itself."""
    found = []
    for stage in STAGES:
      for tree, tree_name in TREES.items():
        batches = self.experiment.measure.batches
        for batch in batches[:1] if tree == 'typical' else batches:
          plan, title = MedusaCell(stage, tree, batch), f'{stage}, tree: {tree_name}, batch {batch}'
          found.append(Group(plan.name, title, (plan,), (f'{stage}-tree',)))
    return found

  def runs(self) -> list[Run]:
    return [self.run('target'), *map(self.run, STAGES)]

  def run(self, name: str) -> Run:
    """A training run."""
    workdir = self.workdir / name
    if name == 'target':
      return Run(self.experiment.on(None), 1, 'regular', None, workdir)
    base = self.workdir / ('target' if name == STAGES[0] else STAGES[0])
    experiment = self.experiment.on(self._own, name)
    return Run(experiment, experiment.heads.depth + 1, experiment.regime_of(name), base, workdir)

  def calibrations(self) -> Mapping[str, Calibration]:
    """Those of the heads that there are now."""
    return {
      stage: Calibration.load(self._tree(stage)) for stage in STAGES if self._is_calibrated(stage)
    }

  @functools.cached_property
  def measuring(self) -> MedusaMeasuring:
    """Measures the finished runs."""
    return MedusaMeasuring(self.experiment.on(None), self.workdir, self.conditions)

  @property
  def _own(self) -> pathlib.Path:
    return self.workdir / 'own'

  def _tree(self, stage: str) -> pathlib.Path:
    return self.workdir / f'{stage}-tree.json'

  def models_of(self, plan: MedusaCell) -> str | None:
    if not self._is_calibrated(plan.stage):
      return None
    return models_hash(self.workdir, plan, Calibration.load(self._tree(plan.stage)))

  def _is_trained(self, name: str) -> bool:
    """Whether a run, and all that it comes from, are finished and of one piece."""
    chain = ['target', *STAGES][: 1 + ['target', *STAGES].index(name)]
    return all(self.run(one).is_current for one in chain) and (
      name == 'target' or self._is_written()
    )

  def _is_written(self) -> bool:
    config = self.experiment.measure
    return not self.experiment.writes or self_distillation.is_written(
      self._own, self_distillation.wanted(self.workdir / 'target', config.prompt, config.max_len)
    )

  def _is_calibrated(self, stage: str) -> bool:
    return (
      self._is_trained(stage)
      and self._tree(stage).is_file()
      and (
        self._tree(stage).stat().st_mtime
        > (self.workdir / stage / 'model' / 'config.json').stat().st_mtime
      )
    )

  def nodes(self) -> list[graph.Node]:
    target = self.training(self.run('target'), 'the language model')
    config, writes = self.experiment.measure, self.experiment.writes

    def write(budget: float | None) -> None:
      text, data = self.experiment.on(None).open(), self.experiment.data
      where = self._own, self.workdir / 'target'
      self_distillation.write(*where, text, data, config.prompt, config.max_len, budget=budget)

    def is_written() -> bool:
      return self.run('target').is_current and self._is_written()

    own = []
    if writes:
      own = [
        graph.Node('own', 'writing text with the language model', ('target',), is_written, write)
      ]
    first, second = STAGES
    trainings = [
      self.training(self.run(first), TITLES[first], ('own' if writes else 'target',)),
      self.training(self.run(second), TITLES[second], (first,)),
    ]
    return [target, *own, *trainings, *map(self._calibration, STAGES), *self.group_nodes()]

  def _calibration(self, stage: str) -> graph.Node:
    def calibrate(_: float | None) -> None:
      found = self.measuring.calibrate(stage, self._tree(stage))
      tree = found.tree.cut(self.experiment.measure.nodes)
      said = f'{stage.capitalize()}: {len(tree.choices) + 1} nodes'
      tree_figure.draw(tree, said, self._tree(stage).with_suffix('.png'))

    def is_done() -> bool:
      return self._is_calibrated(stage)

    return graph.Node(f'{stage}-tree', f'growing the tree of {stage}', (stage,), is_done, calibrate)

  def measure(
    self, group: Group[MedusaCell], missing: Sequence[MedusaCell]
  ) -> Iterator[MedusaCell]:
    for plan in missing:
      yield self.measuring.cell(plan, Calibration.load(self._tree(plan.stage)))

  def summary(self, cell: MedusaCell) -> str:
    return f'{cell.tokens_per_call:.2f} tokens a call, measured {cell.speedup:.2f}x'

  def prepare(self, run: Run) -> None:
    if run.workdir.name == 'target':  # it writes what the others train on
      super().prepare(run)
