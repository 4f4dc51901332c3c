"""Compares a strategy with plain decoding: the texts of both, and their wall clock in turn, batch
by batch."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import fastdec as fd
from fastdec.decoding.loop import DecodeState
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.sizes import PROMPTS, choose_widths
from fastdec.errors import UserError
from fastdec.evaluation.agreement import check_gaps, find_gaps
from fastdec.evaluation.calls import decode_repeatedly
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.struct import Bound

Batches = Sequence[tuple[Any, Any]]  # prompts, as of `fd.decode`, and the key that they draw by
# The second program decodes MORE times as many texts; subtracting cancels the start-up cost.
MORE = 3


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A strategy and plain decoding, over the same prompts."""

  target: Bound
  strategy: Any  # drafts
  plain: Any  # decodes one token a call, at the same temperature
  batches: Batches
  max_len: int  # of a text

  @functools.cached_property
  def ours(self) -> list[Decoded]:
    """The strategy's texts."""
    return [self.decode(self.strategy, *batch).checked() for batch in self.batches]

  @functools.cached_property
  def theirs(self) -> list[Decoded]:
    """The plain texts."""
    return [self.decode(self.plain, *batch).checked() for batch in self.batches]

  @functools.cached_property
  def counts(self) -> tuple['Counts', 'Counts']:
    """The counts of the strategy's texts, then of the plain ones.

    Raises:
      UserError: every text ends after one token.
    """
    ours, theirs = Counts.of(self.ours), Counts.of(self.theirs)
    if not (ours.later and theirs.later):
      raise UserError(
        'the model ends every text after one token, so nothing is drafted: train it for longer'
      )
    return ours, theirs

  def agreement(self, dtype: str) -> dict[str, Any]:
    """Counts texts that equal plain decoding's, at temperature 0, by a target that computes in this
    type. Raises UserError if a text differs first at a place that is not a near tie."""
    parts = []
    for (prompts, _), ours, theirs in zip(self.batches, self.ours, self.theirs, strict=True):
      parts.append(find_gaps(tuple(self.target), prompts, ours, theirs))
    gaps, texts = np.concatenate(parts), self.counts[0].texts
    check_gaps(gaps, texts, dtype)
    largest = float(gaps.max()) if gaps.size else None
    return {'same_as_plain': 1 - len(gaps) / texts, 'parted': len(gaps), 'largest_gap': largest}

  def clock(
    self, rounds: int, calls: Mapping[str, tuple[Callable[[int], Any], int]], few: int = 1
  ) -> dict[str, Timing]:
    """Times whole texts ('plain' and 'ours'), the calls of a text ('plain calls' and 'ours calls')
    and other `calls` in turn, so that the machine treats all alike. These are by name a function
    that makes n calls, and their number in a text. The shorter program of a pair decodes `few`
    texts, more than 1 for small models, whose first calls find cold caches.

    Returns:
      Seconds of a text; those of its calls without the program's start.
    """
    functions: dict[str, Callable[..., Any]] = {}
    sizes = {'few': few, 'many': MORE * few}
    for name, strategy in (('plain', self.plain), ('ours', self.strategy)):
      functions[name] = functools.partial(self.decode, strategy)
      for size, times in sizes.items():
        functions[f'{name} calls, {size}'] = functools.partial(self._texts, strategy, times)
    for name, (run, count) in calls.items():
      for size, times in sizes.items():
        functions[f'{name}, {size}'] = lambda *_, run=run, count=count * times: run(count)
    timings = measure(functions, rounds, self.batches)
    # Programs are rarely reused; drop them before memory maps run out (about 200 programs).
    jax.clear_caches()
    clock = {name: timings[name] for name in ('plain', 'ours')}
    for name in ('plain calls', 'ours calls', *calls):
      net = np.subtract(timings[f'{name}, many'].seconds, timings[f'{name}, few'].seconds)
      clock[name] = Timing(tuple((net / ((MORE - 1) * few)).tolist()), 0.0)
    return clock

  def speed(self, clock: Mapping[str, Timing]) -> dict[str, Any]:
    """The fields of a row about speed: ratios of times for one token, because the two sides' texts
    may differ in length."""
    ours, theirs = self.counts
    seconds = {}
    for name, counts in (('ours', ours), ('plain', theirs)):
      tokens = counts.tokens / len(self.batches)  # of a batch
      seconds[name] = Timing(tuple(s / tokens for s in clock[name].seconds), 0.0)
    return {
      'tokens_per_call': ours.per_step / theirs.per_step,
      'speedup': seconds['ours'].speedup_over(seconds['plain']),
      'speedup_calls': cost(clock, 'plain calls', theirs.later, 'ours calls', ours.later) or None,
      'spread': seconds['ours'].speedups_over(seconds['plain']),
      'ms_per_token': seconds['ours'].milliseconds,
      'plain_ms_per_token': seconds['plain'].milliseconds,
      'texts': ours.texts,
    }

  def state(self, strategy: Any) -> DecodeState:
    """The state of a strategy after the prompts of the first batch."""
    prompts, key = self.batches[0]
    return self._texts(strategy, 0, prompts, key)

  def decode(self, strategy: Any, prompts: Any, key: Any) -> Decoded:
    """The texts of a strategy for a batch."""
    model, params = self.target
    return fd.decode(model, params, prompts, strategy, max_len=self.max_len, key=key)

  def _texts(self, strategy: Any, times: int, prompts: Any, key: Any) -> DecodeState:
    """Writes the texts `times` times in one program; 0: the state after the prompts."""
    return decode_repeatedly(self.target, strategy, prompts, self.max_len, key, times)


