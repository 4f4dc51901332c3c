"""Measures Medusa heads: their trees on held-out text, then one cell after the other."""

import dataclasses
import functools
import hashlib
import pathlib

import numpy as np

import fastdec as fd
from experiments.lab.against_plain import Comparison, batches_of, joined, spaced
from experiments.lab.captions import prompts_of
from experiments.lab.conditions import Conditions
from experiments.lab.packing import packed
from experiments.papers.cai2024.cells import MedusaCell
from experiments.papers.cai2024.settings import MedusaExperiment
from fastdec import folders
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.evaluation import tree_calibration
from fastdec.evaluation.acceptance import repeated_share
from fastdec.struct import Bound
from fastdec.training.losses import dev_loss

ROWS = 64  # prompts at once, where nothing is timed


def models_hash(
  workdir: pathlib.Path, plan: MedusaCell, found: tree_calibration.Calibration
) -> str:
  """A hash of what a cell is measured with: the run, and the tree if it is a calibrated one."""
  run = folders.content(workdir / plan.stage)
  if plan.tree in ('chain', 'published'):
    return run
  return hashlib.sha256(f'{run} {found.tree.choices} {found.nodes}'.encode()).hexdigest()[:16]


class MedusaMeasuring:
  """Measures the finished runs of a workdir.

  Args:
    experiment: whose `measure` says what.
    workdir: with the runs.
    conditions: what the figures depend on beside these, see `experiments.lab.conditions`.
  """

  def __init__(
    self, experiment: MedusaExperiment, workdir: pathlib.Path, conditions: Conditions
  ) -> None:
    self.experiment, self.config, self.workdir = experiment, experiment.measure, workdir
    self.text = experiment.open()
    self.text.check_base(workdir / 'target')
    config = self.config
    prompts = prompts_of(self.text, config.split, config.prompt, self.text.model.config.bos_id)
    self.timed = prompts[spaced(len(prompts), min(config.timed, len(prompts)))]
    self.seen = set(
      map(
        tuple, prompts_of(self.text, 'train', config.prompt, self.text.model.config.bos_id).tolist()
      )
    )
    seen = sum(tuple(prompt) in self.seen for prompt in self.timed.tolist())
    own = {
      'dtype': experiment.model.dtype,
      'seed': experiment.seed,
      'seen_prompts': seen / len(self.timed),
    }
    self.conditions = conditions | experiment.asked | own

  def calibrate(self, stage: str, path: pathlib.Path) -> tree_calibration.Calibration:
    """Grows the tree of a stage's heads on the dev set, times its calls, and writes both."""
    target, heads = self._bound(stage)
    config = self.config
    prompts = prompts_of(self.text, 'dev', config.prompt, self.text.model.config.bos_id)
    prompts = prompts[spaced(len(prompts), min(config.calibrated, len(prompts)))].tolist()
    most = max(config.most, config.nodes)
    found = tree_calibration.calibrate(target, heads, prompts, most, config.max_len, ROWS)
    found = tree_calibration.timed(found, target, heads, prompts[0], config.max_len, config.repeats)
    found.save(path)
    return found

  def cell(self, plan: MedusaCell, found: tree_calibration.Calibration) -> MedusaCell:
    """Measures a cell, by the calibration of its heads."""
    target, heads = self._bound(plan.stage)
    choices = self._choices(plan.tree, heads, found)
    rule = (
      fd.Typical(self.config.typical, self.config.typical**0.5)
      if plan.tree == 'typical'
      else fd.Exact()
    )
    strategy = fd.Medusa(heads, choices, rule)
    batches = batches_of(self.timed, plan.batch, target.module.pad_id, None)
    comparison = Comparison(target, strategy, fd.Greedy(), batches, self.config.max_len)
    counts, theirs = comparison.counts
    if not (counts.later and theirs.later):
      raise UserError(
        'the model ends every text after one token, so nothing is drafted: train it for longer'
      )
    is_exact = plan.tree != 'typical'
    agreement = (
      comparison.agreement(self.experiment.model.dtype)
      if is_exact
      else {'same_as_plain': comparison.same}
    )
    clock = comparison.clock(self.config.repeats, {})
    return dataclasses.replace(
      plan, nodes=choices.n, depth=choices.max_depth,
      tokens_unseen=self._unseen(comparison), nll=self.nll(plan.stage),
      models=models_hash(self.workdir, plan, found), **comparison.speed(clock), **agreement,
      conditions=self.conditions | {'repeated_4grams': repeated_share(joined(comparison.theirs))},
    )  # fmt: skip

  @functools.lru_cache  # noqa: B019 (one object a process)
  def nll(self, stage: str) -> float:
    """The NLL of the dev set as people wrote it, in nats per token."""
    target = self._bound(stage)[0]
    return dev_loss(target.module, target.params, self.text.dev_batches())['nll']

  def _unseen(self, comparison: Comparison) -> float | None:
    """Tokens per call over the prompts that no text of the training begins with; None without
    any."""
    is_new = np.array(
      [tuple(row) not in self.seen for prompts, _ in comparison.batches for row in prompts.tolist()]
    )
    texts = joined(comparison.ours)
    calls = texts.calls[is_new].sum()
    return float((texts.lengths[is_new] - 1).sum() / calls) if calls else None

  def _bound(self, stage: str) -> tuple[Bound, Bound]:
    """Model and heads of a stage."""
    loaded = folders.load(self.workdir / stage), folders.load_heads(self.workdir / stage)
    model, heads = (Bound(*packed(*one)) for one in loaded)
    return model, heads

  def _choices(self, tree: str, heads: Bound, found: tree_calibration.Calibration) -> Topology:
    if tree == 'chain':
      return Topology.chain(heads.module.depth + 1)
    if tree == 'published':
      return Topology.from_choices(fd.medusa_choices(self.config.published))
    best = found.chosen if tree == 'fastest' else found.tree.cut(self.config.nodes)
    return Topology.from_choices(best.choices)
