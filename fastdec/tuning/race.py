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
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fastdec.decoding.decode import decode
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.strategy import LoopStrategy
from fastdec.evaluation import wallclock
from fastdec.struct import Bound
from fastdec.tuning.prompts import Batch

LEAST = 5  # rounds: two equal ones are rarely in the same order in all of them
SAMPLES = 1000


class Ratio(NamedTuple):
  """The ratio of two speeds, with the ends of its interval."""

  value: float
  low: float
  high: float


class Shape(NamedTuple):
  """What a call reads of a row: a chain or a tree of tokens."""

  nodes: int
  is_tree: bool = False

  def __str__(self) -> str:
    return f'{self.nodes} token' + 's' * (self.nodes > 1) + ' in a tree' * self.is_tree


ONE = Shape(1)


@dataclasses.dataclass
class Candidate:
  """A strategy that decodes batches, and what is known of it."""

  name: str
  target: Bound
  strategy: LoopStrategy
  batches: Sequence[Batch]
  max_len: int | None
  note: str = ''  # why it was not predicted or not timed
  # What was measured.
  compile_seconds: float = 0.0  # of decoding the first batch, which compiles the program
  texts: dict[int, Decoded] = dataclasses.field(default_factory=dict)  # by the batch's number
  speeds: list[float] = dataclasses.field(default_factory=list)  # tokens per second, round by round
  # What was predicted, by the texts of the plain strategy.
  predicted: float = 0.0  # speed-up over the plain strategy; 0: not predicted
  tokens_per_call: float = 0.0  # without the first token, which the prompt's call writes
  shape: Shape = ONE
  steps: Sequence[int] = ()  # for each batch: it runs until its slowest row is done
  drafts: Any = ()  # their time for each batch, as in `Predictor`

  def compile(self) -> None:
    """Decodes the first batch, so that the program exists."""
    begin = wallclock.now()
    self.decode(0)
    self.compile_seconds = wallclock.now() - begin

  def decode(self, number: int) -> None:
    """Decodes the batch of this number, and keeps its first output."""
    model, params = self.target
    batch = self.batches[number]
    out = decode(
      model, params, batch.inputs, self.strategy, batch.lengths, max_len=self.max_len,
      key=batch.keys,
    )  # fmt: skip
    jax.block_until_ready(out.tokens)
    if number not in self.texts:
      self.texts[number] = jax.tree.map(np.asarray, out.checked())


def run_round(candidates: Sequence[Candidate], number: int, together: int = 1) -> None:
  """Lets each candidate decode some batches; round after round they take the next ones in turn.

  `together` are decoded in a row, as users do it: the first one after another program is slower."""
  first, count = number * together, len(candidates[0].batches)
  batches = [(number % count,) for number in range(first, first + together)]
  visits = {}
  for place, candidate in enumerate(candidates):
    visits[place] = candidate.decode
  for place, seconds in wallclock.time_round(visits, number, batches).items():
    candidate = candidates[place]
    tokens = sum(int(candidate.texts[batch].lengths.sum()) for (batch,) in batches)
    candidate.speeds.append(tokens / len(batches) / seconds)


def compare(one: Candidate, other: Candidate) -> Ratio:
  """Computes the ratio of speeds in rounds that both have run."""
  ratios = np.divide(one.speeds, other.speeds)
  samples = np.random.default_rng(0).choice(ratios, (SAMPLES, len(ratios)))
  low, high = np.percentile(np.median(samples, axis=1), (2.5, 97.5))
  return Ratio(statistics.median(ratios.tolist()), float(low), float(high))


def is_decided(candidates: Sequence[Candidate]) -> bool:
  """True if one is ahead of all others beyond noise."""
  best = max(candidates, key=lambda candidate: compare(candidate, candidates[0]).value)
  return all(compare(best, one).low > 1 for one in candidates if one is not best)
