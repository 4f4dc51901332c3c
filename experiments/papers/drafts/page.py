"""The graph of `experiments.drafts`: one base, what it writes, every drafter on it, and their
cells.

base -> own (what it writes itself) -> heads, rooted, markov, block, block-2, eagle -> each its
cells
base, model -> the draft model's cells;   base -> prompt lookup's
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.lab import distillation, graph, self_distillation
from experiments.lab.captions import Captions
from experiments.lab.page import Group, Page
from experiments.lab.run import Run
from experiments.papers.drafts.cells import CHAINS, DRAFTERS, HEADS, NETWORKS, DraftCell
from experiments.papers.drafts.measure import DraftMeasuring, models_hash
from experiments.papers.drafts.run import DraftRun
from experiments.papers.drafts.sides import SideBySide
from fastdec import folders
from fastdec.errors import UserError
from fastdec.heads.transformed import Transformed
from fastdec.training.log import read_metrics

Curve = list[tuple[float, float]]  # training tokens, tokens a call


class DraftsPage(Page[DraftCell]):
  """See `Page`; also own/, with what the base writes. A base or own text that the config names is
  taken as it is."""

  kind = DraftCell
  experiment: SideBySide

  @property
  def base(self) -> pathlib.Path:
    """The workdir of the base."""
    return pathlib.Path(self.experiment.shared.base or self.workdir / 'base')

  @property
  def own(self) -> str:
    """The folder of what it writes, or several with commas between them."""
    return self.experiment.shared.data.own or str(self.workdir / 'own')

  @property
  def _settings(self) -> Any:
    """The base's model: of its folder, or as it is going to be."""
    if not (self.base / 'model' / 'config.json').is_file():
      return self.experiment.table.base
    model = folders.open(self.base).model
    found = (model.model if isinstance(model, Transformed) else model).config
    # which the text gives
    return dataclasses.replace(found, vocab_size=self.experiment.table.base.vocab_size)

  def groups(self) -> list[Group[DraftCell]]:
    """Every drafter as a chain, as shorter ones and as each tree, at each temperature; all batch
    sizes at once."""
    table, found = self.experiment.table, []
    for row in table.rows:
      shapes = [(0, short) for short in (0, *table.short)]
      if row not in CHAINS:
        shapes += [(tree, 0) for tree in table.nodes]
      for tree, short in shapes:
        for temperature in table.temperatures:
          plans = tuple(DraftCell(row, tree, temperature, batch, short) for batch in table.batches)
          shape = f'a tree of {tree}' if tree else f'a chain of {short or table.gamma}'
          title = f'{DRAFTERS[row]}, {shape}, temperature {temperature:g}'
          found.append(Group(plans[0].group, title, plans, tuple(self._needs(row))))
    return found

  def _needs(self, row: str) -> list[str]:
    base = [] if self.experiment.shared.base else ['base']
    return base if row == 'lookup' else [*base, row]

  def runs(self) -> list[Run]:
    """Those of models and heads; see `draft_runs`."""
    found = [] if self.experiment.shared.base else [self.base_run()]
    for row in self.experiment.table.rows:
      if row in HEADS:
        found.append(self.heads_run(row))
      elif row == 'model':
        found.append(Run(self.experiment.small(), 1, 'regular', None, self.workdir / row))
    return found

  def base_run(self) -> Run:
    return Run(self.experiment.base(), 1, 'regular', None, self.base)

  def heads_run(self, row: str) -> Run:
    training = self.experiment.heads(row, self._settings, self.own)
    return Run(training, self.experiment.table.gamma + 1, 'regular', self.base, self.workdir / row)

  def draft_runs(self) -> dict[str, DraftRun]:
    """Those of draft networks, by their rows."""
    rows = [row for row in self.experiment.table.rows if row in NETWORKS]
    return {
      row: DraftRun(self.experiment.draft(row, self.base, self.own), self.workdir / row)
      for row in rows
    }

  def check(self) -> None:
    if self.experiment.shared.base:
      folders.open(self.base)  # a mistake shows before any work
    for run in self.draft_runs().values():
      run.check()
    super().check()

  def prepare(self, run: Run) -> None:
    if run.k == 1:  # heads train on what the base writes
      super().prepare(run)

  @functools.cached_property
  def measuring(self) -> DraftMeasuring:
    """Measures the finished drafters."""
    rows = [row for row in self.experiment.table.rows if row != 'lookup']
    drafters = {row: self.workdir / row for row in rows}
    return DraftMeasuring(self.experiment, self.base, drafters, self.conditions)

  def models_of(self, plan: DraftCell) -> str | None:
    is_base = bool(self.experiment.shared.base) or self.base_run().is_current
    if not is_base:
      return None
    if plan.drafter == 'lookup':
      return models_hash(self.base, None)
    return (
      models_hash(self.base, self.workdir / plan.drafter)
      if self._is_trained(plan.drafter)
      else None
    )

  def _is_trained(self, row: str) -> bool:
    if row in NETWORKS:
      return self.draft_runs()[row].is_current
    runs = {run.workdir.name: run for run in self.runs()}
    return runs[row].is_current

  def nodes(self) -> list[graph.Node]:
    """A base and own text that the config names are no nodes."""
    shared, found = self.experiment.shared, []
    if not shared.base:
      found.append(self.training(self.base_run(), 'the base'))
    before = [node.name for node in found]
    if not shared.data.own:
      found.append(
        graph.Node(
          'own', 'writing text with the base', tuple(before), self._is_written, self._write
        )
      )
      before = ['own']
    for row in self.experiment.table.rows:
      if row in HEADS:
        found.append(self._heads_node(row, before))
      elif row in NETWORKS:
        found.append(self._draft_node(row, before))
      elif row == 'model':
        found.append(self.training(self.runs_by_name()[row], DRAFTERS[row]))
    return [*found, *self.group_nodes()]

  def runs_by_name(self) -> dict[str, Run]:
    return {run.workdir.name: run for run in self.runs()}

  def _heads_node(self, row: str, before: Sequence[str]) -> graph.Node:
    def train(budget: float | None) -> None:
      self.heads_run(row).train(budget)  # made now: the base, whose sizes they have, is there

    return graph.Node(
      row, f'training {DRAFTERS[row]}', tuple(before), lambda: self._is_trained(row), train
    )

  def _draft_node(self, row: str, before: Sequence[str]) -> graph.Node:
    run = self.draft_runs()[row]
    return graph.Node(
      row, f'training {DRAFTERS[row]}', tuple(before), lambda: run.is_current, run.train
    )

  def _is_written(self) -> bool:
    if self.experiment.task == 'lm':
      return self_distillation.is_written(pathlib.Path(self.own), self._wanted())
    return all((pathlib.Path(self.own) / name).is_file() for name in ('config.json', 'dev.json'))

  def _wanted(self) -> dict[str, object]:
    table = self.experiment.table
    try:
      return self_distillation.wanted(self.base, table.prompt, table.max_len)
    except UserError:  # the base is not there
      return {}

  def _write(self, budget: float | None) -> None:
    table, own = self.experiment.table, pathlib.Path(self.own)
    if self.experiment.task == 'translation':
      distillation.distill(self.experiment.writing(self._settings), self.base, own, budget)
      return
    text = self.experiment.base(self._settings).open()
    assert isinstance(text, Captions)
    data = self.experiment.data
    self_distillation.write(own, self.base, text, data, table.prompt, table.max_len, budget=budget)

  def measure(self, group: Group[DraftCell], missing: Sequence[DraftCell]) -> Iterator[DraftCell]:
    yield from self.measuring.cells(missing)

  def summary(self, cell: DraftCell) -> str:
    return f'batch {cell.batch}: {cell.tokens:.2f} tokens a call, measured {cell.speedup:.2f}x'

  def curves(self) -> dict[str, dict[str, Curve]]:
    """By row, then 'dev' and 'training': tokens a call of a chain on own text after so many
    training tokens."""
    found = {}
    for row, run in self.draft_runs().items():
      lines = read_metrics(run.workdir)
      known = {line['step']: line['eval'] for line in lines if 'eval' in line}
      if not known or not run.is_current:
        continue
      tokens = self.measuring.tokens_a_step(row)
      found[row] = {
        where: [(step * tokens, values[f'{where} tokens a call']) for step, values in known.items()]
        for where in ('dev', 'training')
      }
    return found
