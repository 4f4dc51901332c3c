"""Measures the drafters of a workdir: tokens a call and acceptance over a whole split, and the
clock on some of it."""

import dataclasses
import functools
import math
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import fastdec as fd
from experiments.lab.against_plain import (
  MORE,
  Comparison,
  batches_of,
  counted,
  joined,
  lengths_of,
  net,
  spaced,
)
from experiments.lab.captions import Captions, prompts_of
from experiments.lab.conditions import Conditions
from experiments.lab.decoding import padded_sources
from experiments.lab.packing import packed
from experiments.lab.settings import RunConfig
from experiments.lab.text import Text
from experiments.papers.drafts.cells import HEADS, DraftCell
from experiments.papers.drafts.sides import SideBySide
from fastdec import folders
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.sampling import Sampling
from fastdec.evaluation.acceptance import accepted_by_place, repeated_share
from fastdec.evaluation.calls import wide_calls
from fastdec.evaluation.tree_calibration import written_ranks
from fastdec.evaluation.tree_growth import grow
from fastdec.folders.drafts import draft_content, load_draft
from fastdec.packed import unpacked
from fastdec.struct import Bound
from fastdec.training.log import read_metrics

ROWS = 50  # texts at once, where nothing is timed
FEW = 3  # texts, see `Comparison.clock`
WIDTH = 8  # of EAGLE's trees: children of each node, and nodes of each level that are expanded
SAMPLE = 16  # batches that the tokens of a training step are counted on


