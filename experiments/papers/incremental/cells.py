"""The cells of `experiments.incremental`: what a cache saves, and what a loop on the device."""

import dataclasses
from collections.abc import Mapping, Sequence

from experiments.lab.cells import Cell
from fastdec.errors import UserError

PARTS = {
  'growth': 'time against length',
  'layout': "FasterTransformer's tables",
  'launches': 'what a step launches',
  'encoder': 'the encoder alone',
}
WAYS = {'uncached': 'no cache', 'host': 'cache, step by step', 'device': 'cache, whole loop'}


@dataclasses.dataclass(frozen=True)
class SavingCell(Cell):
  """One measurement."""

  part: str  # a key of PARTS
  model: str
  dtype: str
  batch: int
  length: int  # tokens of the output; of 'encoder': of the source
  # By way, a key of WAYS; of 'encoder': 'jitted' and 'eager'. Medians.
  # 'growth': a token of all rows; else an output, or a call
  milliseconds: Mapping[str, float] | None = None
  # ratios to 'device', or 'jitted', of rounds side by side
  to_fastest: Mapping[str, float] | None = None
  spread: Mapping[str, Sequence[float]] | None = None  # the least and the largest of these ratios
  # 'growth': ratios of a token to one of the shortest length
  to_shortest: Mapping[str, float] | None = None
  steps: int | None = None  # 'growth': tokens that were timed without a cache
  # rows that the ways do not write alike; in float32 'growth' at near ties only
  parted: int | None = None
  largest_gap: float | None = None  # between the logits of two tokens where such a row parts
  # 'launches': see `experiments.papers.incremental.operations`
  counts: Mapping[str, int] | None = None

  def __post_init__(self) -> None:
    if self.part not in PARTS:
      raise UserError(f"a cell cannot have part '{self.part}': known are {', '.join(PARTS)}")

  @property
  def key(self) -> tuple[str, str, str, int, int]:
    return self.part, self.model, self.dtype, self.batch, self.length

  @property
  def name(self) -> str:
    """Cells of a name are measured together: all lengths in turn."""
    name = f'{self.part}-{self.model}-{self.dtype}-b{self.batch}'
    return name if self.part == 'growth' else f'{name}-{self.length}'