@dataclasses.dataclass(frozen=True)
class Counts:
  """Sums over batches of texts. A batch runs until its slowest row is done."""

  texts: int
  tokens: int
  later: int  # all tokens but the first of each text, which comes from the prompt
  steps: int  # steps of a batch, on average; at least 1
  per_step: float  # `later` tokens for each step of a batch
  drafts_per_call: float

  @classmethod
  def of(cls, texts: list[Decoded]) -> 'Counts':
    count = tokens = calls = drafts = steps = 0
    for batch in texts:
      count += len(batch.lengths)
      tokens += int(batch.lengths.sum())
      calls += int(batch.calls.sum())
      drafts += int(batch.draft_calls.sum())
      steps += int(batch.calls.max())
    later, of_batch = tokens - count, max(round(steps / len(texts)), 1)
    return cls(count, tokens, later, of_batch, later / max(steps, 1), drafts / max(calls, 1))


def count_all(whole: Comparison, dtype: str | None) -> dict[str, Any]:
  """The fields of a row about all texts: tokens a call and, unless `dtype` is None (above
  temperature 0), agreement with greedy decoding.

  Raises:
    UserError: the model drafts nothing, or a text differs first at a place that is not a near tie.
  """
  counts, tokens = whole.counts[0], join_texts(whole.ours).mean_block_size
  agreement = {} if dtype is None else whole.agreement(dtype)
  return {'tokens': tokens, 'all_texts': counts.texts, **agreement}


def cost(
  clock: Mapping[str, Timing], name: str, count: int, other: str, others: int
) -> float | None:
  """Returns what a call of the first kind, or one of its tokens, costs in calls of the second, by
  how many of each a text has; None if the timer cannot resolve the second. See `Comparison.clock`.
  """
  if min(clock[other].seconds) <= 0:
    return None
  return max(clock[other].speedup_over(clock[name]) * others / count, 0.0)


def make_batches(prompts: np.ndarray, batch: int, pad_id: int, key: Any) -> Batches:
  """Batches of `batch` prompts in order of length, each with a key; prompts that do not fill a
  batch are left out.

  A batch is as wide as its own prompts need: a translator's encoder would work on padding too.
  """
  lengths = count_tokens(prompts, pad_id)
  order = np.argsort(lengths, kind='stable')
  count = max(len(order) // batch, 1)
  chosen = np.resize(order, count * batch)
  keys = [None] * count if key is None else jax.random.split(key, count)
  batches = []
  for rows, key in zip(chosen.reshape(count, batch), keys, strict=True):
    width = int(choose_widths(PROMPTS, lengths[rows]).max())
    batches.append((prompts[np.sort(rows), :width], key))
  return batches


def count_tokens(prompts: np.ndarray, pad_id: int) -> np.ndarray:
  """Tokens of each prompt [n, s] before its padding. A prompt may begin with the id that pads, as
  captions do."""
  return prompts.shape[1] - (prompts[:, ::-1] != pad_id).argmax(1)


def run_batches(run: Callable[..., Any], rows: int, *arrays: Any) -> Any:
  """Calls run(*arrays) on batches of `rows` rows, and joins the results. The first rows also fill
  the last batch; their second results are dropped."""
  n = len(arrays[0])
  parts = []
  for chosen in np.resize(np.arange(n), (-(-n // rows), rows)):
    parts.append(jax.device_get(run(*(array[chosen] for array in arrays))))
  return jax.tree.map(lambda *each: np.concatenate(each)[:n], *parts)


def join_texts(texts: list[Decoded]) -> Decoded:
  """All batches' texts as one."""
  return jax.tree.map(lambda *parts: np.concatenate(parts), *texts)


def regroup(texts: list[Decoded], batch: int) -> list[Decoded]:
  """The same texts as batches of `batch` rows, whose calls do not depend on one another; those that
  do not fill a batch are left out, unless there are fewer."""
  whole = join_texts(texts)
  count, groups = len(whole.lengths), []
  for first in range(0, max(count - batch, 0) + 1, batch):
    groups.append(jax.tree.map(lambda x, first=first: x[first : first + batch], whole))
  return groups
