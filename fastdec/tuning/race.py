"""Strategies that decode the same batches in turn, and the comparison of their speeds.

  round 0, batch 0    A B C
  round 1, batch 1    B C A       each round begins with a different strategy
  round 2, batch 2    C A B

Two strategies are compared by the ratio of their tokens per second on the batches that both have
decoded. The time of a batch is the median of its rounds, so that a moment in which the machine was
busy does not count. The interval of a ratio holds 95 % of 1000 bootstrap samples of the batches; of
few batches it is wider than all their ratios by what a machine's times differ.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fastdec.decoding.decode import decode
from fastdec.decoding.methods.greedy import Greedy
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.strategy import LoopStrategy
from fastdec.evaluation import wallclock
from fastdec.struct import Bound
from fastdec.tuning.prompts import Batch

LEAST = 5  # batches of a bootstrap: two equal ones are rarely in the same order on all of them
NOISE = 1.1  # ratio of two times of the same work
SAMPLES = 1000
VISITS = 3  # of each batch; more would change little


@dataclasses.dataclass(frozen=True)
class Ratio:
  """The ratio of two speeds, with the ends of its interval."""

  value: float
  low: float
  high: float


class Shape(NamedTuple):
  """What a call reads of a row: a chain or a tree of tokens."""

  nodes: int = 1
  is_tree: bool = False

  def __str__(self) -> str:
    if self.nodes == 1:
      return 'one token'
    return f'a {"tree" if self.is_tree else "chain"} of {self.nodes}'


ONE = Shape()


@dataclasses.dataclass(frozen=True)
class Prediction:
  """What a candidate would need for the texts that were replayed.

  Attributes:
    speedup: over the plain strategy; 0: not predicted.
    shape: of a call.
    tokens_per_call: of a row, without the first token, which the prompt's call writes.
    steps: calls of each batch; it runs until its slowest row is done.
    draft: time of a step's draft, as in `Predictor`.
  """

  speedup: float = 0.0
  shape: Shape = ONE
  tokens_per_call: float = 1.0
  steps: tuple[int, ...] = ()
  draft: float = 0.0


@dataclasses.dataclass
class Candidate:
  """A strategy that decodes batches, and what is known of it.

  Attributes:
    name: of the strategy with its settings.
    target: the model.
    strategy: how it decodes.
    batches: the prompts.
    max_len: as in `decode`.
    texts: its first output for each batch, by the batch's number.
    seconds: of each batch, one entry a round.
    compile_seconds: time of the first batch, which compiles the program, and does not count.
    prediction: of its speed.
    note: why it was not predicted or not timed.
  """

  name: str
  target: Bound
  strategy: LoopStrategy
  batches: Sequence[Batch]
  max_len: int | None
  texts: dict[int, Decoded] = dataclasses.field(default_factory=dict)
  seconds: dict[int, list[float]] = dataclasses.field(default_factory=dict)
  compile_seconds: float = 0.0
  prediction: Prediction = Prediction()
  note: str = ''

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

  def seconds_of(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns the median time of each of these batches."""
    return np.array([np.median(self.seconds[number]) for number in numbers])

  def tokens_of(self, numbers: Sequence[int]) -> np.ndarray:
    """Returns the tokens of all rows in each of these batches."""
    return np.array([int(self.texts[number].lengths.sum()) for number in numbers])

  def agreement(self, plain: 'Candidate') -> float | None:
    """Returns the share of texts that `plain` wrote too; None if tokens are drawn."""
    both = self.texts.keys() & plain.texts.keys()
    if not isinstance(plain.strategy, Greedy):
      return None
    rows = [(self.texts[i].tokens == plain.texts[i].tokens).all(1) for i in both]
    return float(np.concatenate(rows).mean())

  @property
  def tokens_per_second(self) -> float:
    """Speed on all batches that were timed."""
    numbers = list(self.seconds)
    return float(self.tokens_of(numbers).sum() / self.seconds_of(numbers).sum())


def run_round(candidates: Sequence[Candidate], number: int) -> None:
  """Lets each candidate decode one batch; round after round they take the batches in turn."""
  batch = number % len(candidates[0].batches)
  visits = {}
  for place, candidate in enumerate(candidates):
    visits[place] = functools.partial(candidate.decode, batch)
  for place, seconds in wallclock.time_round(visits, number).items():
    candidates[place].seconds.setdefault(batch, []).append(seconds)


def compare(one: Candidate, other: Candidate) -> Ratio:
  """Computes the ratio of tokens per second on the batches that both have decoded."""
  both = [number for number in one.seconds if number in other.seconds]
  seconds, other_seconds = one.seconds_of(both), other.seconds_of(both)
  tokens, other_tokens = one.tokens_of(both), other.tokens_of(both)

  # Row 0 has the batches as they are, the others have bootstrap samples of them.
  count = len(both)
  samples = np.random.default_rng(0).integers(0, count, (SAMPLES, count))
  chosen = np.concatenate([np.arange(count)[None], samples])
  speeds = tokens[chosen].sum(1) / seconds[chosen].sum(1)
  other_speeds = other_tokens[chosen].sum(1) / other_seconds[chosen].sum(1)
  ratios = speeds / other_speeds
  low, high = np.percentile(ratios[1:], (2.5, 97.5))
  if count < LEAST:
    low, high = ratios.min() / NOISE, ratios.max() * NOISE
  return Ratio(float(ratios[0]), float(low), float(high))


def is_decided(candidates: Sequence[Candidate]) -> bool:
  """True if one is ahead of all others beyond noise, or if more rounds would change little."""
  batches = len(candidates[0].batches)
  rounds = min(sum(map(len, candidate.seconds.values())) for candidate in candidates)
  if rounds < min(LEAST, batches) and len(candidates) > 1:
    return False
  best = max(candidates, key=lambda candidate: compare(candidate, candidates[0]).value)
  is_ahead = all(compare(best, one).low > 1 for one in candidates if one is not best)
  return is_ahead or rounds >= VISITS * batches
