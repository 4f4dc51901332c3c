"""Settings of generated text: the flags of `experiments.generate`, checked against each
other."""

import dataclasses
from typing import Any

import fastdec as fd
from experiments.tools.tuned_file import names_file
from fastdec.decoding.inputs import DEFAULT_MAX_LEN
from fastdec.decoding.rules.sampling import Sampling
from fastdec.errors import UserError


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of the text, prompts and folders' contents aside; fields are the flags of
  `experiments.generate`."""

  model: str
  draft: str | None = None
  lookup: bool = False
  heads: str | None = None
  medusa: str | None = None
  choices: str | None = None
  gamma: int | None = None
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  max_len: int = DEFAULT_MAX_LEN
  seed: int = 0
  draft_head: str | None = None
  nodes: int | None = None
  strategy: str | None = None
  lookahead: bool = False
  dtype: str | None = None
  pool: str | None = None

  def __post_init__(self) -> None:
    parts = {'draft': self.draft, 'heads': self.heads, 'draft-head': self.draft_head}
    others = {
      'lookup': self.lookup or None,
      'medusa': self.medusa,
      'strategy': self.strategy,
      'lookahead': self.lookahead or None,
    }
    # a strategy in words, or tuned, drafts with one of the parts
    for drafters in (parts, others) if self.strategy is not None else (parts | others,):
      given = [f'--{name}' for name, value in drafters.items() if value is not None]
      if len(given) > 1:
        raise UserError(f'{" and ".join(given)} each say how to draft: give one of them')
    if self.choices is not None and self.medusa is None:
      raise UserError(
        f'--choices={self.choices} is about a tree of drafts: give --medusa=folder too'
      )
    if self.nodes is not None and self.draft_head is None:
      raise UserError(
        f'--nodes={self.nodes} is about the tree of a draft network: give --draft-head=folder too'
      )
    if self.pool is not None and not (self.lookup or self.lookahead):
      raise UserError(
        f'--pool={self.pool} has guesses for text that is drafted from: give'
        ' --lookahead or --lookup too'
      )
    if self.gamma is not None and self.lookahead:
      raise UserError(
        f'--gamma={self.gamma} is about a chain, and --lookahead guesses n-grams: leave it out'
      )
    if self.gamma is not None and self.medusa is not None:
      raise UserError(
        f'--gamma={self.gamma} is about a chain, and --medusa drafts a tree: give --choices instead'
      )
    own = (self.gamma, self.nodes, self.temperature, self.top_k, self.top_p)
    if self.strategy is not None and own != (None, None, 0, 0, 1):
      raise UserError(
        f'--strategy={self.strategy} has its own --gamma, --temperature, --top_k, --top_p'
        ' and --nodes: leave them out'
      )
    if self.strategy is not None and not self.describes and self.dtype is not None:
      raise UserError(
        f'--strategy={self.strategy} has its own type of numbers: leave out --dtype={self.dtype}'
      )
    if self.gamma is not None and not given:
      raise UserError(
        f'--gamma={self.gamma} is about drafts: give --draft=folder, --lookup or'
        ' another drafter too'
      )
    if self.temperature != 0:
      _ = self.sampling  # refuses laws that are none
    if not self.samples and (self.top_k, self.top_p) != (0, 1.0):
      remedy = (
        'give --temperature=1 too'
        if self.medusa is None
        else ('--medusa does not sample, so leave them out')
      )
      raise UserError(f'--top_k={self.top_k} and --top_p={self.top_p} are about sampling: {remedy}')

  @property
  def describes(self) -> bool:
    """True if --strategy is in words, and not the name of a file."""
    return self.strategy is not None and not names_file(self.strategy)

  @property
  def samples(self) -> bool:
    """True if tokens are drawn. Medusa's are not: at a temperature above 0 it accepts what is
    typical."""
    return self.temperature != 0 and self.medusa is None

  @property
  def part(self) -> str | None:
    """The folder that a strategy in words, or tuned, drafts with."""
    return self.draft or self.heads or self.draft_head

  @property
  def heads_folder(self) -> str | None:
    return self.heads if self.medusa is None else self.medusa

  @property
  def sampling(self) -> Sampling:
    """The law to draw from, where the temperature is not 0."""
    return Sampling(self.temperature, self.top_k, self.top_p)

  @property
  def plain(self) -> Any:
    """One token a call: what the strategy is measured against."""
    return fd.Sample(self.temperature, self.top_k, self.top_p) if self.samples else fd.Greedy()

  @property
  def plain_name(self) -> str:
    return 'sampling one by one' if self.samples else 'greedy decoding'

  @property
  def warnings(self) -> list[str]:
    """Note at the end of text that is not the model's own."""
    if self.temperature == 0 or self.samples:
      return []
    return [
      f'not lossless: drafts were accepted where typical at temperature {self.temperature:g}'
      ' (Typical)'
    ]
