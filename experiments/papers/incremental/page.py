"""The cells of `experiments.incremental` in a workdir: each group of them is a node of its own."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

from experiments.lab import graph
from experiments.lab.page import Group, Page
from experiments.lab.run import Run
from experiments.papers.incremental.cells import PARTS, SavingCell
from experiments.papers.incremental.measure import CacheMeasuring
from experiments.papers.incremental.settings import IncrementalExperiment
from experiments.papers.incremental.tables import TITLES


class IncrementalPage(Page[SavingCell]):
  """See `Page`; nothing is trained."""

  kind = SavingCell
  experiment: IncrementalExperiment

  def plans(self) -> list[SavingCell]:
    """What is quick to measure first."""
    growth, layout, encoder = (
      self.experiment.growth,
      self.experiment.layout,
      self.experiment.encoder,
    )
    keys: list[tuple[str, str, str, int, int]] = [
      ('launches', model, 'float32', 1, min(growth.lengths)) for model in growth.models
    ]
    keys += [
      ('encoder', model, 'float32', b, encoder.source)
      for model in growth.models
      for b in encoder.batches
    ]
    keys += [
      ('growth', model, 'float32', b, length)
      for b in sorted(growth.batches)
      for model in growth.models
      for length in sorted(growth.lengths)
    ]
    keys += [
      ('layout', 'transformer', dtype, sentences, tokens)
      for dtype, rows in layout.rows.items()
      for sentences, tokens in rows
    ]
    return [SavingCell(*key) for key in keys]

  def runs(self) -> list[Run]:
    return []

  def nodes(self) -> list[graph.Node]:
    return self.group_nodes()

  @functools.cached_property
  def measuring(self) -> CacheMeasuring:
    return CacheMeasuring(self.experiment, self.conditions)

  def models_of(self, plan: SavingCell) -> str:
    """A hash of sizes and seed: random weights are nothing but these."""
    model = self.experiment.model(plan.part, plan.model, plan.dtype)
    return hashlib.sha256(repr((model, self.experiment.seed)).encode()).hexdigest()[:16]

  def groups(self) -> list[Group[SavingCell]]:
    """All lengths of a model at a batch size are one group: their times are compared."""
    plans_of: dict[str, list[SavingCell]] = {}
    for plan in self.plans():
      plans_of.setdefault(plan.name, []).append(plan)
    found = []
    for name, plans in plans_of.items():
      first, lengths = plans[0], ', '.join(str(plan.length) for plan in plans)
      title = (
        f'{PARTS[first.part]}: {TITLES[first.model]}, {first.dtype}, batch {first.batch},'
        f' {lengths} tokens'
      )
      found.append(Group(name, title, tuple(plans)))
    return found

  def measure(self, group: Group[SavingCell], missing: Sequence[SavingCell]) -> list[SavingCell]:
    """The whole group, even if only a part of it is missing."""
    cells = self.measuring.groups[group.plans[0].part](group.plans)
    return [dataclasses.replace(cell, models=self.models_of(cell)) for cell in cells]

  def summary(self, cell: SavingCell) -> str:
    if cell.counts is not None:
      return ', '.join(f'{name.replace("_", " ")} {count}' for name, count in cell.counts.items())
    times = ', '.join(f'{way} {time:.2f} ms' for way, time in (cell.milliseconds or {}).items())
    return f'{cell.length} tokens: {times}'
