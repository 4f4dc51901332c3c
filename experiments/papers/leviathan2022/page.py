"""The graph of `experiments.speculative`: target, large/ and small/ are runs; then every cell is a node of its own.

target, large, small -> a cell for each gamma, one sentence at a time -> larger batches with the gamma that was best
"""

import functools

from experiments.lab import graph
from experiments.lab.cells import latest
from experiments.lab.measured_page import MeasuredPage
from experiments.lab.run import Run
from experiments.papers.leviathan2022.cells import DRAFTS, SpecCell
from experiments.papers.leviathan2022.measure import Measuring, models_hash
from experiments.papers.leviathan2022.settings import ROLES, TRAINED, SpeculativeExperiment


class SpeculativePage(MeasuredPage[SpecCell]):
  """See `MeasuredPage`."""

  kind = SpecCell
  experiment: SpeculativeExperiment

  def plans(self) -> list[SpecCell]:
    """The cells, empty: of each temperature those of one batch before the larger ones, which are of the best gamma."""
    config, found = self.experiment.measure, []
    first, *larger = config.batches
    for temperature in config.temperatures:
      for draft in (*TRAINED, 'lookup'):
        adaptive = ['adaptive'] if draft in TRAINED else []
        plans = [*map(str, config.gammas), *adaptive]
        found += [SpecCell(draft, temperature, plan, first) for plan in plans]
        found += [SpecCell(draft, temperature, 'best', batch) for batch in larger]
      found += [SpecCell(draft, temperature, str(config.ngram_gamma), first) for draft in ('bigram', 'unigram')]
    return found

  def runs(self) -> list[Run]:
    return list(map(self.run, ROLES))

  def run(self, role: str) -> Run:
    """The training run of a role."""
    return Run(self.experiment.training(role), 1, 'regular', None, self.workdir / role)

  @functools.cached_property
  def measuring(self) -> Measuring:
    """Measures with the finished models."""
    return Measuring(self.experiment, self.workdir, self.conditions)

  def _models(self, plan: SpecCell) -> str | None:
    roles = ('target', *([plan.draft] if plan.draft in TRAINED else []))
    return models_hash(self.workdir, plan.draft) if all(self.run(role).is_current for role in roles) else None

  def _nodes(self) -> list[graph.Node]:
    titles = {role: 'the target' if role == 'target' else f'the {role} draft model' for role in ROLES}
    trainings = [self._training(self.run(role), title) for role, title in titles.items()]
    return [*trainings, *map(self._node, self.plans())]

  def _node(self, plan: SpecCell) -> graph.Node:
    needs = ['target', *([plan.draft] if plan.draft in TRAINED else [])]
    what = 'gamma adapted' if plan.plan == 'adaptive' else f'gamma {plan.plan}'
    title = f'{DRAFTS[plan.draft]}, temperature {plan.temperature:g}, {what}, batch {plan.batch}'
    return self._cell(plan, title, needs, self._measured, self._rivals(plan) if plan.plan == 'best' else ())

  def _rivals(self, plan: SpecCell) -> list[SpecCell]:
    """The cells that say which gamma is the best; they are wanted for themselves too."""
    same = lambda other: (other.draft, other.temperature) == (plan.draft, plan.temperature) and other.plan.isdigit()
    return list(filter(same, self.plans()))

  def _measured(self, plan: SpecCell) -> SpecCell:
    gammas = self.experiment.measure.gammas
    gamma = int(plan.plan) if plan.plan.isdigit() else max(gammas)
    if plan.plan == 'best':
      known = latest(self.cells())
      gamma = max((known[rival.key] for rival in self._rivals(plan)), key=lambda cell: cell.speedup).gamma
    return self.measuring.cell(plan.draft, plan.temperature, plan.plan, gamma, plan.batch)

  def _summary(self, cell: SpecCell) -> str:
    predicted = 'nothing predicted' if cell.predicted_width is None else f'predicted {cell.predicted_width:.2f}x'
    return f'{cell.tokens_per_call:.2f} tokens a call, {predicted}, measured {cell.speedup:.2f}x'
