"""Measures one cell of `experiments.lookahead`: tokens a call, and wall clock in turn with greedy decoding."""

import dataclasses
import functools
import pathlib
from typing import Any

import fastdec as fd
from experiments.lab.against_plain import Comparison, batches_of, joined, spaced
from experiments.lab.conditions import Conditions
from experiments.papers.fu2024.cells import LookaheadCell
from experiments.papers.fu2024.settings import LookaheadExperiment
from fastdec import folders, struct
from fastdec.decoding.methods.lookahead import LookaheadDrafter
from fastdec.decoding.protocol import Drafter
from fastdec.errors import UserError
from fastdec.evaluation.acceptance import repeated_share
from fastdec.struct import Bound

LEARNT = {'window': (False, False), 'prompt': (True, False), 'output': (False, True)}  # prompt, output


@struct.pytree
class Ablated(fd.Lookahead):
  """Lookahead that learns less: no n-grams of the prompt, or none of what is emitted."""

  reads_prompt: bool = struct.static(default=True)
  reads_text: bool = struct.static(default=True)

  @property
  def drafter(self) -> Drafter:
    return LookaheadDrafter(self.window, self.ngram, self.guesses, self.reads_prompt, self.reads_text, self.pool)


class LookaheadMeasuring:
  """Measures on one split of an experiment's text.

  Args:
    experiment: whose `measure` says what.
    model: the workdir of the finished run.
    conditions: what the figures depend on beside these, see `experiments.lab.conditions`.
  """

  def __init__(self, experiment: LookaheadExperiment, model: pathlib.Path, conditions: Conditions) -> None:
    self.experiment, self.config, self.model = experiment, experiment.measure, model
    self.text = experiment.training().open()
    self.text.check_base(model)
    self.target = Bound(*folders.load(model))
    prompts = experiment.prompts(self.text, self.target.module)
    self.timed = prompts[spaced(len(prompts), min(self.config.timed, len(prompts)))]
    self.dtype = self.target.module.config.dtype
    self.conditions = conditions | {'dtype': self.dtype, 'seed': experiment.seed} | experiment.asked

  def cell(self, plan: LookaheadCell) -> LookaheadCell:
    strategy = self._strategy(plan)
    batches = batches_of(self.timed, plan.batch, self.target.module.pad_id, None)
    comparison = Comparison(self.target, strategy, fd.Greedy(), batches, self.config.max_len)
    counts, theirs = comparison.counts
    if not (counts.later and theirs.later):
      raise UserError('the model ends every text after one token, so nothing is drafted: train it for longer')
    return dataclasses.replace(
      plan,
      nodes=strategy.drafter.nodes,
      tokens=joined(comparison.ours).mean_block_size,
      models=folders.content(self.model),
      **comparison.agreement(self.dtype),
      **comparison.speed(comparison.clock(self.config.repeats, {})),
      conditions=self.conditions | {'repeated_4grams': repeated_share(joined(comparison.theirs))},
    )

  def _strategy(self, plan: LookaheadCell) -> Any:
    if plan.method == 'jacobi':
      return fd.Jacobi(plan.ngram)
    if plan.method == 'lookup':
      return fd.PromptLookup(plan.ngram, plan.guesses + 1)
    sizes = plan.window, plan.ngram, plan.guesses
    if plan.pool in LEARNT:
      reads_prompt, reads_text = LEARNT[plan.pool]
      return Ablated(*sizes, reads_prompt=reads_prompt, reads_text=reads_text)
    return fd.Lookahead(*sizes, pool=self._corpus(plan.ngram, plan.guesses) if plan.pool == 'corpus' else None)

  @functools.lru_cache  # noqa: B019 (one object a process)
  def _corpus(self, ngram: int, guesses: int) -> fd.NGramPool:
    words = self.text.tokens('train').target
    return fd.build_pool([words[i] for i in range(len(words))], self.target.module, ngram, guesses)
