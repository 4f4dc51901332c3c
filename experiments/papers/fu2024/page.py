"""The graph of `experiments.lookahead`: one training, then every cell is a node of its own."""

import functools
from collections.abc import Iterator, Sequence

from experiments.lab import graph
from experiments.lab.page import Group, Page
from experiments.lab.run import Run
from experiments.papers.fu2024.cells import METHODS, POOLS, LookaheadCell
from experiments.papers.fu2024.measure import LookaheadMeasuring
from experiments.papers.fu2024.settings import LookaheadExperiment
from fastdec import folders

JACOBI = 8  # its block size
LOOKUP = (3, 9)  # the longest suffix, and tokens copied


class LookaheadPage(Page[LookaheadCell]):
  """See `Page`."""

  kind = LookaheadCell
  experiment: LookaheadExperiment

  def plans(self) -> list[LookaheadCell]:
    """Empty cells: the sweep at the first batch size, the first size there with every pool and at all batch sizes
    beside the two methods that need no training either."""
    config = self.experiment.measure
    first, sizes = config.batches[0], config.sizes
    found = [LookaheadCell('lookahead', *size, 'all', first) for size in sizes]
    found += [LookaheadCell('lookahead', *sizes[0], pool, first) for pool in POOLS if pool != 'all']
    found += [LookaheadCell('lookahead', *sizes[0], 'all', batch) for batch in config.batches[1:]]
    for batch in config.batches:
      found += [LookaheadCell('jacobi', 0, JACOBI, 0, 'all', batch), LookaheadCell('lookup', 0, *LOOKUP, 'all', batch)]
    return found

  @property
  def run(self) -> Run:
    return Run(self.experiment.training(), 1, 'regular', None, self.workdir / 'model')

  def runs(self) -> list[Run]:
    return [self.run]

  @functools.cached_property
  def measuring(self) -> LookaheadMeasuring:
    """Measures with the finished model."""
    return LookaheadMeasuring(self.experiment, self.run.workdir, self.conditions)

  def models_of(self, plan: LookaheadCell) -> str | None:
    return folders.content(self.run.workdir) if self.run.is_current else None

  def nodes(self) -> list[graph.Node]:
    return [self.training(self.run, 'the model'), *self.group_nodes()]

  def groups(self) -> list[Group[LookaheadCell]]:
    found = []
    for plan in self.plans():
      sizes = f'{plan.window}, {plan.ngram}, {plan.guesses}, {POOLS[plan.pool]}'
      title = f'{METHODS[plan.method]} ({sizes}), batch {plan.batch}'
      found.append(Group(plan.name, title, (plan,), ('model',)))
    return found

  def measure(self, group: Group[LookaheadCell], missing: Sequence[LookaheadCell]) -> Iterator[LookaheadCell]:
    for plan in missing:
      yield self.measuring.cell(plan)

  def summary(self, cell: LookaheadCell) -> str:
    return f'{cell.tokens:.2f} tokens a call of {cell.nodes} nodes, measured {cell.speedup:.2f}x'
