"""The cells of `experiments.speculative`: one draft model at one setting."""

import dataclasses

from experiments.lab.cells import AgainstPlain
from fastdec.errors import UserError

DRAFTS = {
  'large': 'large draft', 'small': 'small draft', 'bigram': 'bigram', 'unigram': 'unigram', 'lookup': 'prompt lookup',
}  # fmt: skip
Key = tuple[str, float, str, int]


@dataclasses.dataclass(frozen=True)
class SpecCell(AgainstPlain):
  """One measurement."""

  draft: str  # a key of DRAFTS
  temperature: float
  # a number: gamma; 'adaptive': gamma at most; 'best': the gamma that was the fastest with the
  # first batch
  plan: str
  batch: int
  gamma: int | None = None
  alpha_beta: float | None = None  # see `acceptance`
  alpha_accepted: float | None = None
  c: float | None = None  # a call of the draft model, in calls of the target on one token
  v: float | None = None  # the target's call on gamma + 1 tokens, in those on one
  drafts_per_call: float | None = None  # calls of the draft model for each of the target
  predicted: float | None = None  # the paper's theorem 3.8, by alpha_beta
  # tokens_per_call / (v + drafts_per_call c); compare with speedup_calls
  predicted_width: float | None = None

  def __post_init__(self) -> None:
    if self.draft not in DRAFTS or not (self.plan in ('adaptive', 'best') or self.plan.isdigit()):
      raise UserError(
        f"a cell cannot have draft '{self.draft}' and plan '{self.plan}': known are"
        f' {", ".join(DRAFTS)}'
      )

  @property
  def key(self) -> Key:
    return self.draft, self.temperature, self.plan, self.batch

  @property
  def name(self) -> str:
    return f'{self.draft}-t{self.temperature:g}-g{self.plan}-b{self.batch}'
