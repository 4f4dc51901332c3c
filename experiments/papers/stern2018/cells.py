"""The cells of Tables 1, 2 and 4: one model, k and acceptance rule."""

import dataclasses
import re

from experiments.lab.cells import Cell
from fastdec.errors import UserError

# Without heads, on the base as it is: the linear forecast of an image model guesses, by the weights
# that the base reads, or by others, fitted to what it writes.
UNTRAINED = FORECAST, FITTED = 'forecast', 'fitted'
REGIMES = {
  'regular': 'Regular',
  'distil': 'Distillation',
  'finetune': 'Fine tuning',
  'both': 'Both',
  FORECAST: 'Forecast',
  FITTED: 'Forecast, fitted',
}
RULE = r'exact|(top|min|beam|tree|window)-[1-9]\d*|distance-(0|[1-9]\d*)'
Key = tuple[int, str, str]


@dataclasses.dataclass(frozen=True)
class BlockwiseCell(Cell):
  """One measurement. An output is a sentence or an image."""

  k: int
  regime: str  # a key of REGIMES
  rule: str  # 'exact', 'top-2', 'min-3', 'tree-32', 'beam-4' (beam search), ...
  bleu: float | None = None  # per cent
  bleu_signature: str | None = None
  compound_bleu: float | None = None  # per cent; as Tensor2Tensor has it, compounds split
  compound_bleu_signature: str | None = None
  bits_per_dimension: float | None = None  # of the originals, given the inputs
  psnr: float | None = None  # dB, against the originals; see `image_quality`
  # dB, of the inputs enlarged by a bicubic filter, against the originals
  bicubic_psnr: float | None = None
  ssim: float | None = None  # against the originals, -1 to 1
  # dB, against the same model's greedy output; infinite where equal
  psnr_to_greedy: float | None = None
  mean_block_size: float | None = None  # tokens per call of the target
  calls_per_output: float | None = None
  ms_per_output: float | None = None  # batch 1, median
  greedy_ms_per_output: float | None = None  # of the same model, interleaved with the former
  speedup: float | None = None  # over that greedy: the median of the ratios of rounds side by side
  spread: tuple[float, float] | None = None  # the least and the largest of these ratios
  same_as_greedy: float | None = None  # share of outputs that are the same model's greedy ones
  compile_seconds: float | None = None
  # top-1 of p1 .. pk, 0 to 1: on references of the dev set, or originals
  head_accuracy: tuple[float | None, ...] = ()
  # the same on what the model writes greedily for the split's sources
  own_accuracy: tuple[float | None, ...] = ()
  outputs: int | None = None
  split: str | None = None

  def __post_init__(self) -> None:
    if type(self.k) is not int or self.k < 1:
      raise UserError(f'a cell of a table cannot have k={self.k!r}: k is a whole number from 1')
    if self.regime not in REGIMES or not re.fullmatch(RULE, self.rule):
      rules = 'exact, top-N, min-N, distance-N, window-N, tree-N or beam-N'
      allowed = f'regime is one of {", ".join(REGIMES)}, rule is {rules}'
      raise UserError(
        f"a cell of a table cannot have regime '{self.regime}' and rule '{self.rule}': {allowed}"
      )

  @property
  def key(self) -> Key:
    return self.k, self.regime, self.rule

  @property
  def place(self) -> tuple[int, str, str, str | None]:
    return *self.key, self.split

  @property
  def name(self) -> str:
    return f'k{self.k}-{self.regime}-{self.rule}'
