"""The graph of `experiments.speculative`: target, large/ and small/ are runs; then every cell is a node of its own.

  target, large, small -> a cell for each gamma, one sentence at a time -> larger batches with the gamma that was best
"""

import functools
import pathlib

import jax
import rich.console

from experiments import graph
from experiments.speculation import ROLES, TRAINED, SpeculativeExperiment
from experiments.speculative_measure import Measuring, models_hash
from experiments.training import Run
from fastdec.errors import UserError
from fastdec.evaluation import speculation
from fastdec.evaluation.speculation import SpecCell


class SpeculativePage:
  """The runs and cells of an experiment in a workdir.

  Args:
    experiment: the settings.
    workdir: its folder.
    budget: seconds, None for endless.
  """

  def __init__(self, experiment: SpeculativeExperiment, workdir: pathlib.Path, budget: float | None) -> None:
    self.experiment, self.workdir, self.budget = experiment, workdir, graph.Budget(budget)
    self.console = rich.console.Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    self.results = workdir / 'results.jsonl'

  def fill(self) -> graph.Outcome:
    """Does what is missing; what went wrong becomes a cell with an error.

    Raises:
      UserError: before any work, for results or runs of another config, and for text that cannot be used.
    """
    self._check()
    outcome = graph.Worker(self._nodes(), self.workdir, self.budget, self.console).run()
    known = speculation.latest(self.cells())
    for plan in self.plans():
      if plan.name in outcome.failed and not self._is_done(plan):
        failed = SpecCell(*plan.key, error=outcome.failed[plan.name])
        if known.get(plan.key) != failed:
          speculation.append(self.results, failed)
    if not outcome.is_complete:
      self.console.print(f'Out of budget: the same command goes on in {self.workdir}')
    return outcome

  def cells(self) -> list[SpecCell]:
    """What is known of the cells that the config means: measured on the models that there are now, or failed."""
    wanted = {plan.key for plan in self.plans()}
    found = [cell for cell in speculation.read(self.results) if cell.key in wanted]
    models = {draft: self._models(draft) for draft in {cell.draft for cell in found}}
    return [cell for cell in found if cell.error is not None or cell.models == models[cell.draft]]

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

  def run(self, role: str) -> Run:
    """The training run of a role."""
    return Run(self.experiment.training(role), 1, 'regular', None, self.workdir / role)

  @functools.cached_property
  def measuring(self) -> Measuring:
    """Measures with the finished models."""
    return Measuring(self.experiment, self.workdir)

  def _models(self, draft: str) -> str | None:
    """The hash of what a cell is to be measured with; None where it is to be trained yet."""
    roles = ('target', *([draft] if draft in TRAINED else []))
    return models_hash(self.workdir, draft) if all(self.run(role).is_current for role in roles) else None

  def _is_done(self, plan: SpecCell) -> bool:
    found = speculation.latest(self.cells()).get(plan.key)
    return found is not None and found.error is None

  def _nodes(self) -> list[graph.Node]:
    return [*map(self._training, ROLES), *map(self._cell, self.plans())]

  def _training(self, role: str) -> graph.Node:
    run = self.run(role)
    title = 'training the target' if role == 'target' else f'training the {role} draft model'
    return graph.Node(role, title, (), lambda: run.is_current, run.train)

  def _cell(self, plan: SpecCell) -> graph.Node:
    needs = ['target', *([plan.draft] if plan.draft in TRAINED else [])]
    rivals = self._rivals(plan) if plan.plan == 'best' else []
    what = 'gamma adapted' if plan.plan == 'adaptive' else f'gamma {plan.plan}'
    title = f'{speculation.DRAFTS[plan.draft]}, temperature {plan.temperature:g}, {what}, batch {plan.batch}'
    is_done = lambda: all(map(self._is_done, (plan, *rivals)))  # rivals are wanted for themselves too
    needs += [rival.name for rival in rivals]
    return graph.Node(plan.name, title, tuple(needs), is_done, lambda _: self._measure(plan))

  def _rivals(self, plan: SpecCell) -> list[SpecCell]:
    """The cells that say which gamma is the best."""
    same = lambda other: (other.draft, other.temperature) == (plan.draft, plan.temperature) and other.plan.isdigit()
    return list(filter(same, self.plans()))

  def _measure(self, plan: SpecCell) -> None:
    gammas = self.experiment.measure.gammas
    gamma = int(plan.plan) if plan.plan.isdigit() else max(gammas)
    if plan.plan == 'best':
      known = speculation.latest(self.cells())
      gamma = max((known[rival.key] for rival in self._rivals(plan)), key=lambda cell: cell.speedup).gamma
    cell = self.measuring.cell(plan.draft, plan.temperature, plan.plan, gamma, plan.batch)
    speculation.append(self.results, cell)
    jax.clear_caches()  # hardly a program is of use twice, and Linux gives a process memory maps for some hundreds
    predicted = 'nothing predicted' if cell.predicted_width is None else f'predicted {cell.predicted_width:.2f}x'
    self.console.print(f'{cell.tokens_per_call:.2f} tokens a call, {predicted}, measured {cell.speedup:.2f}x')

  def _check(self) -> None:
    """Raises UserError for what is wrong before any work."""
    runs = [self.run(role) for role in ROLES]
    for run in runs:
      run.check()
    for cell in self.cells():
      for name, asked in self.experiment.asked.items():
        there = cell.conditions.get(name)
        if cell.error is None and there != asked:
          means = f'this config means {name}={asked}: choose another workdir, or that config'
          raise UserError(f'{self.results} was measured with {name}={there}, and {means}')
    with graph.claimed(pathlib.Path(self.experiment.data.cache) / 'lock', wait=True):  # prepared by one process
      for run in runs if not all(run.is_finished for run in runs) else ():
        material = run.experiment.open()
        material.train_batches()
        material.dev_batches()
