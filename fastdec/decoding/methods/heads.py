"""Drafting by prediction heads: a chain (Stern et al. 2018) or a tree (Cai et al. 2024).

The heads read the target's hidden state of the last accepted node. The scoring call has computed it
already, so drafting needs no further call (Stern's combined scoring and proposal model, section 4).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.drafted_by import check_draft, check_rule
from fastdec.decoding.methods.greedy import NoDraft
from fastdec.decoding.methods.lattice import Lattice, fill
from fastdec.decoding.methods.planned import plan
from fastdec.decoding.methods.trees import medusa_choices, static_tree
from fastdec.decoding.protocol import Draft, Drafter, Heads, Prefill, Rule, Step
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.sampling import Sampling, check_sampling
from fastdec.decoding.settings import Whole, is_whole, size
from fastdec.decoding.strategy import LoopStrategy, Sizes, choose_lengths
from fastdec.decoding.topology import Topology, take_node
from fastdec.errors import UserError
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.words import suppress_words
from fastdec.models.api import embedding_of, vocabulary_projection
from fastdec.struct import Bound

TREE = 'mc_sim_7b_63'  # of published Medusa heads


@struct.pytree
class HeadsDrafter:
  """Drafter with heads. Its state is the hidden state [b, d] of each row's last accepted node."""

  heads: Bound  # one for each level of the topology
  topology: Topology = struct.static()
  window: int = struct.static(default=0)

  @property
  def nodes(self) -> int:
    return self.topology.n

  def init(self, target: Bound, prefill: Prefill) -> Float[Array, 'b d']:
    return prefill.last_hidden

  def propose(
    self, target: Bound, state: Float[Array, 'b d'], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Float[Array, 'b d']]:
    tokens = draft_tokens(self.heads, target, state, root, self.topology, self.window)
    return Draft(tokens, self.topology), state

  def observe(self, target: Bound, state: Float[Array, 'b d'], step: Step) -> Float[Array, 'b d']:
    return take_node(step.hidden, step.accepted.node)


def draft_tokens(
  heads: Bound,
  target: Bound,
  hidden: Float[Array, 'b d'],
  root: Int[Array, ' b'],
  topology: Topology,
  window: int = 0,
) -> Int[Array, 'b n']:
  """Returns the root and, at a node of depth i and rank r, the i-th head's r-th choice.

  With a Markov bias, the choice depends on the token of the node's parent. With a window, a choice
  also counts the tokens at most `window` ids away, see `sampling.score_windows`.
  """
  logits_bhw = head_logits(heads, target, hidden, root)
  words, ranks = logits_bhw.shape[-1], int(topology.ranks.max()) + 1
  if ranks > words:
    raise UserError(
      f'the tree needs {ranks} choices of a head, and there are {words} words: give ranks below'
      f' {words}'
    )

  def bias(i: int, before: Int[Array, 'b w'], carry: None) -> tuple[Float[Array, 'b w m'], None]:
    return heads.module.bias(heads.params, before), carry

  chosen = bias if heads.module.markov else None
  lattice = Lattice(logits_bhw, heads.params.get('ids'), chosen, window=window)
  return fill(lattice, plan(topology, root)).filled


def head_logits(
  heads: Bound, target: Bound, hidden: Float[Array, 'b d'], root: Int[Array, ' b']
) -> Float[Array, 'b h w']:
  """Returns each head's logits over its words after this state and root, without a Markov bias.

  Raises:
    UserError: the heads do not fit this model.
  """
  wanted, d = heads.module.d_model, hidden.shape[-1]
  if wanted != d:
    raise UserError(
      f'these heads are for hidden states of {wanted}, and this model has {d}: load'
      ' the two together'
    )
  embedded = None
  if heads.module.rooted:
    embedded = embedding_of(target.module)(target.params, root)

  def over_words(outputs: Float[Array, '*b d']) -> Float[Array, '*b w']:
    if 'output' in heads.params:
      return heads.module.over_short(heads.params, outputs)
    return vocabulary_projection(target.module)(target.params, outputs)

  logits_bhw = heads.module.logits(heads.params, hidden, over_words, embedded)
  known, words = logits_bhw.shape[-1], target.module.vocab_size
  if known != words and 'ids' not in heads.params:
    raise UserError(
      f'these heads choose among {known} words, and this model has {words}: load the two together'
    )
  return suppress_words(heads.params, logits_bhw, target.module.suppressed_ids)


