"""The cells of `experiments.medusa`: heads on one tree, at one batch size."""

import dataclasses

from experiments.lab.cells import AgainstPlain
from fastdec.errors import UserError

TREES = {
  'chain': 'chain', 'published': 'published', 'calibrated': 'calibrated', 'fastest': 'calibrated,'
                                                                                     ' fastest',
  'typical': 'calibrated, typical',
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MedusaCell(AgainstPlain):
  """One measurement."""

  stage: str  # 'medusa-1', 'medusa-2'
  tree: str  # a key of TREES; accepted exactly, except 'typical'
  batch: int
  nodes: int | None = None  # the root included
  depth: int | None = None
  # per call of a row, over texts whose prompts begin no text of the training
  tokens_unseen: float | None = None
  nll: float | None = None  # of the held-out text by the model itself, nats a token

  def __post_init__(self) -> None:
    if self.tree not in TREES:
      raise UserError(f"a cell cannot have tree '{self.tree}': known are {', '.join(TREES)}")

  @property
  def key(self) -> tuple[str, str, int]:
    return self.stage, self.tree, self.batch

  @property
  def name(self) -> str:
    return f'{self.stage}-{self.tree}-b{self.batch}'
