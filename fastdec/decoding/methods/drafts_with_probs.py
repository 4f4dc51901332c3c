"""Common part of strategies whose drafts are drawn from a distribution of their own, q."""

from fastdec import struct
from fastdec.decoding.drafted_by import check_rule
from fastdec.decoding.protocol import Rule
from fastdec.decoding.rules.matching import Drawn, Exact
from fastdec.decoding.rules.rejection import ComparingRule, Rejection, Warped
from fastdec.decoding.sampling import Sampling, check_sampling
from fastdec.decoding.strategy import LoopStrategy
from fastdec.errors import UserError


class DraftsWithProbs(LoopStrategy):
  """A strategy with these two fields, which its `__post_init__` checks by `settle`.

  Without `sampling` the drafts are guesses, and the rule is `Exact` unless another is given. With
  it a chain is drawn from q, and the rule compares q with the target's p.
  """

  rule: Rule | None
  sampling: Sampling | None

  @property
  def drafts_trees(self) -> bool:
    """True if drafts have branches: then they are guesses even with `sampling`, and have no q."""
    return False

  def settle(self) -> None:
    """Checks the rule, and replaces a `sampling` at temperature 0 by None.

    Raises:
      UserError: something else than `Sampling` or a rule, or a rule that cannot judge such drafts.
    """
    struct.assign(self, sampling=check_sampling(self.sampling))
    if self.rule is None:
      return
    check_rule(self.rule)
    name = type(self.rule).__name__
    compares = isinstance(self.rule, ComparingRule)
    if self.drafts_trees and compares:
      raise UserError(
        f'{name} needs a chain of drafts, and this draft is a tree: leave out the rule'
      )
    if self.sampling is not None and self.drafts_trees:
      raise UserError(f'{name} does not sample: above temperature 0 leave out the rule for a tree')
    if self.sampling is not None and not compares:
      raise UserError(
        f'{name} does not sample: above temperature 0 give Rejection or BlockVerification as rule'
      )

  @property
  def effective_rule(self) -> Rule:
    """The rule that the loop runs: without `sampling` a greedy one, with it one that draws."""
    rule = self.rule
    if self.sampling is None:
      if isinstance(rule, ComparingRule):
        return rule.greedy
      return Exact() if rule is None else rule
    if self.drafts_trees:
      return Drawn(self.sampling)
    rule = Rejection() if rule is None else rule
    assert isinstance(rule, ComparingRule)  # by `settle`
    return Warped(rule, self.sampling)
