"""The cells of `experiments.speculative` as JSON lines: one draft model at one setting, finished or failed."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastdec.errors import UserError
from fastdec.evaluation.cells import append_row, no_cell, plain, rows

DRAFTS = {
  'large': 'large draft', 'small': 'small draft', 'bigram': 'bigram', 'unigram': 'unigram', 'lookup': 'prompt lookup',
}  # fmt: skip
Key = tuple[str, float, str, int]


@dataclasses.dataclass(frozen=True)
class SpecCell:
  """One measurement. None is what was not measured, or has no meaning for this draft.

  Tokens per call and all ratios are to plain decoding of the same texts' length: token by token, at one temperature.
  """

  draft: str  # a key of DRAFTS
  temperature: float
  plan: str  # a number: gamma; 'adaptive': gamma at most; 'best': the gamma that was the fastest with the first batch
  batch: int
  gamma: int | None = None
  alpha_beta: float | None = None  # see `acceptance`
  alpha_accepted: float | None = None
  c: float | None = None  # a call of the draft model, in calls of the target on one token
  v: float | None = None  # the target's call on gamma + 1 tokens, in those on one
  tokens_per_call: float | None = None  # of the batch: as many times fewer calls of the target than plain decoding
  drafts_per_call: float | None = None  # calls of the draft model for each of the target
  predicted: float | None = None  # the paper's theorem 3.8, by alpha_beta
  predicted_width: float | None = None  # tokens_per_call / (v + drafts_per_call c)
  speedup: float | None = None  # whole texts, encoder and prompt included
  speedup_calls: float | None = None  # without the prompt: what the formulas are about
  spread: tuple[float, float] | None = None  # the least and the largest `speedup` of rounds side by side
  ms_per_token: float | None = None
  plain_ms_per_token: float | None = None
  same_as_plain: float | None = None  # share of texts, at temperature 0
  parted: int | None = None  # texts that are not the same, at temperature 0: all at near ties, see `parting`
  largest_gap: float | None = None  # between the logits of two tokens where such a text parts
  texts: int | None = None
  models: str | None = None  # a hash of target and draft model
  error: str | None = None  # why there are no figures
  conditions: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    if self.draft not in DRAFTS or not (self.plan in ('adaptive', 'best') or self.plan.isdigit()):
      raise UserError(f"a cell cannot have draft '{self.draft}' and plan '{self.plan}': known are {', '.join(DRAFTS)}")

  @property
  def key(self) -> Key:
    """What the cell is, whatever came out."""
    return self.draft, self.temperature, self.plan, self.batch

  @property
  def name(self) -> str:
    """The same as a word."""
    return f'{self.draft}-t{self.temperature:g}-g{self.plan}-b{self.batch}'


FIELDS = tuple(field.name for field in dataclasses.fields(SpecCell) if field.name != 'conditions')


def append(path: Path, cell: SpecCell) -> None:
  """Adds one line in one write, on disk when this returns."""
  append_row(path, {name: plain(getattr(cell, name)) for name in FIELDS} | dict(cell.conditions))


def read(path: Path) -> list[SpecCell]:
  """The cells in the file in their order, none where it does not exist.

  Raises:
    UserError: a line that is JSON and no cell.
  """
  cells = []
  for number, row in rows(path):
    try:
      fields = {name: row.pop(name) for name in FIELDS if name in row}
      fields['spread'] = None if fields.get('spread') is None else tuple(fields['spread'])
      cells.append(SpecCell(**fields, conditions=row))
    except (AttributeError, TypeError, UserError):
      raise no_cell(number, path) from None
  return cells


def latest(cells: Iterable[SpecCell]) -> dict[Key, SpecCell]:
  """Of each key the last cell that was measured, or, where there is none, the last failure."""
  found: dict[Key, SpecCell] = {}
  for cell in cells:
    if cell.error is None or found.get(cell.key, cell).error is not None:
      found[cell.key] = cell
  return found
