"""A page: the training runs of an experiment in a workdir, and the cells that are measured on them.

In the workdir: a folder for each run, results.jsonl (one line a cell), and what the launcher makes
of it. Finished cells are skipped, an interrupted run goes on, several processes share the work, and
what failed is a cell with its reason.
"""

import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import jax

from experiments.lab import graph
from experiments.lab.cells import Cell, append, latest, read
from experiments.lab.conditions import Conditions
from experiments.lab.console import plain_console
from experiments.lab.run import Run
from experiments.lab.settings import Material
from fastdec.errors import UserError
from fastdec.files import locked

Kind = TypeVar('Kind', bound=Cell)
Opened = TypeVar('Opened', bound=Material, covariant=True)


class Opens(Protocol[Opened]):
  """What has material to open: a training; which material, the type says."""

  def open(self) -> Opened:
    """See `Training.open`."""
    ...

  def distilled_key(self) -> str:
    """See `Training.distilled_key`."""
    ...


@dataclasses.dataclass(frozen=True)
class Group(Generic[Kind]):
  """Cells that one process measures together: one node of the graph.

  Attributes:
    name: of the node, its lock and its log.
    title: for the console.
    plans: the cells without figures.
    needs: the names of runs, other nodes and other groups that come before. A group whose cells are
      missing is wanted even if only finished groups need it.
  """

  name: str
  title: str
  plans: tuple[Kind, ...]
  needs: tuple[str, ...] = ()


