"""Common part of strategies whose drafts are drawn from a law of their own."""

from fastdec import struct
from fastdec.decoding.drafted_by import check_rule
from fastdec.decoding.protocol import Rule
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.rejection import ComparingRule, Rejection, Warped
from fastdec.decoding.rules.sampling import Drawn
from fastdec.decoding.sampling import Sampling, check_sampling
from fastdec.decoding.strategy import LoopStrategy
from fastdec.errors import UserError


class DraftsWithProbs(LoopStrategy):
  """A strategy with the fields below, which its `__post_init__` settles.

  Without `sampling` its drafts are guesses, and the rule is `Exact` unless another is given. With
  it a chain is drawn from the draft's law, and the rule compares the two laws.
  """

  rule: Rule | None
  sampling: Sampling | None

  @property
  def drafts_trees(self) -> bool:
    """True if drafts have branches: they are guesses then, with `sampling` too, and have no law."""
    return False

  def settle(self) -> None:
    """Checks the rule, and makes None of a `sampling` at temperature 0.

    Raises:
      UserError: something else than `Sampling` or a rule, or a rule that cannot take such drafts.
    """
    struct.assign(self, sampling=check_sampling(self.sampling))
    if self.rule is None:
      return
    check_rule(self.rule)
    name = type(self.rule).__name__
    compares_laws = isinstance(self.rule, ComparingRule)
    if self.drafts_trees and compares_laws:
      raise UserError(
        f'{name} needs a chain of drafts, and this draft is a tree: leave out the rule'
      )
    if self.sampling is not None and self.drafts_trees:
      raise UserError(f'{name} does not sample: above temperature 0 leave out the rule for a tree')
    if self.sampling is not None and not compares_laws:
      raise UserError(
        f'{name} does not sample: above temperature 0 give Rejection or BlockVerification as rule'
      )

  @property
  def effective_rule(self) -> Rule:
    """The rule for the loop: in its greedy form without `sampling`, else on that law."""
    if self.sampling is None:
      rule = Exact() if self.rule is None else self.rule
      return rule.greedy if isinstance(rule, ComparingRule) else rule
    if self.drafts_trees:
      return Drawn(self.sampling)
    rule = Rejection() if self.rule is None else self.rule
    assert isinstance(rule, ComparingRule)  # by `settle`
    return Warped(rule, self.sampling)
