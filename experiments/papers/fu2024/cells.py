"""The cells of `experiments.lookahead`: one method at one size, its pool of one kind, at one batch
size."""

import dataclasses

from experiments.lab.cells import AgainstPlain
from fastdec.errors import UserError

METHODS = {'lookahead': 'lookahead', 'jacobi': 'Jacobi', 'lookup': 'prompt lookup'}
POOLS = {  # what n-grams are learnt of; the window's own always are
  'all': 'window, prompt, output', 'window': 'window alone', 'prompt': 'window, prompt', 'output': 'window, output',
  'written': 'window, prompt, output, earlier outputs', 'corpus': 'window, prompt, output, corpus',
}  # fmt: skip
FOREIGN = ('written', 'corpus')  # pools of other texts, which prompt lookup takes too


@dataclasses.dataclass(frozen=True)
class LookaheadCell(AgainstPlain):
  """One measurement. Tokens a call and agreement are of all sentences, whatever the batch size. A
  cell without a speed-up has been counted and not timed."""

  method: str  # a key of METHODS
  window: int  # of Jacobi and of prompt lookup: 0
  ngram: int  # of Jacobi: k; of prompt lookup: the longest suffix
  guesses: int  # of prompt lookup: tokens copied at most
  pool: str  # a key of POOLS
  batch: int
  nodes: int | None = None
  tokens: float | None = None  # per call of a row
  all_texts: int | None = None  # that tokens and agreement are of

  def __post_init__(self) -> None:
    if self.method not in METHODS or self.pool not in POOLS:
      known = f'known are {", ".join(METHODS)} and {", ".join(POOLS)}'
      raise UserError(f"a cell cannot have method '{self.method}' and pool '{self.pool}': {known}")

  @property
  def key(self) -> tuple[str, int, int, int, str, int]:
    return self.method, self.window, self.ngram, self.guesses, self.pool, self.batch

  @property
  def group(self) -> str:
    """The name of what is measured at once: all batch sizes."""
    return f'{self.method}-w{self.window}-n{self.ngram}-g{self.guesses}-{self.pool}'

  @property
  def name(self) -> str:
    return f'{self.group}-b{self.batch}'
