"""What the strategies have in common whose guesses have no law: what they copy or remember is right
or not."""

from typing import Any

from fastdec import struct
from fastdec.decoding.protocol import Prompt, Rule
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.sampling import Sampling, greedy_or_sampling
from fastdec.decoding.strategy import LoopStrategy
from fastdec.heads.ngram_pool import NGramPool, check_is_pool
from fastdec.models.api import Model


class LawlessDrafts(LoopStrategy):
  """A strategy with the settings below, which its `__post_init__` settles: greedy at temperature 0,
  and above it one that accepts a guess where the model's own draw is the same.

  Whether temperature is 0 is part of the compiled program; above 0, the three numbers are arrays.
  """

  temperature: Any
  top_k: Any
  top_p: Any
  is_greedy: bool
  pool: NGramPool | None = None  # of those that have one

  def settle(self) -> None:
    """Makes arrays of temperature, top_k and top_p.

    Raises:
      UserError: one of them is out of range, or what is no pool.
    """
    struct.assign(self, **greedy_or_sampling(self.temperature, self.top_k, self.top_p))
    if self.pool is not None:
      check_is_pool(self.pool)

  @property
  def rule(self) -> Rule:
    return Exact() if self.is_greedy else Sampling(self.temperature, self.top_k, self.top_p)

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    if self.pool is not None:
      self.pool.check(model.vocab_size)
