"""Measures one cell of `experiments.speculative`: acceptance, the costs of calls, and wall clock in
turn."""

import functools
import hashlib
import pathlib
from typing import Any

import jax

import fastdec as fd
from experiments.lab.against_plain import Comparison, batches_of, cost, joined, spaced
from experiments.lab.conditions import Conditions
from experiments.lab.packing import packed
from experiments.papers.leviathan2022.cells import SpecCell
from experiments.papers.leviathan2022.settings import MODELS, TRAINED, SpeculativeExperiment
from fastdec import folders
from fastdec.errors import UserError
from fastdec.evaluation.acceptance import accepted_share, betas, repeated_share
from fastdec.evaluation.calls import draft_calls, whole_calls, wide_calls
from fastdec.models.ngram import NGram
from fastdec.struct import Bound

FEW = 3  # texts, see `Comparison.clock`
SUCCESSORS = 64  # of a word that the bigram model lists


class SpeculativeMeasuring:
  """Measures draft models of a workdir on one split of an experiment's text.

  Args:
    experiment: whose `measure` says what.
    workdir: with the finished runs.
    conditions: what the figures depend on beside these, see `experiments.lab.conditions`.
  """

  def __init__(
    self, experiment: SpeculativeExperiment, workdir: pathlib.Path, conditions: Conditions
  ) -> None:
    config = experiment.measure
    self.experiment, self.config, self.workdir = experiment, config, workdir
    self.text = experiment.training('target').open()
    self.text.check_base(workdir / 'target')
    self.target = Bound(*packed(*folders.load(workdir / 'target')))
    prompts = experiment.prompts(self.text, self.target.module)
    count = len(prompts) if config.sentences == 0 else min(config.sentences, len(prompts))
    self.prompts = prompts[spaced(len(prompts), count)]
    self.timed = self.prompts[spaced(count, min(config.timed, count))]
    own = {'dtype': experiment.target.model.dtype, 'seed': experiment.seed}
    self.conditions = conditions | own | experiment.asked

  def cell(self, draft: str, temperature: float, plan: str, gamma: int, batch: int) -> SpecCell:
    """Measures one cell, of a draft (a key of `DRAFTS`) at this temperature; `gamma` at most, if
    the plan adapts it."""
    strategy = self._strategy(draft, temperature, gamma, plan == 'adaptive')
    plain = fd.Sample(temperature) if temperature else fd.Greedy()
    key = jax.random.key(self.experiment.seed) if temperature else None
    batches = batches_of(self.timed, batch, self.target.module.pad_id, key)
    comparison = Comparison(self.target, strategy, plain, batches, self.config.max_len)
    counts, theirs = comparison.counts
    if not (counts.later and theirs.later):
      raise UserError(
        'the target ends every text after one token, so nothing is drafted: train it for longer'
      )
    agreement = {} if temperature else comparison.agreement(self.experiment.target.model.dtype)
    steps, plain_steps = counts.steps, theirs.steps
    calls = self._calls(comparison, gamma, steps, plain_steps)
    clock = comparison.clock(self.config.repeats, calls, few=max(FEW // batch, 1))
    c, v = (cost(clock, name, steps, 'one call', plain_steps) for name in ('drafts', 'wide calls'))
    c = None if c is None else c / gamma
    is_model = draft in MODELS
    alpha = self.alpha(draft, temperature) if is_model else None
    speed, drafts = comparison.speed(clock), counts.drafts_per_call if is_model else float(gamma)
    return SpecCell(
      draft, temperature, plan, batch, gamma, alpha_beta=alpha,
      alpha_accepted=accepted_share(joined(comparison.ours), gamma) if is_model and plan != 'adaptive' else None,
      c=c, v=v, drafts_per_call=drafts,
      predicted=None if alpha is None or c is None or plan == 'adaptive' else fd.theory.speedup(alpha, gamma, c),
      predicted_width=None if c is None or v is None else speed['tokens_per_call'] / (v + drafts * c),
      models=self.models(draft), **speed, **agreement,
      conditions=self.conditions | {'repeated_4grams': repeated_share(joined(comparison.theirs))},
    )  # fmt: skip

  def models(self, draft: str) -> str:
    """A hash of what a cell is measured with: the target and, if it is a trained one, the draft
    model."""
    return models_hash(self.workdir, draft)

  @functools.lru_cache  # noqa: B019 (one object a process)
  def alpha(self, draft: str, temperature: float) -> float:
    """By beta, over the texts that the target writes for all prompts."""
    strategy = fd.Sample(temperature) if temperature else fd.Greedy()
    key = jax.random.key(self.experiment.seed) if temperature else None
    module, params = self.target
    texts = fd.decode(
      module, params, self.prompts, strategy, max_len=self.config.max_len, key=key
    ).checked()
    found = betas(tuple(self.target), tuple(self._draft(draft)), self.prompts, texts, temperature)
    return min(1.0, float(found.mean()))  # sums of probabilities may exceed 1 by rounding

  @functools.lru_cache  # noqa: B019
  def _draft(self, draft: str) -> Bound:
    if draft in TRAINED:
      return Bound(*packed(*folders.load(self.workdir / draft)))
    target = self.target.module
    successors = min(SUCCESSORS, target.vocab_size) if draft == 'bigram' else 0
    model = NGram(
      target.vocab_size, successors, target.eos_ids, target.pad_id, target.suppressed_ids
    )
    words = self.text.tokens('train').target
    return Bound(
      model, model.count([words[i] for i in range(len(words))], self.experiment.first_id(target))
    )

  def _strategy(self, draft: str, temperature: float, gamma: int, adaptive: bool) -> Any:
    if draft == 'lookup':
      return fd.PromptLookup(self.config.lookup, gamma + 1, temperature)
    return fd.Speculative(tuple(self._draft(draft)), gamma, temperature, adaptive=adaptive)

  def _calls(
    self, comparison: Comparison, gamma: int, steps: int, plain_steps: int
  ) -> dict[str, Any]:
    """The parts that the formulas reckon with, and how many of each a text takes."""
    plain, ours = comparison.state(comparison.plain), comparison.state(comparison.strategy)
    return {
      'one call': (whole_calls(self.target, comparison.plain, plain), plain_steps),
      'wide calls': (wide_calls(self.target, comparison.strategy, ours, gamma + 1), steps),
      'drafts': (draft_calls(self.target, comparison.strategy, ours), steps),
    }


def models_hash(workdir: pathlib.Path, draft: str) -> str:
  """See `SpeculativeMeasuring.models`."""
  parts = [
    folders.content(workdir / role) for role in ('target', *([draft] if draft in TRAINED else []))
  ]
  return hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]
