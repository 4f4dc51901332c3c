"""What a rater sees: trials in an order, on sides and under addresses that tell nothing about the methods.

Everything follows from the study's secret, which never leaves the votes file, and from who the rater is: so it is the
same after a reload and after a restart, different for every rater, and nobody who sees the page can work it out.
"""

import functools
import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple

from experiments.papers.stern2018.voting.study import Trial

SIDES = ('left', 'right')
PICTURES = ('input', *SIDES)


class Shown(NamedTuple):
  """A trial as a rater gets it; `side` is where method 1 is."""

  trial: Trial
  side: str


class Blind:
  """The order, sides and addresses of all raters of a study."""

  def __init__(self, secret: bytes, trials: Sequence[Trial]):
    """`secret`: the study's 32 random bytes. `trials`: in the same order at every start."""
    self._secret = secret
    self._trials = tuple(trials)
    self.order = functools.lru_cache(maxsize=256)(self._order)

  def _order(self, rater: str) -> tuple[Shown, ...]:
    """All trials in this rater's order; the page knows them by their place in it, from 0."""
    keyed = sorted((self._digest('order', rater, *trial), trial) for trial in self._trials)
    return tuple(Shown(trial, SIDES[digest[-1] & 1]) for digest, trial in keyed)

  def token(self, rater: str, place: int, picture: str) -> str:
    """What has to stand in the address of a picture (one of PICTURES): 32 hex digits, its own for every trial."""
    return self._digest('picture', rater, place, picture).hex()[:32]

  def picture(self, rater: str, place: int, token: str) -> str | None:
    """Which of PICTURES an address means, or None if it was never given to this rater."""
    named = (name for name in PICTURES if hmac.compare_digest(self.token(rater, place, name).encode(), token.encode()))
    return next(named, None)

  def _digest(self, *words: object) -> bytes:
    return hmac.digest(self._secret, repr(words).encode(), hashlib.sha256)
