"""Common part of strategies whose drafts are drawn from a distribution of their own, q."""

from fastdec import struct
from fastdec.decoding.drafted_by import check_rule
from fastdec.decoding.protocol import Rule
from fastdec.decoding.rules.matching import Drawn, Exact
from fastdec.decoding.rules.recursive import Siblings
from fastdec.decoding.rules.rejection import ComparingRule, Rejection, Warped
from fastdec.decoding.sampling import Sampling, check_sampling
from fastdec.decoding.strategy import LoopStrategy
from fastdec.errors import UserError


class DraftsWithProbs(LoopStrategy):
  """A strategy with these two fields, which its `__post_init__` checks by `settle`.

  Without `sampling` the drafts are guesses, and the rule is `Exact` unless another is given. With
  it a chain is drawn from q, and the rule compares q with the target's p. So is a static tree if
  its rule is a `TreeRule`.
  """

  rule: Rule | None
  sampling: Sampling | None

  @property
  def drafts_trees(self) -> bool:
    """True if drafts have branches: they are guesses even with `sampling`, unless a rule draws."""
    return False

  @property
  def grows(self) -> bool:
    """True if the shape of trees follows from the draft's guesses."""
    return False

  @property
  def siblings(self) -> Siblings | None:
    """How nodes are drawn from q; None: drafts are guesses."""
    if self.sampling is None:
      return None
    guesses: Siblings | None = None if self.drafts_trees else 'distinct'
    return getattr(self.rule, 'siblings', guesses)

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
    judges_trees = hasattr(self.rule, 'siblings')
    if self.drafts_trees and compares and not judges_trees:
      raise UserError(
        f'{name} needs a chain of drafts, and this draft is a tree: leave out the rule, or give one'
        ' for drawn trees, such as Traversal()'
      )
    if self.sampling is not None and self.grows and judges_trees:
      raise UserError(
        f'{name} needs a tree of a static shape, and this one grows by its guesses: give'
        ' choices=(2, 1, 1), for example'
      )
    if self.sampling is not None and self.drafts_trees and not judges_trees:
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
    if self.siblings is None:
      return Drawn(self.sampling)
    rule = Rejection() if rule is None else rule
    assert isinstance(rule, ComparingRule)  # by `settle`
    return Warped(rule, self.sampling)
