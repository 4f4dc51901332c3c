"""Common part of strategies that guess drafts at temperature 0, and draw them from a law above."""

from typing import Any

from fastdec import struct
from fastdec.decoding.drafted_by import check_rule
from fastdec.decoding.protocol import Rule
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.rejection import LawRule, Rejection, Warped
from fastdec.decoding.rules.sampling import Sampling, greedy_or_sampling
from fastdec.decoding.strategy import LoopStrategy
from fastdec.errors import UserError


class DrawnDrafts(LoopStrategy):
  """A strategy with the settings below, which its `__post_init__` settles.

  Temperature 0 is another compiled program, chosen when the strategy is made; a traced temperature
  counts as above 0, and so do those of rows. Above 0, the four numbers and the rule's settings are
  arrays: a sweep over them compiles once.
  """

  rule: Rule | None
  temperature: Any
  top_k: Any
  top_p: Any
  min_p: Any
  is_greedy: bool

  @property
  def drafts_trees(self) -> bool:
    """True if drafts have branches: then they are guessed at any temperature, and have no law."""
    return False

  def settle(self) -> None:
    """Makes arrays of temperature, top_k, top_p and min_p, and checks the rule.

    Raises:
      UserError: a setting out of range, something else than a rule, or a rule that cannot take such
        drafts.
    """
    struct.assign(self, **greedy_or_sampling(self.temperature, self.top_k, self.top_p, self.min_p))
    if self.rule is not None:
      check_rule(self.rule)
    name = type(self.rule).__name__
    if self.drafts_trees and isinstance(self.rule, LawRule):
      raise UserError(
        f'{name} needs a chain of drafts, and this draft is a tree: leave out the rule'
      )
    if (
      not self.is_greedy
      and self.rule is not None
      and (self.drafts_trees or not isinstance(self.rule, LawRule))
    ):
      wanted = (
        'leave out the rule for a tree'
        if self.drafts_trees
        else ('give Rejection or BlockVerification as rule')
      )
      raise UserError(f'{name} does not sample: above temperature 0 {wanted}')

  @property
  def sampling(self) -> Sampling | None:
    """The law of chains and of the target's tokens; None at temperature 0."""
    return (
      None if self.is_greedy else Sampling(self.temperature, self.top_k, self.top_p, self.min_p)
    )

  @property
  def effective_rule(self) -> Rule:
    """The rule at this temperature: `rule`, or the default in its place."""
    sampling = self.sampling
    if sampling is None:
      rule = Exact() if self.rule is None else self.rule
      return rule.greedy if isinstance(rule, LawRule) else rule
    if self.drafts_trees:
      return sampling
    rule = Rejection() if self.rule is None else self.rule
    assert isinstance(rule, LawRule)  # by `settle`
    return Warped(rule, sampling)
