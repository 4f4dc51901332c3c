"""One page of the paper in one workdir: the graph behind its tables and figures.

  base (regular) -> heads on it (regular) -> heads and base together (finetune)

and, where a teacher translates the training text (`translation_page`),

  teacher (another seed) -> distilled text -> base on it (distil) -> heads on it (distil) -> together (both)

and from every model its cells. In the workdir: base/, k<k>-<regime>/ and so on (one run each), results.jsonl (one line
a cell), and what the launchers make of it. Where the heads are nested (the layout 'separate' with p1 the identity), one
run with frozen heads for the largest k serves all.
"""

import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import rich.console

from experiments.lab import cells, graph
from experiments.lab.conditions import Conditions
from experiments.lab.run import Run
from experiments.lab.settings import DISTILLED, TUNED, Experiment, Material
from experiments.papers.stern2018.cells import BlockwiseCell
from fastdec import folders
from fastdec.files import locked


class Group(NamedTuple):
  """Cells that are measured together."""

  k: int
  regime: str
  rules: tuple[str, ...]
  split: str
  kind: str = 'cells'

  @property
  def place(self) -> tuple[int, str, str]:
    return self.k, self.regime, self.split

  @property
  def name(self) -> str:
    return f'{self.kind}-k{self.k}-{self.regime}-{self.split}'


class Measuring(Protocol):
  """Measures models on one split."""

  material: Material

  def check(self, done: Iterable[BlockwiseCell], path: pathlib.Path) -> None:
    """Raises UserError where a finished cell of this split, read from `path`, was measured on something else."""

  def cells(self, workdir: pathlib.Path, k: int, regime: str, rules: Sequence[str]) -> Iterator[BlockwiseCell]:
    """One cell a rule, of a run's model with its first k heads; k = 1 is the model without heads."""

  def summary(self, cell: BlockwiseCell) -> str:
    """A cell in one line."""


