"""Measures the cells of `experiments.lookahead`: tokens a call over many texts, and the clock on
some of them."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import fastdec as fd
from experiments.lab.against_plain import Comparison, batches_of, counted, joined, spaced
from experiments.lab.conditions import Conditions
from experiments.lab.packing import packed
from experiments.papers.fu2024.cells import LookaheadCell
from experiments.papers.fu2024.settings import LookaheadExperiment
from fastdec import folders, struct
from fastdec.decoding.methods.lookahead import LookaheadDrafter
from fastdec.decoding.protocol import Drafter
from fastdec.evaluation.acceptance import repeated_share
from fastdec.struct import Bound

ROWS = 8  # texts at once, where nothing is timed
FEW = 3  # texts, see `Comparison.clock`
# prompt, output
LEARNT = {'window': (False, False), 'prompt': (True, False), 'output': (False, True)}


@struct.pytree
class Ablated(fd.Lookahead):
  """Lookahead that learns less: no n-grams of the prompt, or none of what is emitted."""

  reads_prompt: bool = struct.static(default=True)
  reads_text: bool = struct.static(default=True)

  @property
  def drafter(self) -> Drafter:
    return LookaheadDrafter(
      self.window, self.ngram, self.guesses, self.reads_prompt, self.reads_text, self.pool
    )


class LookaheadMeasuring:
  """Measures on one split of an experiment's text.

  Args:
    experiment: whose `measure` says what.
    model: the workdir of the finished run.
    conditions: what the figures depend on beside these, see `experiments.lab.conditions`.
  """

  def __init__(
    self, experiment: LookaheadExperiment, model: pathlib.Path, conditions: Conditions
  ) -> None:
    self.experiment, self.config, self.model = experiment, experiment.measure, model
    self.text = experiment.training().open()
    self.text.check_base(model)
    self.target = Bound(*packed(*folders.load(model)))
    self.prompts = self._some(experiment.prompts(self.text, self.target.module, self.config.split))
    self.timed = self.prompts[spaced(len(self.prompts), min(self.config.timed, len(self.prompts)))]
    self.dtype = self.target.module.config.dtype
    asked = experiment.asked | {'repeats': self.config.repeats}
    self.conditions = conditions | {'dtype': self.dtype, 'seed': experiment.seed} | asked

  def cells(self, plans: Sequence[LookaheadCell]) -> Iterator[LookaheadCell]:
    """Measures cells of one method, size and pool: tokens are counted once for all batch sizes,
    unless the plans have them; and timed, if the config asks for times."""
    strategy = self._strategy(plans[0])
    counts = {} if all(plan.tokens for plan in plans) else self._counted(strategy)
    for plan in plans:
      cell = plan if plan.tokens else dataclasses.replace(plan, **counts)
      repeated = {'repeated_4grams': cell.conditions['repeated_4grams']}
      timed = self._timed(strategy, cell.batch) if self.config.repeats else {}
      yield dataclasses.replace(cell, **timed, conditions=self.conditions | repeated)

  def _counted(self, strategy: Any) -> dict[str, Any]:
    """What is counted over all sentences."""
    whole = self._comparison(strategy, self.prompts, min(ROWS, len(self.prompts)))
    return {
      'nodes': strategy.drafter.nodes,
      'models': folders.content(self.model),
      'conditions': {'repeated_4grams': repeated_share(joined(whole.theirs))},
      **counted(whole, self.dtype),
    }

  def _timed(self, strategy: Any, batch: int) -> dict[str, Any]:
    """What is timed, in turn with greedy decoding."""
    timed = self._comparison(strategy, self.timed, batch)
    return timed.speed(timed.clock(self.config.repeats, {}, max(FEW // batch, 1)))

  def _comparison(self, strategy: Any, prompts: np.ndarray, batch: int) -> Comparison:
    batches = batches_of(prompts, batch, self.target.module.pad_id, None)
    return Comparison(self.target, strategy, fd.Greedy(), batches, self.config.max_len)

  def _strategy(self, plan: LookaheadCell) -> Any:
    if plan.method == 'jacobi':
      return fd.Jacobi(plan.ngram)
    pool = {'corpus': self._corpus, 'written': self._written}.get(plan.pool, lambda: None)
    if plan.method == 'lookup':
      return fd.PromptLookup(plan.ngram, plan.guesses + 1, pool=pool())
    sizes = plan.window, plan.ngram, plan.guesses
    if plan.pool in LEARNT:
      reads_prompt, reads_text = LEARNT[plan.pool]
      return Ablated(*sizes, reads_prompt=reads_prompt, reads_text=reads_text)
    return fd.Lookahead(*sizes, pool=pool())

  def _corpus(self) -> fd.NGramPool:
    """Of what people wrote, to train on."""
    words = self.text.tokens('train').target
    return self._pool([words[i] for i in range(len(words))])

  @functools.lru_cache  # noqa: B019 (one object a process)
  def _written(self) -> fd.NGramPool:
    """Of what the model writes for as many prompts of the dev set."""
    prompts = self._some(self.experiment.prompts(self.text, self.target.module, 'dev'))
    texts = joined(self._comparison(fd.Greedy(), prompts, min(ROWS, len(prompts))).ours)
    return self._pool(
      [row[:length] for row, length in zip(texts.tokens, texts.lengths, strict=True)]
    )

  def _pool(self, texts: Sequence[Any]) -> fd.NGramPool:
    config = self.config
    return fd.build_pool(texts, self.target.module, config.ngrams[0], config.guesses[0])

  def _some(self, prompts: np.ndarray) -> np.ndarray:
    """As many as are asked for, evenly spaced."""
    count = self.config.sentences or len(prompts)
    return prompts[spaced(len(prompts), min(count, len(prompts)))]