class DraftMeasuring:
  """Measures finished drafters on one split.

  Args:
    page: whose `table` says what.
    base: the folder of the base.
    drafters: the workdir of each drafter that is trained, by its row.
    conditions: what the figures depend on beside these, see `experiments.lab.conditions`.
  """

  def __init__(
    self,
    page: SideBySide,
    base: pathlib.Path,
    drafters: Mapping[str, pathlib.Path],
    conditions: Conditions,
  ) -> None:
    self.page, self.table, self.base, self.drafters = page, page.table, base, drafters
    self.target = Bound(*packed(*folders.load(base)))
    self.text: Text = page.base(self.target.module.config).open()
    self.text.check_base(base)
    prompts = self._prompts(self.table.split)
    count = len(prompts) if self.table.sentences == 0 else min(self.table.sentences, len(prompts))
    self.prompts = prompts[spaced(len(prompts), count)]
    self.timed = self.prompts[spaced(count, min(self.table.timed, count))]
    self.dtype = self.target.module.config.dtype
    self.conditions = conditions | {'dtype': self.dtype, 'seed': page.shared.seed} | page.asked

  def cells(self, plans: Sequence[DraftCell]) -> Iterator[DraftCell]:
    """Measures cells of one drafter, tree and temperature: tokens are counted once for all batch
    sizes."""
    drafter, tree, temperature, _, short = plans[0].key
    strategy = self._strategy(drafter, tree, temperature, short or self.table.gamma)
    common = self._trained(drafter) | self._counted(strategy, tree, temperature)
    for plan in plans:
      yield dataclasses.replace(plan, **common, **self._clocked(strategy, temperature, plan.batch))

  def _counted(self, strategy: Any, tree: int, temperature: float) -> dict[str, Any]:
    """What is counted over all sentences."""
    whole = self._comparison(strategy, temperature, self.prompts, min(ROWS, len(self.prompts)))
    found = counted(whole, None if temperature else self.dtype)
    texts = joined(whole.ours)
    nodes = strategy.drafter.nodes
    accepted = None
    if not tree:
      shares = accepted_by_place(texts, nodes - 1)
      accepted = tuple(None if math.isnan(share) else share for share in shares)
    repeated = {'repeated_4grams': repeated_share(joined(whole.theirs))}
    return {'nodes': nodes, 'accepted': accepted, 'conditions': self.conditions | repeated, **found}

  def _clocked(self, strategy: Any, temperature: float, batch: int) -> dict[str, Any]:
    """What is timed, in turn with plain decoding."""
    timed = self._comparison(strategy, temperature, self.timed, batch)
    ours, theirs = timed.counts
    state, few = timed.state(strategy), max(FEW // batch, 1)
    calls = {
      'alone': (wide_calls(self.target, strategy, state, strategy.drafter.nodes), ours.steps)
    }
    clock = timed.clock(self.table.repeats, calls, few)

    def milliseconds(name: str, steps: int) -> float | None:
      found = 1e3 * float(np.median(net(clock, name))) / ((MORE - 1) * few * steps)
      return found if found > 0 else None  # the timer cannot resolve it

    call, alone = milliseconds('ours calls', ours.steps), milliseconds('alone', ours.steps)
    return {
      'call_ms': call,
      'draft_ms': None if call is None or alone is None else max(call - alone, 0.0),
      'plain_ms': milliseconds('plain calls', theirs.steps),
      **timed.speed(clock),
    }

  def _comparison(
    self, strategy: Any, temperature: float, prompts: np.ndarray, batch: int
  ) -> Comparison:
    plain = fd.Sample(temperature) if temperature else fd.Greedy()
    key = jax.random.key(self.page.shared.seed) if temperature else None
    batches = batches_of(prompts, batch, self.target.module.pad_id, key)
    return Comparison(self.target, strategy, plain, batches, self.table.max_len)

  def _strategy(self, drafter: str, tree: int, temperature: float, gamma: int) -> Any:
    k = gamma + 1
    if drafter == 'lookup':
      return fd.PromptLookup(self.table.lookup, k, temperature)
    draft = self._loaded(drafter)
    if drafter == 'model':
      return fd.Speculative(tuple(draft), gamma, temperature)
    if drafter == 'eagle':
      width, nodes = (WIDTH, tree) if tree else (1, None)
      return fd.Eagle(draft, gamma, width, nodes, temperature=temperature)
    if drafter not in HEADS:
      return fd.BlockDraft(draft, k, tree or None, temperature=temperature)
    rule = Sampling(temperature) if temperature else Exact()
    if not tree:
      return fd.Blockwise(draft, k, rule)
    choices = grow(self._ranks(drafter), tree).choices
    return fd.Medusa(draft, choices, rule) if choices else fd.Blockwise(draft, 1, rule)

  @functools.lru_cache  # noqa: B019 (one object a process)
  def _loaded(self, drafter: str) -> Bound:
    workdir = self.drafters[drafter]
    if drafter == 'model':
      return Bound(*packed(*folders.load(workdir)))
    if drafter in HEADS:
      return Bound(*packed(*folders.load_heads(workdir)))
    return Bound(*packed(*load_draft(workdir)))

  @functools.lru_cache  # noqa: B019
  def _ranks(self, drafter: str) -> Any:
    """The ranks of heads along what the base writes for the dev set, of which their trees are
    grown."""
    prompts = self._prompts('dev')
    chosen = prompts[spaced(len(prompts), min(self.table.calibrated, len(prompts)))]
    lengths = lengths_of(chosen, self.target.module.pad_id)
    rows = [row[:length].tolist() for row, length in zip(chosen, lengths, strict=True)]
    return written_ranks(self.target, self._loaded(drafter), rows, self.table.max_len, ROWS)

  @functools.lru_cache  # noqa: B019
  def _trained(self, drafter: str) -> dict[str, Any]:
    """What a drafter is, and what its training took."""
    if drafter == 'lookup':
      return {'models': models_hash(self.base, None), 'parameters': 0}
    workdir, run = self.drafters[drafter], self._run(drafter)
    lines = [line.get('train', {}) for line in read_metrics(workdir)]
    seconds = [line['seconds_per_step'] for line in lines if 'seconds_per_step' in line]
    params = jax.tree.leaves(unpacked(_learnt(self._loaded(drafter).params)))
    return {
      'models': models_hash(self.base, workdir),
      'parameters': sum(leaf.size for leaf in params),
      'training_tokens': round(run.steps * self.tokens_a_step(drafter)),
      'training_seconds': run.steps * statistics.median(seconds) if seconds else None,
    }

  @functools.lru_cache  # noqa: B019
  def tokens_a_step(self, drafter: str) -> float:
    """Tokens of the target's side in a step of its training, on average."""
    batches = self.text.train_batches(self._run(drafter).rows)
    return float(np.mean([(batches[i]['target_segment'] > 0).sum() for i in range(SAMPLE)]))

  def _run(self, drafter: str) -> RunConfig:
    return self.table.small_run if drafter == 'model' else self.page.shared.train

  def _prompts(self, split: str) -> np.ndarray:
    if isinstance(self.text, Captions):
      return prompts_of(self.text, split, self.table.prompt, self.text.model.config.bos_id)
    return padded_sources(self.text.tokens(split), self.target.module, f'of the {split} set')


def models_hash(base: pathlib.Path, drafter: pathlib.Path | None) -> str:
  """A hash of what a cell is measured with: the base, and the drafter in a workdir, if it is a
  trained one."""
  if drafter is None:
    return folders.content(base)
  if (drafter / 'draft').is_dir():
    return f'{folders.content(base)} {draft_content(drafter)}'
  return f'{folders.content(base)} {folders.content(drafter)}'


def _learnt(params: Any) -> Any:
  """Parameters without the list of a draft vocabulary and without what calibrates."""
  return {name: value for name, value in params.items() if name not in ('ids', 'warmth')}
