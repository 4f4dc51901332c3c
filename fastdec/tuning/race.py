"""Candidates timed in turn, batch by batch; those that fall behind leave the race.

  round 0, batch 0    A B C D
  round 1, batch 1    B C D A       each round begins with another candidate
  round 2, batch 2    C D A B
  ...
  round 4, batch 4    A B C D       now D is slower than the fastest beyond its interval, and leaves
  round 5, batch 0    C A B

Two candidates are compared by the ratio of their tokens per second. A candidate's time for a batch
is the median of its visits there, so that a moment in which the machine was busy does not count.
The interval holds 95 % of 1000 samples that draw the batches anew (a bootstrap): it is as wide as
texts differ. A candidate is a function here, and nothing more is known of it.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from jaxtyping import Float

# Batches before anyone is dropped or wins. To lead on all of fewer by chance is likelier than 5 %.
LEAST = 5
VISITS = 10  # of each batch, after which more rounds would tell nothing new
SAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Ratio:
  """The speed of one candidate in that of another, with its interval."""

  value: float
  low: float
  high: float


@dataclasses.dataclass
class Race:
  """The times that were taken so far.

  Attributes:
    plain: the candidate that never leaves: one token a call.
    batches: how many there are; round r is about batch r % batches.
    seconds, tokens: of each candidate, by the rounds that it was in.
    running: those that are still in the race.
  """

  plain: str
  batches: int
  seconds: dict[str, dict[int, float]] = dataclasses.field(default_factory=dict)
  tokens: dict[str, dict[int, int]] = dataclasses.field(default_factory=dict)
  running: list[str] = dataclasses.field(default_factory=list)
  rounds: int = 0

  def join(self, names: Iterable[str]) -> None:
    """Lets candidates in, at the beginning or later."""
    for name in names:
      self.seconds[name], self.tokens[name] = {}, {}
      self.running.append(name)

  def run(
    self,
    entrants: Mapping[str, Callable[[int], int]],
    clock: Callable[[], float] = time.perf_counter,
  ) -> None:
    """Times one round of those that are running, and drops those that have fallen behind.

    Args:
      entrants: by name, a function that decodes the batch of a number, and returns its tokens.
      clock: seconds.
    """
    turn = self.rounds % len(self.running)
    for name in self.running[turn:] + self.running[:turn]:
      begun = clock()
      self.tokens[name][self.rounds] = entrants[name](self.rounds % self.batches)
      self.seconds[name][self.rounds] = clock() - begun
    self.rounds += 1
    fastest = max(self.running, key=lambda name: self.ratio(name, self.plain).value)
    self.running = [name for name in self.running if not self._is_behind(name, fastest)]

  def ratio(self, name: str, other: str) -> Ratio:
    """Computes the ratio of tokens per second, `name` to `other`, over their common rounds."""
    rounds = self.seconds[name].keys() & self.seconds[other].keys()
    ours, theirs = self._by_batch(name, rounds), self._by_batch(other, rounds)
    count = ours.shape[1]
    drawn = np.random.default_rng(0).integers(0, count, (SAMPLES, count))
    # the batches as they are, then the samples
    chosen = np.concatenate([np.arange(count)[None], drawn])
    speed, other_speed = (
      tokens[chosen].sum(-1) / seconds[chosen].sum(-1) for seconds, tokens in (ours, theirs)
    )
    ratios = speed / other_speed
    low, high = np.percentile(ratios[1:], (2.5, 97.5))
    return Ratio(float(ratios[0]), float(low), float(high))

  def tokens_per_second(self, name: str) -> float:
    """Computes the speed over all batches that a candidate has visited."""
    seconds, tokens = self._by_batch(name, self.seconds[name].keys())
    return float(tokens.sum() / seconds.sum())

  def seconds_per_batch(self, name: str) -> float:
    """Computes the mean time of the batches that a candidate has visited."""
    return float(self._by_batch(name, self.seconds[name].keys())[0].mean())

  def seen(self, name: str) -> int:
    """Counts the batches that a candidate has visited."""
    return min(len(self.seconds[name]), self.batches)

  @property
  def is_over(self) -> bool:
    """True if more rounds would change nothing.

    The plain one alone is left, or one beside it that has seen every batch, or those that are left
    have seen each batch often enough.
    """
    fewest = min(len(self.seconds[name]) for name in self.running)
    often = 1 if len(self.running) == 2 else VISITS
    return len(self.running) == 1 or fewest >= often * self.batches

  def winner(self) -> tuple[str, str]:
    """Returns the fastest that beats the plain one beyond noise, else the plain one; and why."""
    if len(self.seconds) == 1:
      return self.plain, f'{self.plain} is kept: there is no other candidate that keeps the promise'
    seen = self.seen(self.plain)
    if seen < LEAST:
      why = 'there are' if self.batches < LEAST else 'the budget was enough for'
      few = f'{seen} batches of prompts, too few to tell candidates apart, which takes {LEAST}'
      return self.plain, f'{self.plain} is kept: {why} {few}'
    known = [name for name in self.running if self.seen(name) >= LEAST]
    ahead = {name: ratio for name in known if (ratio := self.ratio(name, self.plain)).low > 1}
    if not ahead:
      return self.plain, f'{self.plain} is kept: nothing else was faster beyond noise'
    name = max(ahead, key=lambda name: ahead[name].value)
    best = ahead[name]
    return name, (
      f'{name} is {best.value:.2f} times as fast as {self.plain} ({best.low:.2f} to'
      f' {best.high:.2f})'
    )

  def _is_behind(self, name: str, fastest: str) -> bool:
    """True if a candidate has fallen behind, as far as is known."""
    if name in (fastest, self.plain) or self.seen(name) < LEAST or self.seen(fastest) < LEAST:
      return False
    return self.ratio(name, fastest).high < 1

  def _by_batch(self, name: str, rounds: Iterable[int]) -> Float[np.ndarray, '2 n']:
    """Returns seconds and tokens of the batches that were visited in these rounds."""
    visits: dict[int, list[int]] = {}
    for number in sorted(rounds):
      visits.setdefault(number % self.batches, []).append(number)
    seconds, tokens = [], []
    for numbers in visits.values():
      seconds.append(np.median([self.seconds[name][number] for number in numbers]))
      tokens.append(np.mean([self.tokens[name][number] for number in numbers]))
    return np.array([seconds, tokens])
