"""The graph of `experiments.speculative`: target, large/ and small/ are runs; then every cell is a node of its own."""

import pathlib

import rich.console

from experiments import graph
from experiments.speculation import ROLES, SpeculativeExperiment
from experiments.training import Run
from fastdec import folders


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

  def fill(self) -> graph.Outcome:
    """Does what is missing; what went wrong becomes a cell with an error.

    Raises:
      UserError: before any work, for results or runs of another config, and for text that cannot be used.
    """
    self._check()
    outcome = graph.Worker(self._nodes(), self.workdir, self.budget, self.console).run()
    if not outcome.is_complete:
      self.console.print(f'Out of budget: the same command goes on in {self.workdir}')
    return outcome

  def run(self, role: str) -> Run:
    """The training run of a role."""
    return Run(self.experiment.training(role), 1, 'regular', None, self.workdir / role)

  def model_of(self, role: str) -> str | None:
    """The hash of a role's finished model; None where it is to be made yet."""
    run = self.run(role)
    return folders.content(run.workdir) if run.is_current else None

  def _nodes(self) -> list[graph.Node]:
    return [self._training(role) for role in ROLES]

  def _training(self, role: str) -> graph.Node:
    run = self.run(role)
    title = 'training the target' if role == 'target' else f'training the {role} draft model'
    return graph.Node(role, title, (), lambda: run.is_current, run.train)

  def _check(self) -> None:
    """Raises UserError for what is wrong before any work."""
    runs = [self.run(role) for role in ROLES]
    for run in runs:
      run.check()
    with graph.claimed(pathlib.Path(self.experiment.data.cache) / 'lock', wait=True):  # prepared by one process
      for run in runs if not all(run.is_finished for run in runs) else ():
        material = run.experiment.open()
        material.train_batches()
        material.dev_batches()
