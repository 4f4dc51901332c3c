"""The cells of `experiments.drafts`: one drafter, as a chain or a tree, at one temperature and
batch size."""

import dataclasses

from experiments.lab.cells import AgainstPlain
from fastdec.errors import UserError

DRAFTERS = {
  'heads': 'heads', 'rooted': 'rooted heads', 'markov': 'rooted heads, Markov bias', 'block': 'block',
  'block-2': 'block, 2 layers', 'eagle': 'EAGLE', 'model': 'draft model', 'lookup': 'prompt lookup',
}  # fmt: skip
HEADS = ('heads', 'rooted', 'markov')
NETWORKS = ('block', 'block-2', 'eagle')
CHAINS = ('model', 'lookup')  # that draft no trees


@dataclasses.dataclass(frozen=True)
class DraftCell(AgainstPlain):
  """One measurement. Tokens a call, acceptance and agreement are of all sentences, whatever the
  batch size."""

  drafter: str  # a key of DRAFTERS
  tree: int  # nodes that are asked for, the root included; 0: a chain
  temperature: float
  batch: int
  short: int = 0  # guesses of a chain that is shorter than the table's others; 0: it is as long
  # that the target scores a call; fewer than asked for where no other guess was ever right
  nodes: int | None = None
  parameters: int | None = None  # of the drafter
  training_tokens: int | None = None  # of the target's side, that it was trained on
  training_seconds: float | None = None
  tokens: float | None = None  # per call of a row
  # of a chain: how often each guess is, where those before it are
  accepted: tuple[float | None, ...] | None = None
  call_ms: float | None = None
  draft_ms: float | None = None  # what a call takes more than the target's own on as many nodes
  plain_ms: float | None = None  # a call of plain decoding
  all_texts: int | None = None  # that tokens and agreement are of

  def __post_init__(self) -> None:
    if self.drafter not in DRAFTERS or (self.tree and (self.short or self.drafter in CHAINS)):
      given = (
        f"a cell cannot have drafter '{self.drafter}', tree {self.tree} and short {self.short}"
      )
      known = (
        f'known are {", ".join(DRAFTERS)}, and {" and ".join(CHAINS)} and short chains are no trees'
      )
      raise UserError(f'{given}: {known}')

  @property
  def key(self) -> tuple[str, int, float, int, int]:
    return self.drafter, self.tree, self.temperature, self.batch, self.short

  @property
  def is_whole_chain(self) -> bool:
    """Whether it is the chain of a drafter that its trees are compared with."""
    return not self.tree and not self.short

  @property
  def group(self) -> str:
    """The name of what is measured at once: all batch sizes."""
    shape = f'tree{self.tree}' if self.tree else f'chain{self.short or ""}'
    return f'{self.drafter}-{shape}-t{self.temperature:g}'

  @property
  def name(self) -> str:
    return f'{self.group}-b{self.batch}'
