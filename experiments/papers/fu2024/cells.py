"""The cells of `experiments.lookahead`: one method at one size, its pool of one kind, at one batch size."""

import dataclasses

from experiments.lab.cells import AgainstPlain
from fastdec.errors import UserError

METHODS = {'lookahead': 'lookahead', 'jacobi': 'Jacobi', 'lookup': 'prompt lookup'}
POOLS = {  # what n-grams are learnt of; the window's own always are
  'all': 'window, prompt, output', 'window': 'window alone', 'prompt': 'window, prompt', 'output': 'window, output',
  'corpus': 'window, prompt, output, corpus',
}  # fmt: skip
Key = tuple[str, int, int, int, str, int]


@dataclasses.dataclass(frozen=True)
class LookaheadCell(AgainstPlain):
  """One measurement."""

  method: str  # a key of METHODS
  window: int  # of Jacobi and of prompt lookup: 0
  ngram: int  # of Jacobi: k; of prompt lookup: the longest suffix
  guesses: int  # of prompt lookup: tokens copied at most
  pool: str  # a key of POOLS
  batch: int
  nodes: int | None = None
  tokens: float | None = None  # per call of a row

  def __post_init__(self) -> None:
    if self.method not in METHODS or self.pool not in POOLS:
      known = f'known are {", ".join(METHODS)} and {", ".join(POOLS)}'
      raise UserError(f"a cell cannot have method '{self.method}' and pool '{self.pool}': {known}")

  @property
  def key(self) -> Key:
    return self.method, self.window, self.ngram, self.guesses, self.pool, self.batch

  @property
  def name(self) -> str:
    return f'{self.method}-w{self.window}-n{self.ngram}-g{self.guesses}-{self.pool}-b{self.batch}'
