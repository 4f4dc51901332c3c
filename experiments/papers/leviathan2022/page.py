"""The graph of `experiments.speculative`: target, large/ and small/ are runs; then every cell is a
node of its own.

target, large, small -> a cell for each gamma, one sentence at a time -> larger batches with the
gamma that was best
"""

import functools
from collections.abc import Iterator, Sequence

from experiments.lab import graph
from experiments.lab.cells import latest
from experiments.lab.page import Group, Page
from experiments.lab.run import Run
from experiments.papers.leviathan2022.cells import DRAFTS, SpecCell
from experiments.papers.leviathan2022.measure import SpeculativeMeasuring, models_hash
from experiments.papers.leviathan2022.settings import ROLES, TRAINED, SpeculativeExperiment


class SpeculativePage(Page[SpecCell]):
  """See `Page`."""

  kind = SpecCell
  experiment: SpeculativeExperiment

  def plans(self) -> list[SpecCell]:
    """Empty cells. Per temperature: each gamma at the first batch size, then larger batches at the
    fastest gamma."""
    config, found = self.experiment.measure, []
    first, *larger = config.batches
    for temperature in config.temperatures:
      for draft in (*TRAINED, 'lookup'):
        adaptive = ['adaptive'] if draft in TRAINED else []
        plans = [*map(str, config.gammas), *adaptive]
        found += [SpecCell(draft, temperature, plan, first) for plan in plans]
        found += [SpecCell(draft, temperature, 'best', batch) for batch in larger]
      found += [
        SpecCell(draft, temperature, str(config.ngram_gamma), first)
        for draft in ('bigram', 'unigram')
      ]
    return found

  def runs(self) -> list[Run]:
    return list(map(self.run, ROLES))

  def run(self, role: str) -> Run:
    """The training run of a role."""
    return Run(self.experiment.training(role), 1, 'regular', None, self.workdir / role)

  @functools.cached_property
  def measuring(self) -> SpeculativeMeasuring:
    """Measures with the finished models."""
    return SpeculativeMeasuring(self.experiment, self.workdir, self.conditions)

  def models_of(self, plan: SpecCell) -> str | None:
    roles = ('target', *([plan.draft] if plan.draft in TRAINED else []))
    return (
      models_hash(self.workdir, plan.draft)
      if all(self.run(role).is_current for role in roles)
      else None
    )

  def nodes(self) -> list[graph.Node]:
    titles = {
      role: 'the target' if role == 'target' else f'the {role} draft model' for role in ROLES
    }
    trainings = [self.training(self.run(role), title) for role, title in titles.items()]
    return [*trainings, *self.group_nodes()]

  def groups(self) -> list[Group[SpecCell]]:
    return [self._group(plan) for plan in self.plans()]

  def _group(self, plan: SpecCell) -> Group[SpecCell]:
    """A cell by itself; with the best gamma it comes after the cells that say which one that is."""
    needs = ['target', *([plan.draft] if plan.draft in TRAINED else [])]
    if plan.plan == 'best':
      needs += [rival.name for rival in self._rivals(plan)]
    what = 'gamma adapted' if plan.plan == 'adaptive' else f'gamma {plan.plan}'
    title = f'{DRAFTS[plan.draft]}, temperature {plan.temperature:g}, {what}, batch {plan.batch}'
    return Group(plan.name, title, (plan,), tuple(needs))

  def _rivals(self, plan: SpecCell) -> list[SpecCell]:
    """The cells that say which gamma is the best; they are wanted for themselves too."""
    same = (plan.draft, plan.temperature)
    return [
      other
      for other in self.plans()
      if (other.draft, other.temperature) == same and other.plan.isdigit()
    ]

  def measure(self, group: Group[SpecCell], missing: Sequence[SpecCell]) -> Iterator[SpecCell]:
    for plan in missing:
      yield self.measuring.cell(
        plan.draft, plan.temperature, plan.plan, self._gamma(plan), plan.batch
      )

  def _gamma(self, plan: SpecCell) -> int:
    """The number that the plan names, the fastest one measured, or the largest, which an adapted
    one stays below."""
    if plan.plan.isdigit():
      return int(plan.plan)
    if plan.plan == 'adaptive':
      return max(self.experiment.measure.gammas)
    known = latest(self.cells())
    speedups = {int(rival.plan): known[rival.key].speedup for rival in self._rivals(plan)}
    # all have one: this cell comes after them
    return max(speedups, key=lambda gamma: speedups[gamma] or 0.0)

  def summary(self, cell: SpecCell) -> str:
    predicted = (
      'nothing predicted'
      if cell.predicted_width is None
      else (f'predicted {cell.predicted_width:.2f}x')
    )
    return f'{cell.tokens_per_call:.2f} tokens a call, {predicted}, measured {cell.speedup:.2f}x'
