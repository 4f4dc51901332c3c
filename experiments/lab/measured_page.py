"""A workdir of runs and of cells that are measured: most of them against plain decoding, whatever decodes.

In the workdir: a folder for each run, results.jsonl (one line a cell), and what the launcher makes of it. Finished
cells are skipped, several processes share the work, and what failed is a cell with its reason.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
import rich.console

from experiments.lab import graph
from experiments.lab.cells import Cell, append, latest, read
from experiments.lab.conditions import Conditions
from experiments.lab.run import Run
from fastdec.errors import UserError
from fastdec.files import locked

Kind = TypeVar('Kind', bound=Cell)


class MeasuredPage(Generic[Kind]):
  """Subclasses say which runs and cells there are, and how a cell is measured.

  Args:
    experiment: the settings; with `asked`, what all cells must agree on.
    workdir: its folder.
    budget: seconds, None for endless.
    conditions: of the measurements, see `experiments.lab.conditions`.
  """

  kind: type[Kind]

  def __init__(self, experiment: Any, workdir: pathlib.Path, budget: float | None, conditions: Conditions) -> None:
    self.experiment, self.workdir, self.budget = experiment, workdir, graph.Budget(budget)
    self.conditions = conditions
    self.console = rich.console.Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    self.results = workdir / 'results.jsonl'

  def plans(self) -> list[Kind]:
    """The cells, empty."""
    raise NotImplementedError

  def runs(self) -> list[Run]:
    """All training runs."""
    raise NotImplementedError

  def fill(self) -> graph.Outcome:
    """Does what is missing; what went wrong becomes a cell with an error.

    Raises:
      UserError: before any work, for results or runs of another config, and for text that cannot be used.
    """
    self._check()
    outcome = graph.Worker(self._nodes(), self.workdir, self.budget, self.console).run()
    known = latest(self.cells())
    for plan in self.plans():
      if plan.name in outcome.failed and not self._is_done(plan):
        failed = self._failed(plan, outcome.failed[plan.name])
        if known.get(plan.key) != failed:
          append(self.results, failed)
    if not outcome.is_complete:
      self.console.print(f'Out of budget: the same command goes on in {self.workdir}')
    return outcome

  def cells(self) -> list[Kind]:
    """What is known of the cells that the config means: measured on the models that there are now, or failed."""
    wanted = {plan.key: plan for plan in self.plans()}
    found = [cell for cell in read(self.results, self.kind) if cell.key in wanted]
    models = {key: self._models(wanted[key]) for key in {cell.key for cell in found}}
    return [cell for cell in found if cell.error is not None or cell.models == models[cell.key]]

  def _models(self, plan: Kind) -> str | None:
    """The hash of what a cell is to be measured with; None where it is to be made yet."""
    raise NotImplementedError

  def _nodes(self) -> list[graph.Node]:
    """Of runs, of what is made of them, and of cells; each after what it needs."""
    raise NotImplementedError

  def _failed(self, plan: Kind, reason: str) -> Kind:
    """The cell of a plan that failed."""
    return self.kind(*plan.key, error=reason)

  def _is_done(self, plan: Kind) -> bool:
    found = latest(self.cells()).get(plan.key)
    return found is not None and found.error is None

  def _training(self, run: Run, title: str, needs: Sequence[str] = ()) -> graph.Node:
    return graph.Node(run.workdir.name, f'training {title}', tuple(needs), lambda: run.is_current, run.train)

  def _cell(
    self, plan: Kind, title: str, needs: Sequence[str], measure: Callable[[Kind], Kind], others: Sequence[Kind] = ()
  ) -> graph.Node:
    """A cell's node; `others` are cells that it needs too."""
    is_done = lambda: all(map(self._is_done, (plan, *others)))
    names = (*needs, *(other.name for other in others))
    return graph.Node(plan.name, title, names, is_done, lambda _: self._measure(plan, measure))

  def _measure(self, plan: Kind, measure: Callable[[Kind], Kind]) -> None:
    cell = measure(plan)
    append(self.results, cell)
    jax.clear_caches()  # hardly a program is of use twice, and Linux gives a process memory maps for some hundreds
    self.console.print(self._summary(cell))

  def _summary(self, cell: Kind) -> str:
    """A cell in one line."""
    return f'{cell.tokens_per_call:.2f} tokens a call, measured {cell.speedup:.2f}x'

  def _check(self) -> None:
    """Raises UserError for what is wrong before any work."""
    runs = self.runs()
    for run in runs:
      run.check()
    for cell in self.cells():
      for name, asked in self.experiment.asked.items():
        there = cell.conditions.get(name)
        if cell.error is None and there != asked:
          means = f'this config means {name}={asked}: choose another workdir, or that config'
          raise UserError(f'{self.results} was measured with {name}={there}, and {means}')
    if all(run.is_finished for run in runs):
      return
    with locked(pathlib.Path(self.experiment.data.cache) / 'lock'):  # prepared by one process
      for run in runs:
        self._prepare(run)

  def _prepare(self, run: Run) -> None:
    """Has the text of a run made, so that a mistake in it shows."""
    material = run.experiment.open()
    material.train_batches()
    material.dev_batches()