@struct.pytree
class Blockwise(LoopStrategy):
  """Blockwise parallel decoding (Stern et al. 2018), with one call in each iteration (section 4).

  Args:
    heads: (module, params) as `load_heads` returns them.
    k: block size, at most the one of the heads (None: theirs); k = 1 is greedy decoding.
    rule: `Exact()` is lossless; `TopN`, `Distance`, `MinBlock` are not.
    window: a guess is the middle of the 2 window + 1 ids that are most likely together. For ordered
      ids, such as intensities, `Distance(window)` accepts more of such guesses. 0: the most likely
      id.
    sampling: how tokens are drawn, with the rule `Exact()`; None: the most likely token.
  """

  heads: Any
  k: Whole = struct.static(default=None)
  rule: Rule = Exact()
  window: Whole = struct.static(default=0)
  sampling: Sampling | None = None
  part = 'heads'
  drafts_for = Heads
  joins = True

  def __post_init__(self) -> None:
    heads = check_draft(self.heads, 'heads', Heads)
    sampling = check_drawing(self.rule, self.sampling)
    window = size('window', self.window, 0, '0 for the likeliest id, or how far from it counts')
    if window and 'ids' in heads.params:
      raise UserError(
        'these heads have a short vocabulary, whose ids are not in order: leave window out'
      )
    most = heads.module.depth + 1
    k = most if self.k is None else self.k
    if not (is_whole(k, 1, 'iu') and k <= most):
      raise UserError(
        f'k={k!r} is out of range: these heads were trained for k={most}, so give 1 <= k <= {most}'
      )
    heads = cut_heads(heads, int(k) - 1)
    struct.assign(self, heads=heads, k=int(k), window=window, sampling=sampling)

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    most = self.heads.module.depth
    return [dataclasses.replace(self, k=n + 1) for n in choose_lengths(drafted, most)]

  @property
  def drafter(self) -> Drafter:
    if self.k == 1:
      return NoDraft()
    return HeadsDrafter(self.heads, Topology.chain(self.k), self.window)


@struct.pytree
class Medusa(LoopStrategy):
  """Decoding with a tree of each head's best guesses (Cai et al. 2024), from any heads.

  Args:
    heads: (module, params); the head at depth i fills the nodes of depth i.
    choices: the tree, as paths of ranks below the root: [[0], [0, 0], [1], ...]; or a static
      `Topology`; or the name of a published tree, or a file with one (`trees.medusa_choices`).
    rule: `Exact()` is lossless; `Typical()`, the paper's own, is not.
    sampling: how tokens are drawn, with the rule `Exact()`; None: the most likely token.

  Raises:
    UserError: choices that do not make a tree, an unknown name, choices deeper than the heads.
  """

  heads: Any
  choices: Any = struct.static()
  rule: Rule = Exact()
  sampling: Sampling | None = None
  part = 'heads'
  drafts_for = MedusaHeads
  joins = True

  @classmethod
  def usual(cls, part: tuple[Any, Any]) -> 'Medusa':
    """Makes this strategy with the published tree, cut to as many levels as there are heads."""
    paths = [path for path in medusa_choices(TREE) if len(path) <= part[0].depth]
    return cls(part, paths)

  def __post_init__(self) -> None:
    heads, topology = check_draft(self.heads, 'heads', Heads), static_tree(self.choices)
    sampling = check_drawing(self.rule, self.sampling)
    depth, most = topology.max_depth, heads.module.depth
    if depth > most:
      raise UserError(
        f'a choice is {depth} deep, and there are {most} heads: give paths of 1 to {most} ranks, as'
        f' [c for c in choices if len(c) <= {most}] has'
      )
    heads = cut_heads(heads, depth)
    struct.assign(self, heads=heads, choices=topology, sampling=sampling)

  @property
  def drafter(self) -> Drafter:
    if self.choices.n == 1:
      return NoDraft()
    return HeadsDrafter(self.heads, self.choices)

  @property
  def most_accepted(self) -> int:
    return self.choices.max_depth


def check_drawing(rule: Any, sampling: Any) -> Sampling | None:
  """Checks the rule, and returns the `sampling` of a strategy with this rule.

  Raises:
    UserError: something else than a rule or `Sampling`, or a rule that does not sample.
  """
  check_rule(rule)
  sampling = check_sampling(sampling)
  if sampling is not None and type(rule) is not Exact:
    kind = type(rule).__name__
    raise UserError(f'{kind} does not sample: above temperature 0 leave out the rule')
  return sampling


def cut_heads(heads: Bound, depth: int) -> Bound:
  """Returns the heads of the first `depth` tokens below the root, or all heads for depth 0.

  Strategies cut their heads when they are made: inside the loop XLA would copy the slices at every
  step.
  """
  if not depth:
    return heads
  return Bound(*heads.module.drafting(heads.params, depth))
