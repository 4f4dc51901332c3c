"""Measures one cell of `experiments.speculative`: acceptance, the costs of calls, and wall clock in turn."""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import fastdec as fd
from experiments import cli
from experiments.speculation import MODELS, TRAINED, SpeculativeExperiment
from experiments.speculative_calls import draft_calls, plain_calls, start, text, wide_calls
from fastdec import folders
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.evaluation.acceptance import accepted_share, betas, repeated_share
from fastdec.evaluation.parting import check_partings, partings
from fastdec.evaluation.speculation import SpecCell
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.models.ngram import NGram
from fastdec.struct import Bound

SUCCESSORS = 64  # of a word that the bigram model lists


class Measuring:
  """Measures draft models of a workdir on one split of an experiment's text.

  Args:
    experiment: whose `measure` says what.
    workdir: with the finished runs.
  """

  def __init__(self, experiment: SpeculativeExperiment, workdir: pathlib.Path) -> None:
    config = experiment.measure
    self.experiment, self.config, self.workdir = experiment, config, workdir
    self.text = experiment.training('target').open()
    self.target = Bound(*folders.load(workdir / 'target'))
    prompts = experiment.prompts(self.text, self.target.module)
    count = len(prompts) if config.sentences == 0 else min(config.sentences, len(prompts))
    self.prompts = prompts[_spaced(len(prompts), count)]
    self.timed = self.prompts[_spaced(count, min(config.timed, count))]
    conditions = cli.conditions(cli.config_string(), experiment.target.model.dtype, 0, experiment.seed)
    del conditions['batch']  # a field of the cells
    self.conditions = conditions | experiment.asked

  def cell(self, draft: str, temperature: float, plan: str, gamma: int, batch: int) -> SpecCell:
    """Measures one cell, of a draft (a key of `DRAFTS`) at this temperature; `gamma` at most, if the plan adapts it."""
    strategy = self._strategy(draft, temperature, gamma, plan == 'adaptive')
    plain = fd.Sample(temperature) if temperature else fd.Greedy()
    batches = self._batches(batch, bool(temperature))
    spec_texts = [self._decode(strategy, *one) for one in batches]
    plain_texts = [self._decode(plain, *one) for one in batches]
    spec, reference = _Texts.of(spec_texts), _Texts.of(plain_texts)
    if not (spec.later and reference.later):
      raise UserError('the target ends every text after one token, so nothing is drafted: train it for longer')
    agreement = {} if temperature else self._agreement(batches, spec_texts, plain_texts)
    clock = self._clock(strategy, plain, gamma, batches)
    c, v = (_cost(clock, name) for name in ('drafts', 'wide calls'))
    c = None if c is None else c / gamma
    is_model = draft in MODELS
    alpha = self.alpha(draft, temperature) if is_model else None
    tokens_per_call = spec.per_step / reference.per_step
    drafts = spec.drafts_per_call if is_model else float(gamma)
    rates = {
      name: Timing(tuple(s * len(batches) / texts.tokens for s in clock[name].seconds), 0.0)
      for name, texts in (('spec', spec), ('plain', reference))
    }
    ratios = [b / a for a, b in zip(rates['spec'].seconds, rates['plain'].seconds, strict=True)]
    return SpecCell(
      draft, temperature, plan, batch, gamma, alpha_beta=alpha,
      alpha_accepted=accepted_share(_joined(spec_texts), gamma) if is_model and plan != 'adaptive' else None,
      c=c, v=v, tokens_per_call=tokens_per_call, drafts_per_call=drafts,
      predicted=None if None in (alpha, c) or plan == 'adaptive' else fd.theory.speedup(alpha, gamma, c),
      predicted_width=None if None in (c, v) else tokens_per_call / (v + drafts * c),
      speedup=rates['spec'].speedup_over(rates['plain']),
      speedup_calls=_calls_alone(clock, spec, reference), spread=(min(ratios), max(ratios)),
      ms_per_token=rates['spec'].milliseconds,
      plain_ms_per_token=rates['plain'].milliseconds,
      texts=spec.texts, models=self.models(draft), **agreement,
      conditions=self.conditions | {'repeated_4grams': repeated_share(_joined(plain_texts))},
    )  # fmt: skip

  def models(self, draft: str) -> str:
    """A hash of what a cell is measured with: the target and, if it is a trained one, the draft model."""
    return models_hash(self.workdir, draft)

  @functools.lru_cache  # noqa: B019 (one object a process)
  def alpha(self, draft: str, temperature: float) -> float:
    """By beta, over the texts that the target writes for all prompts."""
    strategy = fd.Sample(temperature) if temperature else fd.Greedy()
    texts = self._decode(strategy, self.prompts, jax.random.key(self.experiment.seed) if temperature else None)
    found = betas(tuple(self.target), tuple(self._draft(draft)), self.prompts, texts, temperature)
    return min(1.0, float(found.mean()))  # sums of probabilities may exceed 1 by rounding

  @functools.lru_cache  # noqa: B019
  def _draft(self, draft: str) -> Bound:
    if draft in TRAINED:
      return Bound(*folders.load(self.workdir / draft))
    target = self.target.module
    successors = min(SUCCESSORS, target.vocab_size) if draft == 'bigram' else 0
    model = NGram(target.vocab_size, successors, target.eos_ids, target.pad_id, target.suppressed_ids)
    words = self.text.tokens('train').target
    return Bound(model, model.count([words[i] for i in range(len(words))], self.experiment.first_id(target)))

  def _strategy(self, draft: str, temperature: float, gamma: int, adaptive: bool) -> Any:
    if draft == 'lookup':
      return fd.PromptLookup(self.config.lookup, gamma + 1, temperature)
    return fd.Speculative(tuple(self._draft(draft)), gamma, temperature, adaptive=adaptive)

  def _batches(self, batch: int, is_sampled: bool) -> list[tuple[np.ndarray, Any]]:
    """Prompts [batch, s] with their keys, in order of length; what does not fill a batch is left out."""
    order = np.argsort((self.timed != self.target.module.pad_id).sum(1), kind='stable')
    count = max(len(order) // batch, 1)
    chosen = np.resize(order, count * batch)
    keys = jax.random.split(jax.random.key(self.experiment.seed), count) if is_sampled else [None] * count
    return [(self.timed[np.sort(rows)], key) for rows, key in zip(chosen.reshape(count, batch), keys, strict=True)]

  def _decode(self, strategy: Any, prompts: np.ndarray, key: Any) -> Decoded:
    return fd.decode(*self.target, prompts, strategy, max_len=self.config.max_len, key=key)

  def _agreement(
    self, batches: list[tuple[np.ndarray, Any]], spec: list[Decoded], plain: list[Decoded]
  ) -> dict[str, Any]:
    """The fields of a greedy cell about plain greedy decoding.

    Raises:
      UserError: texts part where there is no near tie.
    """
    parts = [
      partings(tuple(self.target), prompts, ours, theirs)
      for (prompts, _), ours, theirs in zip(batches, spec, plain, strict=True)
    ]
    gaps, texts = np.concatenate(parts), sum(len(one.lengths) for one in plain)
    check_partings(gaps, texts, self.experiment.target.model.dtype)
    largest = float(gaps.max()) if gaps.size else None
    return {'same_as_plain': 1 - len(gaps) / texts, 'parted': len(gaps), 'largest_gap': largest}

  def _clock(self, strategy: Any, plain: Any, gamma: int, batches: list[tuple[np.ndarray, Any]]) -> dict[str, Timing]:
    """Whole texts, texts without their prompts, and single calls, in turn: all meet the same speed of the machine."""
    calls, max_len = -(-self.config.calls // len(batches)), self.config.max_len
    after_plain, after = (start(self.target, one, batches[0][0], max_len, batches[0][1]) for one in (plain, strategy))
    costs = {
      'one call': plain_calls(self.target, plain, after_plain),
      'wide calls': wide_calls(self.target, strategy, after, gamma + 1),
      'drafts': draft_calls(self.target, strategy, after),
    }
    functions = {}
    for name, one in (('plain', plain), ('spec', strategy)):
      functions[name] = lambda prompts, key, one=one: self._decode(one, prompts, key)
      for times, steps in (('', max_len), (', none', 0)):
        functions[f'{name} calls{times}'] = lambda prompts, key, one=one, steps=steps: text(
          self.target, one, prompts, max_len, key, steps
        )
    for name, run in costs.items():
      functions |= {name: lambda *_, run=run: run(calls), f'{name}, none': lambda *_, run=run: run(0)}
    return measure(functions, self.config.repeats, batches)


@dataclasses.dataclass(frozen=True)
class _Texts:
  """What a strategy wrote, in sums over batches: a batch takes as many steps as the row that needs most."""

  texts: int
  tokens: int
  later: int  # tokens after the first ones, which come of the prompts
  per_step: float  # later tokens for each step of a batch
  drafts_per_call: float

  @classmethod
  def of(cls, texts: list[Decoded]) -> '_Texts':
    lengths = sum(int(one.lengths.sum()) for one in texts)
    count, steps = sum(len(one.lengths) for one in texts), sum(int(one.calls.max()) for one in texts)
    calls, drafts = (sum(int(getattr(one, name).sum()) for one in texts) for name in ('calls', 'draft_calls'))
    later = lengths - count
    return cls(count, lengths, later, later / max(steps, 1), drafts / max(calls, 1))


def models_hash(workdir: pathlib.Path, draft: str) -> str:
  """See `Measuring.models`."""
  parts = [folders.content(workdir / role) for role in ('target', *([draft] if draft in TRAINED else []))]
  return hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]


def _net(clock: Mapping[str, Timing], name: str) -> np.ndarray:
  """Seconds of the calls alone, round by round: what the same program takes without any is taken off."""
  return np.subtract(clock[name].seconds, clock[f'{name}, none'].seconds)


def _cost(clock: Mapping[str, Timing], name: str) -> float | None:
  """In plain calls of the target; None where the clock is too coarse for that."""
  ones, cost = _net(clock, 'one call'), _net(clock, name)
  return float(np.median(cost / ones)) if min(ones.min(), cost.min()) > 0 else None


def _calls_alone(clock: Mapping[str, Timing], spec: _Texts, plain: _Texts) -> float | None:
  """The ratio of the times that the calls take for a token; None where the clock is too coarse for that."""
  took = {name: _net(clock, f'{name} calls') / texts.later for name, texts in (('spec', spec), ('plain', plain))}
  if min(map(np.min, took.values())) <= 0:
    return None
  return float(np.median(took['plain'] / took['spec']))


def _joined(texts: list[Decoded]) -> Decoded:
  return jax.tree.map(lambda *parts: np.concatenate(parts), *texts)


def _spaced(total: int, count: int) -> np.ndarray:
  return np.linspace(0, total - 1, count).round().astype(int)
