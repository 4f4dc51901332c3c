"""The pages of Stern et al. 2018: the graph behind its tables and figures.

  base (regular) -> heads on it (regular) -> heads and base together (finetune)

and, where a teacher translates the training text (`text_page`),

  teacher (another seed) -> distilled text -> base on it (distil) -> heads on it (distil) ->
  together (both)

and from every model its cells. In the workdir: base/, k<k>-<regime>/ and so on (one run each),
results.jsonl (one line a cell), and what the launchers make of it. Where the heads are nested (the
layout 'separate' with p1 the identity), one run with frozen heads for the largest k serves all;
with `table.one_run` one for the largest k does so in every regime.
"""

import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from experiments.lab import graph
from experiments.lab.conditions import Conditions
from experiments.lab.page import Group, Page
from experiments.lab.run import Run
from experiments.lab.settings import DISTILLED, TUNED, Experiment
from experiments.papers.stern2018.cells import UNTRAINED, BlockwiseCell
from fastdec import folders

# Conditions of cells, and the settings of the table that they were when a cell was measured.
AS_MEASURED = {
  'timing_rounds': 'repeats',
  'timing_sentences': 'timed',
  'timing_images': 'timed',
  'batch': 'rows',
}


class ModelCells(NamedTuple):
  """The cells of one model that a table asks for; without rules, the model alone."""

  k: int
  regime: str
  rules: tuple[str, ...]
  split: str
  kind: str = 'cells'

  @property
  def name(self) -> str:
    return f'{self.kind}-k{self.k}-{self.regime}-{self.split}'


class Measuring(Protocol):
  """Measures models on one split."""

  def check(self, done: Iterable[BlockwiseCell], path: pathlib.Path) -> None:
    """Raises UserError where a finished cell of this split, read from `path`, was measured on
    something else."""
    ...

  def cells(
    self, workdir: pathlib.Path, k: int, regime: str, rules: Sequence[str]
  ) -> Iterator[BlockwiseCell]:
    """One cell a rule, of a run's model with its first k heads; k = 1 is the model without
    heads."""
    ...

  def summary(self, cell: BlockwiseCell) -> str:
    """A cell in one line."""
    ...


