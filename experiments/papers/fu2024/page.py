"""The graph of `experiments.lookahead`: one training, unless the config names a base, then the
cells."""

import functools
import pathlib
from collections.abc import Iterator, Sequence

from experiments.lab import graph
from experiments.lab.cells import latest
from experiments.lab.page import Group, Page
from experiments.lab.run import Run
from experiments.papers.fu2024.cells import FOREIGN, METHODS, POOLS, LookaheadCell
from experiments.papers.fu2024.measure import LookaheadMeasuring
from experiments.papers.fu2024.settings import LookaheadExperiment
from fastdec import folders

JACOBI = 8  # its block size
LOOKUP = (3, 9)  # the longest suffix, and tokens copied


class LookaheadPage(Page[LookaheadCell]):
  """See `Page`. A base that the config names is taken as it is."""

  kind = LookaheadCell
  experiment: LookaheadExperiment

  def plans(self) -> list[LookaheadCell]:
    """Empty cells: the first size at all batch sizes, beside the two methods that need no training
    either; every pool, and the sweep, at the first batch size."""
    first, *others = self.experiment.measure.batches
    sizes, found = self.experiment.measure.sizes, []
    for batch in (first, *others):
      found.append(LookaheadCell('lookahead', *sizes[0], 'all', batch))
      found.append(LookaheadCell('jacobi', 0, JACOBI, 0, 'all', batch))
      found.append(LookaheadCell('lookup', 0, *LOOKUP, 'all', batch))
    found += [LookaheadCell('lookahead', *sizes[0], pool, first) for pool in POOLS if pool != 'all']
    found += [LookaheadCell('lookup', 0, *LOOKUP, pool, first) for pool in FOREIGN]
    found += [LookaheadCell('lookahead', *size, 'all', first) for size in sizes[1:]]
    return found

  @property
  def base(self) -> pathlib.Path:
    """The workdir of the model."""
    return pathlib.Path(self.experiment.base or self.workdir / 'model')

  def runs(self) -> list[Run]:
    return (
      []
      if self.experiment.base
      else [Run(self.experiment.training(), 1, 'regular', None, self.base)]
    )

  @functools.cached_property
  def measuring(self) -> LookaheadMeasuring:
    """Measures with the finished model."""
    return LookaheadMeasuring(self.experiment, self.base, self.conditions)

  def check(self) -> None:
    if self.experiment.base:
      folders.open(self.base)  # a mistake shows before any work
    super().check()

  def models_of(self, plan: LookaheadCell) -> str | None:
    return folders.content(self.base) if all(run.is_current for run in self.runs()) else None

  def nodes(self) -> list[graph.Node]:
    return [*(self.training(run, 'the model') for run in self.runs()), *self.group_nodes()]

  def groups(self) -> list[Group[LookaheadCell]]:
    plans: dict[str, list[LookaheadCell]] = {}
    for plan in self.plans():
      plans.setdefault(plan.group, []).append(plan)
    needs, found = tuple(run.workdir.name for run in self.runs()), []
    for name, cells in plans.items():
      one = cells[0]
      title = f'{METHODS[one.method]} ({one.window}, {one.ngram}, {one.guesses}, {POOLS[one.pool]})'
      found.append(Group(name, title, tuple(cells), needs))
    return found

  def missing(self, group: Group[LookaheadCell]) -> list[LookaheadCell]:
    """Also the cells that have been counted and not timed, where the config asks for times: those
    keep their counts."""
    wanted = super().missing(group)
    if self.experiment.measure.repeats:
      known = latest(self._known(group.plans)).values()
      wanted += [cell for cell in known if cell.error is None and cell.speedup is None]
    return wanted

  def measure(
    self, group: Group[LookaheadCell], missing: Sequence[LookaheadCell]
  ) -> Iterator[LookaheadCell]:
    return self.measuring.cells(missing)

  def summary(self, cell: LookaheadCell) -> str:
    speed = 'not timed' if cell.speedup is None else f'measured {cell.speedup:.2f}x'
    return f'batch {cell.batch}: {cell.tokens:.2f} tokens a call of {cell.nodes} nodes, {speed}'
