"""Strategies that decode the same batches in turn, and the comparison of their speeds.

  round 0, batches 0 and 1    A B C
  round 1, batches 2 and 3    B C A       each round begins with a different strategy
  round 2, batches 4 and 5    C A B

Two strategies are compared round by round. The median of the ratios of their tokens per second
counts, so that a moment in which the machine was busy does not; its interval holds 95 % of the
medians of 1000 bootstrap samples of the rounds.
"""

import dataclasses
import statistics
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from fastdec.decoding.protocol import Decoded
from fastdec.decoding.request import Request
from fastdec.decoding.run import Run
from fastdec.evaluation import wallclock

LEAST = 5  # rounds: two equal ones are rarely in the same order in all of them


class Ratio(NamedTuple):
  """The ratio of two speeds, with the ends of its interval."""

  value: float
  low: float
  high: float


@dataclasses.dataclass
class Candidate:
  """A strategy that decodes batches, and what is known of it."""

  name: str
  request: Request  # of all prompts, in one width, so that all batches have one program
  batches: Int[np.ndarray, 'n b']  # rows of the request
  note: str = ''  # why it was not predicted or not timed
  # What was measured.
  compile_seconds: float = 0.0  # of decoding for the first time
  texts: dict[int, Decoded] = dataclasses.field(default_factory=dict)  # by the batch's number
  speeds: list[float] = dataclasses.field(default_factory=list)  # tokens per second, round by round
  # What was predicted, by the texts of the plain strategy.
  predicted: float = 0.0  # speed-up over the plain strategy; 0: not predicted
  tokens_per_call: float = 0.0  # without the first token, which the prompt's call writes
  steps: Any = ()  # for each batch, as in `count_steps`
  drafts: Any = ()  # their time for each batch, as in `Predictor`

  @property
  def strategy(self) -> Any:
    return self.request.strategy

  def decode(self, number: int = 0) -> None:
    """Decodes the batch of this number, and keeps its output. The first time also compiles."""
    begin, run = wallclock.now(), self.begin(number)
    run.advance()
    out = jax.tree.map(np.asarray, run.finish(run.decoded, run.prompt).checked())
    self.compile_seconds = self.compile_seconds or wallclock.now() - begin
    self.texts[number] = out

  def begin(self, number: int) -> Run:
    """Returns a run that decodes the batch of this number."""
    return Run.begin(self.request.take(self.batches[number]))


def run_round(candidates: Sequence[Candidate], number: int, together: int = 1) -> None:
  """Lets each candidate decode some batches; round after round they take the next ones in turn.

  `together` are decoded in a row, as users do it: the first one after another program is slower."""
  first, count = number * together, len(candidates[0].batches)
  batches = [(number % count,) for number in range(first, first + together)]
  visits = {place: candidate.decode for place, candidate in enumerate(candidates)}
  for place, seconds in wallclock.time_round(visits, number, batches).items():
    candidate = candidates[place]
    tokens = sum(int(candidate.texts[batch].lengths.sum()) for (batch,) in batches)
    candidate.speeds.append(tokens / len(batches) / seconds)


def count_steps(outs: Collection[Decoded]) -> tuple[float, Int[np.ndarray, ' n']]:
  """Returns the tokens of a call, and the steps of each batch, until its slowest row is done.

  The prompt's call, which writes a row's first token, does not count."""
  calls = np.stack([np.asarray(out.calls) for out in outs])
  tokens = np.stack([np.asarray(out.lengths) for out in outs]) - 1
  return tokens.sum() / max(calls.sum(), 1), calls.max(1)


def compare(one: Candidate, other: Candidate) -> Ratio:
  """Computes the ratio of speeds in rounds that both have run."""
  ratios = np.divide(one.speeds, other.speeds)
  samples = np.random.default_rng(0).choice(ratios, (1000, len(ratios)))
  low, high = np.percentile(np.median(samples, axis=1), (2.5, 97.5))
  return Ratio(statistics.median(ratios.tolist()), float(low), float(high))


def is_decided(candidates: Sequence[Candidate]) -> bool:
  """True if one is ahead of all others beyond noise."""
  best = max(candidates, key=lambda candidate: compare(candidate, candidates[0]).value)
  return all(compare(best, one).low > 1 for one in candidates if one is not best)