class Page:
  """The runs and cells of an experiment in a workdir; subclasses say how models are measured.

  Args:
    experiment: the settings.
    workdir: its folder.
    budget: seconds, None for endless.
    conditions: of the measurements, see `experiments.lab.conditions`.
  """

  def __init__(
    self, experiment: Experiment, workdir: pathlib.Path, budget: float | None, conditions: Conditions
  ) -> None:
    self.experiment, self.workdir, self.budget = experiment, workdir, graph.Budget(budget)
    self.conditions = conditions
    self.console = rich.console.Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    self.results = workdir / 'results.jsonl'
    self.has_measured = False  # whether there are cells from this process
    self._measuring: dict[str, Measuring] = {}

  def fill(self, groups: Sequence[Group]) -> graph.Outcome:
    """Does what is missing for these cells; what went wrong becomes a cell with an error.

    Raises:
      UserError: before any work, for results or runs of another config, and for text that cannot be used.
    """
    self._check(groups)
    outcome = graph.Worker(self._nodes(groups), self.workdir, self.budget, self.console).run()
    for group in groups:
      if group.name in outcome.failed:
        self._fail(group, outcome.failed[group.name])
    if not outcome.is_complete:
      self.console.print(f'Out of budget: the same command goes on in {self.workdir}')
    return outcome

  def cells(self, split: str) -> list[BlockwiseCell]:
    """What is known of a split: measured on the models that there are now, or failed."""
    found = [cell for cell in cells.read(self.results, BlockwiseCell) if cell.split == split]
    models = {key: self.model_of(*key) for key in {(cell.k, cell.regime) for cell in found}}
    return [cell for cell in found if cell.error is not None or cell.models == models[cell.k, cell.regime]]

  def cells_of(self, groups: Sequence[Group]) -> list[BlockwiseCell]:
    """What is known of these cells."""
    places = {(*group.place, rule) for group in groups for rule in group.rules}
    known = [cell for split in {group.split: None for group in groups} for cell in self.cells(split)]
    return [cell for cell in known if (cell.k, cell.regime, cell.split, cell.rule) in places]

  def model_of(self, k: int, regime: str) -> str | None:
    """The hash of the finished model for a k and a regime; None where it, or what it came from, is to be made yet."""
    runs = [self.run(*key) for key in self._chain(k, regime)]
    return folders.content(runs[-1].workdir) if all(run.is_current for run in runs) else None

  def measuring(self, split: str) -> Measuring:
    """Measures models on a split."""
    if split not in self._measuring:
      with locked(pathlib.Path(self.experiment.data.cache) / 'lock'):  # prepared by one process
        self._measuring[split] = self._open(split)
    return self._measuring[split]

  def run(self, k: int, regime: str) -> Run:
    """The training run whose model serves a k and a regime."""
    if k > 1 and regime not in TUNED and self.experiment.heads_for(k).are_nested:
      k = max(self.experiment.table.ks)
    base = _base_of(k, regime)
    workdir = None if base is None else self.run(*base).workdir
    return Run(self._settings(regime), k, regime, workdir, self.workdir / _name(k, regime))

  def _open(self, split: str) -> Measuring:
    """Prepares the data of a split."""
    raise NotImplementedError

  def _settings(self, regime: str) -> Experiment:
    """Those of a run."""
    return self.experiment

  def _preparing(self, regime: str) -> list[graph.Node]:
    """The nodes that make what a regime trains on, the last of them it."""
    return []

  def _chain(self, k: int, regime: str) -> list[tuple[int, str]]:
    """A run, after all runs that it comes from."""
    base = _base_of(k, regime)
    return [*([] if base is None else self._chain(*base)), (k, regime)]

  def _nodes(self, groups: Iterable[Group]) -> list[graph.Node]:
    """Each after what it needs."""
    found: dict[str, graph.Node] = {}
    for group in groups:
      for key in self._chain(group.k, group.regime):
        found |= {node.name: node for node in (*self._preparing(key[1]), self._training(*key))}
      found[group.name] = self._cells(group)
    return list(found.values())

  def _training(self, k: int, regime: str) -> graph.Node:
    run = self.run(k, regime)
    needs = [run.base.name] if run.base else []
    needs += [node.name for node in self._preparing(regime)[-1:]]
    what = 'the base model' if k == 1 else f'heads for k = {run.k}'
    is_done = lambda: self.model_of(k, regime) is not None
    return graph.Node(run.workdir.name, f'training {what}, {regime}', tuple(needs), is_done, run.train)

  def _cells(self, group: Group) -> graph.Node:
    needs = (self.run(group.k, group.regime).workdir.name,)
    title = f'measuring k = {group.k}, {group.regime}, on the {group.split} set'
    is_done = lambda: self.model_of(group.k, group.regime) is not None and not self._missing(group)
    return graph.Node(group.name, title, needs, is_done, lambda _: self._measure(group))

  def _missing(self, group: Group) -> list[str]:
    """The rules whose cells have not been measured on the model that there is now."""
    model = self.model_of(group.k, group.regime)
    done = {
      cell.rule for cell in cells.read(self.results, BlockwiseCell)
      if cell.error is None and cell.models == model and (cell.k, cell.regime, cell.split) == group.place
    }  # fmt: skip
    return [rule for rule in group.rules if model is None or rule not in done]

  def _measure(self, group: Group) -> None:
    workdir = self.run(group.k, group.regime).workdir
    for cell in self.measuring(group.split).cells(workdir, group.k, group.regime, self._missing(group)):
      cells.append(self.results, cell)
      self.has_measured = True
      self.console.print(self.measuring(group.split).summary(cell))
      if self.budget.is_over:
        break

  def _fail(self, group: Group, reason: str) -> None:
    known = cells.latest(self.cells(group.split))
    for rule in self._missing(group):
      cell = BlockwiseCell(group.k, group.regime, rule, split=group.split, error=reason)
      if known.get(cell.key) != cell:
        cells.append(self.results, cell)

  def _check(self, groups: Iterable[Group]) -> None:
    """Raises UserError for what is wrong before any work."""
    cells.read(self.results, BlockwiseCell)  # it may be no table
    keys = {key: None for group in groups for key in self._chain(group.k, group.regime)}
    runs = self._checked([self.run(*key) for key in keys])
    for run in runs:
      run.check()
    is_finished = all(run.is_finished for run in runs)
    for split in {group.split: None for group in groups}:
      self.measuring(split).check(self.cells(split), self.results)
      if not is_finished:
        material = self.measuring(split).material
        material.train_batches()
        material.dev_batches()

  def _checked(self, runs: list[Run]) -> list[Run]:
    """All runs there will be, when these are to be made."""
    return runs


def _base_of(k: int, regime: str) -> tuple[int, str] | None:
  """What a run starts from, as (k, regime)."""
  frozen = 'distil' if regime in DISTILLED else 'regular'
  if k == 1:
    return (1, 'regular') if regime in DISTILLED else None
  return (k, frozen) if regime in TUNED else (1, frozen)


def _name(k: int, regime: str) -> str:
  """Of a run's folder."""
  if k == 1:
    return 'base' if regime == 'regular' else 'base-distil'
  return f'k{k}-{regime}'