class BlockwisePage(Page[BlockwiseCell]):
  """See `Page`; subclasses say how models are measured.

  Args:
    asked: the cells that a table or a figure shows, all of one split.
  """

  kind = BlockwiseCell
  shares_programs = True  # models for one k differ in their parameters alone
  experiment: Experiment

  def __init__(
    self,
    experiment: Experiment,
    workdir: pathlib.Path,
    budget: float | None,
    conditions: Conditions,
    asked: Sequence[ModelCells],
  ) -> None:
    super().__init__(experiment, workdir, budget, conditions)
    self.asked = asked
    (self.split,) = {one.split for one in asked}
    self._measuring: Measuring | None = None

  @property
  def measuring(self) -> Measuring:
    """Measures models on the split; its data is prepared by one process at a time."""
    if self._measuring is None:
      with self.data_lock():
        self._measuring = self.open()
    return self._measuring

  def open(self) -> Measuring:
    """Prepares the data of the split."""
    raise NotImplementedError

  def run(self, k: int, regime: str) -> Run:
    """The training run whose model serves a k and a regime; a forecast is the base's own."""
    if regime in UNTRAINED:
      return self.run(1, 'regular')
    table = self.experiment.table
    if k > 1 and (
      table.one_run or (regime not in TUNED and self.experiment.heads_for(k).are_nested)
    ):
      k = max(table.ks)
    base = _base_of(k, regime)
    workdir = None if base is None else self.run(*base).workdir
    return Run(self.settings(k, regime), k, regime, workdir, self.workdir / _folder_of(k, regime))

  def settings(self, k: int, regime: str) -> Experiment:
    """The settings of the run for a k and a regime."""
    return self.experiment

  def preparing(self, regime: str) -> list[graph.Node]:
    """Nodes that produce a regime's training data; the last one is the data itself."""
    return []

  def model_of(self, k: int, regime: str) -> str | None:
    """The hash of the finished model for a k and a regime; None where it, or what it came from, is
    to be made yet."""
    runs = [self.run(*key) for key in _chain(k, regime)]
    return folders.content(runs[-1].workdir) if all(run.is_current for run in runs) else None

  def models_of(self, plan: BlockwiseCell) -> str | None:
    return self.model_of(plan.k, plan.regime)

  def runs(self) -> list[Run]:
    """The runs of all models asked for, and the runs that they depend on."""
    keys = dict.fromkeys(key for one in self.asked for key in _chain(one.k, one.regime))
    return [self.run(*key) for key in keys]

  def nodes(self) -> list[graph.Node]:
    """The cells of a model come as soon as it is trained."""
    cells = {node.name: node for node in self.group_nodes()}
    found: dict[str, graph.Node] = {}
    for one in self.asked:
      for k, regime in _chain(one.k, one.regime):
        for node in (*self.preparing(regime), self._run_node(k, regime)):
          found[node.name] = node
      if one.name in cells:
        found[one.name] = cells[one.name]
    return list(found.values())

  def groups(self) -> list[Group[BlockwiseCell]]:
    found = []
    for one in self.asked:
      plans = tuple(BlockwiseCell(one.k, one.regime, rule, split=one.split) for rule in one.rules)
      if plans:
        title = f'measuring k = {one.k}, {one.regime}, on the {one.split} set'
        found.append(Group(one.name, title, plans, (self.run(one.k, one.regime).workdir.name,)))
    return found

  def measure(
    self, group: Group[BlockwiseCell], missing: Sequence[BlockwiseCell]
  ) -> Iterator[BlockwiseCell]:
    k, regime = group.plans[0].k, group.plans[0].regime
    for cell in self.measuring.cells(
      self.run(k, regime).workdir, k, regime, [plan.rule for plan in missing]
    ):
      yield cell
      if self.budget.is_over:
        break

  def summary(self, cell: BlockwiseCell) -> str:
    return self.measuring.summary(cell)

  def check_cells(self, done: Sequence[BlockwiseCell]) -> None:
    self.measuring.check(done, self.results)
    table = self.experiment.table
    for condition, name in AS_MEASURED.items():
      asked = getattr(table, name)
      there = {cell.conditions[condition] for cell in done if condition in cell.conditions} - {
        asked
      }
      if there:
        found = f'were measured with table.{name}={", ".join(map(str, sorted(there)))}'
        remedy = f'they are measured again where their lines are taken out of {self.results}'
        self.console.print(
          f'Finished cells {found}, and stay as they are with table.{name}={asked}: {remedy}'
        )

  def prepare(self, run: Run) -> None:
    # else a teacher is to write its text first
    if run.regime not in DISTILLED or self.experiment.distilled:
      super().prepare(run)

  def _run_node(self, k: int, regime: str) -> graph.Node:
    run = self.run(k, regime)
    needs = [run.base.name] if run.base else []
    needs += [node.name for node in self.preparing(regime)[-1:]]
    what = 'the base model' if k == 1 else f'heads for k = {run.k}'

    def is_done() -> bool:
      return self.model_of(k, regime) is not None

    return self.training(run, f'{what}, {regime}', needs, is_done)


def _chain(k: int, regime: str) -> list[tuple[int, str]]:
  """A run, after all runs that it comes from, as (k, regime)."""
  if regime in UNTRAINED:
    return [(1, 'regular')]
  base = _base_of(k, regime)
  return [*([] if base is None else _chain(*base)), (k, regime)]


def _base_of(k: int, regime: str) -> tuple[int, str] | None:
  """What a run starts from, as (k, regime)."""
  frozen = 'distil' if regime in DISTILLED else 'regular'
  if k == 1:
    return (1, 'regular') if regime in DISTILLED else None
  return (k, frozen) if regime in TUNED else (1, frozen)


def _folder_of(k: int, regime: str) -> str:
  """The name of a run's folder."""
  if k == 1:
    return 'base' if regime == 'regular' else 'base-distil'
  return f'k{k}-{regime}'
