"""Common part of strategies whose guesses have no law, as they are copied or remembered."""

from typing import Any

from fastdec import struct
from fastdec.decoding.protocol import Prompt, Rule
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.sampling import Sampling, greedy_or_sampling
from fastdec.decoding.strategy import LoopStrategy
from fastdec.heads.ngram_pool import NGramPool, check_is_pool
from fastdec.models.api import Model


class LawlessDrafts(LoopStrategy):
  """A strategy with the settings below, which its `__post_init__` settles.

  It is greedy at temperature 0; above, it accepts a guess that equals the model's own draw.
  Temperature 0 is another compiled program; above 0, the four numbers are arrays.
  """

  temperature: Any
  top_k: Any
  top_p: Any
  min_p: Any
  is_greedy: bool
  pool: NGramPool | None = None  # for strategies that have one

  def settle(self) -> None:
    """Makes arrays of temperature, top_k, top_p and min_p.

    Raises:
      UserError: one of them is out of range, or something else than a pool is given.
    """
    struct.assign(self, **greedy_or_sampling(self.temperature, self.top_k, self.top_p, self.min_p))
    if self.pool is not None:
      check_is_pool(self.pool)

  @property
  def rule(self) -> Rule:
    return (
      Exact() if self.is_greedy else Sampling(self.temperature, self.top_k, self.top_p, self.min_p)
    )

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    if self.pool is not None:
      self.pool.check(model.vocab_size)