class Page(Generic[Kind]):
  """Subclasses state runs, groups, and how a group is measured; what all pages do with them stands
  here.

  Args:
    experiment: the settings.
    workdir: its folder.
    budget: seconds, None for endless.
    conditions: of the measurements, see `experiments.lab.conditions`.
  """

  kind: type[Kind]
  # whether the cells of several groups are measured by the same compiled programs
  shares_programs = False

  def __init__(
    self, experiment: Any, workdir: pathlib.Path, budget: float | None, conditions: Conditions
  ) -> None:
    self.experiment, self.workdir, self.budget = experiment, workdir, graph.Budget(budget)
    self.conditions = conditions
    self.console = plain_console()
    self.results = workdir / 'results.jsonl'
    self.has_measured = False  # whether there are cells from this process
    # by the first word of a node's name: see `graph.Node.seconds`
    self.paces: Mapping[str, float] = {}
    self._materials: dict[tuple[str, str], Any] = {}

  # --- what a page states

  def groups(self) -> list[Group[Kind]]:
    """All cells, each group after those that it needs."""
    raise NotImplementedError

  def runs(self) -> list[Run]:
    """All training runs."""
    raise NotImplementedError

  def nodes(self) -> list[graph.Node]:
    """The graph: trainings, what else comes before the cells, and `group_nodes`; each node after
    what it needs."""
    raise NotImplementedError

  def models_of(self, plan: Kind) -> str | None:
    """The hash of what a cell is to be measured with; None as long as that has to be made."""
    raise NotImplementedError

  def measure(self, group: Group[Kind], missing: Sequence[Kind]) -> Iterable[Kind]:
    """Measures the cells of a group that are missing."""
    raise NotImplementedError

  def summary(self, cell: Kind) -> str:
    """A measured cell in one line."""
    raise NotImplementedError

  def check_cells(self, done: Sequence[Kind]) -> None:
    """Raises UserError if finished cells were measured on something else than `experiment.asked`
    says."""
    for cell in done:
      for name, asked in self.experiment.asked.items():
        there = cell.conditions.get(name)
        if there != asked:
          means = f'this config means {name}={asked}: choose another workdir, or that config'
          raise UserError(f'{self.results} was measured with {name}={there}, and {means}')

  def prepare(self, run: Run) -> None:
    """Has the batches of a run packed, so that a mistake in its text shows before any work."""
    material = self.material(run.experiment)
    material.train_batches(run.experiment.run(run.k, run.regime).rows, run.data_seed)
    material.dev_batches()

  # --- what all pages do

  def fill(self) -> graph.Outcome:
    """Does what is missing; what went wrong becomes a cell with an error.

    Raises:
      UserError: before any work, for results or runs of another config, and for text that cannot be
        used.
    """
    self.check()
    outcome = graph.Worker(self.paced_nodes(), self.workdir, self.budget, self.console).run()
    known = latest(self.cells())
    for group in self.groups():
      if group.name in outcome.failed:
        for plan in self.missing(group):
          failed = dataclasses.replace(plan, error=outcome.failed[group.name])
          if known.get(plan.key) != failed:
            append(self.results, failed)
    return outcome

  def end(self, outcome: graph.Outcome) -> NoReturn:
    """Ends the process: by 1 if something failed, else by 0; the last line says so where the budget
    ended first."""
    if not outcome.is_complete:
      self.console.print(f'Out of budget: the same command goes on in {self.workdir}')
    sys.exit(1 if outcome.failed else 0)

  def cells(self) -> list[Kind]:
    """The known cells of all groups: measured on the models that there are now, or failed."""
    return self._known([plan for group in self.groups() for plan in group.plans])

  def missing(self, group: Group[Kind]) -> list[Kind]:
    """The plans of a group that have not been measured on the models that there are now."""
    done = {cell.key for cell in self._known(group.plans) if cell.error is None}
    return [plan for plan in group.plans if plan.key not in done]

  def material(self, experiment: Opens[Opened]) -> Opened:
    """What an experiment trains on. It is opened once, so that batches packed by the check are not
    packed again."""
    key = repr(experiment), experiment.distilled_key()
    if key not in self._materials:
      self._materials[key] = experiment.open()
    return self._materials[key]

  def data_lock(self) -> contextlib.AbstractContextManager[bool]:
    """Held while data is prepared: by one process at a time."""
    return locked(pathlib.Path(self.experiment.data.cache) / 'lock')

  def training(
    self, run: Run, title: str, needs: Sequence[str] = (), is_done: Callable[[], bool] | None = None
  ) -> graph.Node:
    """The node of a run, done when the run is current, or by another test."""

    def train(budget: float | None) -> None:
      run.train(budget, self.material(run.experiment))

    return graph.Node(
      run.workdir.name,
      f'training {title}',
      tuple(needs),
      is_done or (lambda: run.is_current),
      train,
    )

  def paced_nodes(self) -> list[graph.Node]:
    """The nodes, each with the seconds that must be left for it to begin."""
    pace = self.paces.get
    return [
      dataclasses.replace(node, seconds=pace(node.name.split('-')[0], 0.0)) for node in self.nodes()
    ]

  def group_nodes(self) -> list[graph.Node]:
    """The nodes of all groups."""
    return [self._node(group) for group in self.groups()]

  def check(self) -> None:
    """Raises UserError for what is wrong before any work."""
    read(self.results, self.kind)  # a file of something else shows before data is prepared
    runs = self.runs()
    for run in runs:
      run.check()
    self.check_cells([cell for cell in self.cells() if cell.error is None])
    unfinished = [run for run in runs if not run.is_finished]
    if unfinished:
      with self.data_lock():
        for run in unfinished:
          self.prepare(run)

  def _known(self, plans: Iterable[Kind]) -> list[Kind]:
    wanted = {plan.place: plan for plan in plans}
    found = [cell for cell in read(self.results, self.kind) if cell.place in wanted]
    models = {place: self.models_of(wanted[place]) for place in {cell.place for cell in found}}
    return [cell for cell in found if cell.error is not None or cell.models == models[cell.place]]

  def _node(self, group: Group[Kind]) -> graph.Node:
    needed = [other for other in self.groups() if other.name in group.needs]

    def is_done() -> bool:
      return not any(self.missing(one) for one in (group, *needed))

    def work(_: float | None) -> None:
      for cell in self.measure(group, self.missing(group)):
        append(self.results, cell)
        self.has_measured = True
        self.console.print(self.summary(cell))
      if not self.shares_programs:
        jax.clear_caches()  # Linux gives a process memory maps for some hundreds of programs

    return graph.Node(group.name, group.title, group.needs, is_done, work)
