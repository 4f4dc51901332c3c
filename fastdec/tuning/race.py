"""Candidates timed in turn, batch by batch; the slower ones leave the race.

  round 0, batch 0    A B C D
  round 1, batch 1    B C D A       each round begins with another candidate
  round 2, batch 2    C D A B
  ...
  round 4, batch 4    A B C D       now D is slower than the fastest beyond its interval, and leaves
  round 5, batch 0    C A B

Two candidates are compared by the ratio of their tokens per second. A candidate's time for a batch
is the median of its visits there, so that a moment in which the machine was busy does not count.
The interval holds 95 % of 1000 bootstrap samples of the batches, so it is wide where texts differ
much. A race knows a candidate only as a function that decodes a batch.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from jaxtyping import Float

from fastdec.evaluation.wallclock import time_round

# Batches before a candidate is dropped or wins. With fewer, the chance that one of two equal
# candidates is the faster on all of them is above 5 %.
LEAST = 5
VISITS = 10  # of each batch; more rounds would add nothing
SAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Ratio:
  """One candidate's speed divided by another's, with the ends of its interval."""

  value: float
  low: float
  high: float


@dataclasses.dataclass
class Race:
  """The times measured so far.

  Attributes:
    plain: name of the candidate that never leaves: one token a call.
    batches: their number; round r decodes batch r % batches.
    seconds, tokens: for each candidate's name, by the rounds that it was in.
    running: names of the candidates still in the race.
    rounds: their number so far.
  """

  plain: str
  batches: int
  seconds: dict[str, dict[int, float]] = dataclasses.field(default_factory=dict)
  tokens: dict[str, dict[int, int]] = dataclasses.field(default_factory=dict)
  running: list[str] = dataclasses.field(default_factory=list)
  rounds: int = 0

  def join(self, names: Iterable[str]) -> None:
    """Lets candidates join, at the beginning or later."""
    for name in names:
      self.seconds[name], self.tokens[name] = {}, {}
      self.running.append(name)

  def run(self, entrants: Mapping[str, Callable[[int], int]]) -> None:
    """Times the running candidates on one batch, and drops those that are clearly slower.

    Args:
      entrants: for each name, a function from a batch's number to the number of tokens decoded.
    """
    batch = self.rounds % self.batches

    def decode(name: str) -> None:
      self.tokens[name][self.rounds] = entrants[name](batch)

    visits = {name: functools.partial(decode, name) for name in self.running}
    for name, seconds in time_round(visits, self.rounds).items():
      self.seconds[name][self.rounds] = seconds
    self.rounds += 1

    # Drop candidates that are slower than the fastest beyond noise, except the plain one.
    fastest = max(self.running, key=lambda name: self.compare(name, self.plain).value)
    running = []
    for name in self.running:
      has_seen_enough = min(self.count_batches(name), self.count_batches(fastest)) >= LEAST
      may_leave = name not in (fastest, self.plain) and has_seen_enough
      if not may_leave or self.compare(name, fastest).high >= 1:
        running.append(name)
    self.running = running

  def compare(self, name: str, other: str) -> Ratio:
    """Computes the ratio of tokens per second, `name` to `other`, over their common rounds."""
    rounds = self.seconds[name].keys() & self.seconds[other].keys()
    seconds, tokens = self._by_batch(name, rounds)
    other_seconds, other_tokens = self._by_batch(other, rounds)

    # Row 0 has the batches as they are, the others have bootstrap samples of them.
    count = len(seconds)
    samples = np.random.default_rng(0).integers(0, count, (SAMPLES, count))
    chosen = np.concatenate([np.arange(count)[None], samples])
    speeds = tokens[chosen].sum(-1) / seconds[chosen].sum(-1)
    other_speeds = other_tokens[chosen].sum(-1) / other_seconds[chosen].sum(-1)
    ratios = speeds / other_speeds
    low, high = np.percentile(ratios[1:], (2.5, 97.5))
    return Ratio(float(ratios[0]), float(low), float(high))

  def tokens_per_second(self, name: str) -> float:
    """Computes the speed over all batches that a candidate has visited."""
    seconds, tokens = self._by_batch(name, self.seconds[name].keys())
    return float(tokens.sum() / seconds.sum())

  def seconds_per_batch(self, name: str) -> float:
    """Computes the mean time of the batches that a candidate has visited."""
    return float(self._by_batch(name, self.seconds[name].keys())[0].mean())

  def count_batches(self, name: str) -> int:
    """Counts the batches that a candidate has visited."""
    return min(len(self.seconds[name]), self.batches)

  @property
  def is_over(self) -> bool:
    """True if more rounds would change nothing.

    That is so if only the plain candidate is left; if it and one other are left and both have seen
    every batch; or if all that are left have seen each batch `VISITS` times.
    """
    if len(self.running) == 1:
      return True
    fewest = min(len(self.seconds[name]) for name in self.running)
    if len(self.running) == 2:
      return fewest >= self.batches
    return fewest >= VISITS * self.batches

  def choose_winner(self) -> tuple[str, str]:
    """Returns the fastest that beats the plain one beyond noise, else the plain one; and why."""
    if len(self.seconds) == 1:
      return self.plain, f'{self.plain} is kept: there is no other candidate that keeps the promise'
    batches = self.count_batches(self.plain)
    if batches < LEAST:
      reason = 'the budget was enough for'
      if self.batches < LEAST:
        reason = 'there are'
      noun = 'batch' if batches == 1 else 'batches'
      return self.plain, (
        f'{self.plain} is kept: {reason} {batches} {noun} of prompts, too few to tell candidates'
        f' apart, which takes {LEAST}'
      )
    ahead = {}
    for name in self.running:
      ratio = self.compare(name, self.plain)
      if self.count_batches(name) >= LEAST and ratio.low > 1:
        ahead[name] = ratio
    if not ahead:
      return self.plain, f'{self.plain} is kept: nothing else was faster beyond noise'
    name = max(ahead, key=lambda name: ahead[name].value)
    best = ahead[name]
    return name, (
      f'{name} is {best.value:.2f} times as fast as {self.plain} ({best.low:.2f} to'
      f' {best.high:.2f})'
    )

  def _by_batch(self, name: str, rounds: Iterable[int]) -> Float[np.ndarray, '2 n']:
    """Returns the median seconds and mean tokens of each batch visited in these rounds."""
    visits: dict[int, list[int]] = {}
    for number in sorted(rounds):
      visits.setdefault(number % self.batches, []).append(number)
    seconds, tokens = [], []
    for numbers in visits.values():
      seconds.append(np.median([self.seconds[name][number] for number in numbers]))
      tokens.append(np.mean([self.tokens[name][number] for number in numbers]))
    return np.array([seconds, tokens])
