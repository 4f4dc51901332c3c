"""The cells of `experiments.incremental` in a workdir: each group of them is a node of its own."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

import jax

from experiments.lab import graph
from experiments.lab.cells import append
from experiments.lab.measured_page import MeasuredPage
from experiments.lab.run import Run
from experiments.papers.incremental.cells import PARTS, SavingCell
from experiments.papers.incremental.measure import Measuring
from experiments.papers.incremental.settings import IncrementalExperiment
from experiments.papers.incremental.tables import TITLES


class IncrementalPage(MeasuredPage[SavingCell]):
  """See `MeasuredPage`; nothing is trained."""

  kind = SavingCell
  experiment: IncrementalExperiment

  def plans(self) -> list[SavingCell]:
    """What is quick to measure first."""
    growth, layout, encoder = self.experiment.growth, self.experiment.layout, self.experiment.encoder
    keys = [('launches', model, 'float32', 1, min(growth.lengths)) for model in growth.models]
    keys += [('encoder', model, 'float32', b, encoder.source) for model in growth.models for b in encoder.batches]
    keys += [
      ('growth', model, 'float32', b, length)
      for b in sorted(growth.batches)
      for model in growth.models
      for length in sorted(growth.lengths)
    ]
    keys += [('layout', 'transformer', dtype, *row) for dtype, rows in layout.rows.items() for row in rows]
    return [SavingCell(*key) for key in keys]  # fmt: skip

  def runs(self) -> list[Run]:
    return []

  @functools.cached_property
  def measuring(self) -> Measuring:
    return Measuring(self.experiment, self.conditions)

  def _models(self, plan: SavingCell) -> str:
    """A hash of sizes and seed: random weights are nothing but these."""
    model = self.experiment.model(plan.part, plan.model, plan.dtype)
    return hashlib.sha256(repr((model, self.experiment.seed)).encode()).hexdigest()[:16]

  def _nodes(self) -> list[graph.Node]:
    groups: dict[str, list[SavingCell]] = {}
    for plan in self.plans():
      groups.setdefault(plan.name, []).append(plan)
    return [self._group(name, plans) for name, plans in groups.items()]

  def _group(self, name: str, plans: Sequence[SavingCell]) -> graph.Node:
    first = plans[0]
    lengths = ', '.join(str(plan.length) for plan in plans)
    title = f'{PARTS[first.part]}: {TITLES[first.model]}, {first.dtype}, batch {first.batch}, {lengths} tokens'
    is_done = lambda: all(map(self._is_done, plans))
    return graph.Node(name, title, (), is_done, lambda _: self._measure_group(plans))

  def _measure_group(self, plans: Sequence[SavingCell]) -> None:
    for cell in self.measuring.groups[plans[0].part](plans):
      append(self.results, dataclasses.replace(cell, models=self._models(cell)))
      self.console.print(self._summary(cell))
    jax.clear_caches()  # no program is of use twice

  def _summary(self, cell: SavingCell) -> str:
    if cell.counts is not None:
      return ', '.join(f'{name.replace("_", " ")} {count}' for name, count in cell.counts.items())
    times = ', '.join(f'{way} {time:.2f} ms' for way, time in cell.milliseconds.items())
    return f'{cell.length} tokens: {times}'
