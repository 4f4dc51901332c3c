"""Drafting by a one-pass draft network (DFlash, DSpark 2026): all guesses of a block at once.

The network scores all words, or its best few, for each token of the block. A bias from the token
guessed before reorders them (`lattice`). Their best path is a chain, and their best paths together
are a tree. After each call the target's features of the accepted tokens go into the network's
cache, for its next pass.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.drafted_by import check_draft
from fastdec.decoding.methods import growing, lattice
from fastdec.decoding.methods.drafts_with_probs import DraftsWithProbs
from fastdec.decoding.methods.eagle import Read, ReadingDrafter
from fastdec.decoding.methods.lattice import Lattice
from fastdec.decoding.methods.planned import Drawing, plan
from fastdec.decoding.methods.trees import static_tree
from fastdec.decoding.protocol import Draft, Drafter, Prompt, Rule
from fastdec.decoding.rules.recursive import Siblings
from fastdec.decoding.sampling import Sampling, best
from fastdec.decoding.settings import Whole, is_whole, real
from fastdec.decoding.strategy import TREES, Sizes, choose_lengths, interleave
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import check_target
from fastdec.heads.words import ids_of, suppress_words
from fastdec.models.api import Model
from fastdec.struct import Bound

WIDTH = 8  # of trees that grow: children of each node, and nodes of each level that are expanded


@struct.pytree
class BlockDraft(DraftsWithProbs):
  """Decoding with a one-pass draft network. Lossless with the default rules.

  With `sampling` a chain is drawn, each token from a distribution biased by the token before, and
  `Rejection` accepts it. A tree consists of the draft's best guesses; those that the target draws
  are accepted. With a rule for drawn trees, such as `Traversal()`, a static tree is drawn too.

  Args:
    draft: (module, params), a `BlockNetwork` as `load_draft` gives it.
    k: block size, the root's token included, at most the draft's own (None: its own).
    choices: None: a chain of k - 1 tokens. A number: the most likely tree with as many nodes, the
      root included, which each draft grows. Or a static tree, as `Medusa` takes it: paths of
      ranks, a `Topology`, a name.
    rule: None: `Exact()` without sampling; with it, `Rejection()` for a chain, and the target's own
      draw for a tree.
    sampling: how tokens are drawn, of target and draft alike; None: the most likely token.
    width: children of each node of a growing tree, at most (None: 8, or as many as there are).
    families: a growing tree has all children of a node or none (JetSpec), instead of the likeliest
      nodes.
    confidence: a chain ends before the first token of which the draft's own head is less sure, 0
      to 1 (DSpark). None: it never does.

  Raises:
    UserError: another kind of draft, or impossible sizes of a block or tree.
  """

  draft: Any
  k: Whole = struct.static(default=None)
  choices: Any = struct.static(default=None)
  rule: Rule | None = None
  sampling: Sampling | None = None
  width: Whole = struct.static(default=None)
  families: bool = struct.static(default=False)
  confidence: Any = None  # float32 scalar
  part = 'draft'
  drafts_for = BlockNetwork
  joins = True

  def __post_init__(self) -> None:
    draft = check_draft(self.draft, 'draft', BlockNetwork)
    most = draft.module.longest
    k = draft.module.k if self.k is None else self.k
    if not (is_whole(k, 2, 'iu') and k <= most):
      raise UserError(
        f'k={k!r} is out of range: this draft was trained for k={most}, so give 2 <= k <= {most}'
      )
    width = children_of(draft.module, self.width)
    choices = _tree(self.choices, int(k) - 1, width, draft.module.choices, self.families)
    if isinstance(choices, Topology) and self.k is None:
      k = choices.max_depth + 1
    if most > draft.module.k:  # its layers fit any size
      draft = Bound(dataclasses.replace(draft.module, k=int(k)), draft.params)
    struct.assign(self, draft=draft, k=int(k), choices=choices)
    if self.confidence is not None:
      if choices is not None or not draft.module.has_confidence:
        raise UserError(
          'confidence is for a chain of a draft with a confidence head (DSpark): leave it out'
        )
      least = real('confidence', self.confidence, 0.0, 1.0, 'a chance, 0 to 1')
      struct.assign(self, confidence=least)
    self.settle()

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    draft = self.draft.module
    most, width = draft.k - 1, children_of(draft, self.width)
    chains, trees = [], []
    for n in choose_lengths(drafted, most):
      chains.append(dataclasses.replace(self, k=n + 1, choices=None))
    for n in nodes or TREES:
      if growing.fits(most, width, n):
        trees.append(dataclasses.replace(self, k=None, choices=n, confidence=None))
    return interleave(chains, trees)

  @property
  def drafts_trees(self) -> bool:
    return self.choices is not None

  @property
  def grows(self) -> bool:
    return isinstance(self.choices, int)

  @property
  def drafter(self) -> Drafter:
    shape = (self.k, self.choices, children_of(self.draft.module, self.width), self.families)
    return BlockDrafter(self.draft, *shape, self.sampling, self.siblings, self.confidence)

  @property
  def most_accepted(self) -> int:
    if isinstance(self.choices, Topology):
      return self.choices.max_depth
    return self.k - 1

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    check_target(self.draft, model)


def children_of(draft: Any, width: int | None) -> int:
  """Returns the most children of a node of a growing tree; None: the usual number."""
  return min(WIDTH, draft.choices) if width is None else width


def _tree(
  choices: Any, depth: int, width: Any, candidates: int, families: bool
) -> Topology | int | None:
  """Returns a static tree, the number of nodes of a growing one, or None for a chain.

  Raises:
    UserError: impossible choices.
  """
  if choices is None:
    return None
  if is_whole(choices, -(2**31), 'iu'):
    return growing.check_sizes(depth, width, choices, candidates, families)[2]
  tree = static_tree(choices)
  if not 1 <= tree.max_depth <= depth:
    raise UserError(
      f'a tree {tree.max_depth} deep does not fit into a block of {depth} guesses: give paths of'
      f' 1 to {depth} ranks'
    )
  if tree.ranks.max() >= candidates:
    raise UserError(
      f'rank {tree.ranks.max()} is not possible: a draft has {candidates} candidates for each token'
    )
  return tree


@struct.pytree
class BlockDrafter(ReadingDrafter):
  """Drafter of a chain or a static tree, of guesses or drawn, or of a tree grown to some nodes."""

  draft: Bound
  k: int = struct.static()
  tree: Topology | int | None = struct.static(default=None)
  width: int = struct.static(default=WIDTH)
  families: bool = struct.static(default=False)
  sampling: Sampling | None = None
  siblings: Siblings | None = struct.static(default=None)  # how nodes are drawn; None: guesses
  confidence: Float[Array, ''] | None = None  # of a chain

  @property
  def nodes(self) -> int:
    if self.tree is None:
      return self.k
    return self.tree.n if isinstance(self.tree, Topology) else self.tree

  @property
  def guessed(self) -> int:
    return self.draft.module.rows

  def propose(
    self, target: Bound, state: Read, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Read]:
    module, params = self.draft
    states = module.read(params, target, root, state.last, state.cache)[:, : self.k - 1]
    logits = module.logits(params, target, states)
    logits = suppress_words(params, logits, target.module.suppressed_ids)
    candidates = self.lattice(target, states, state.last, logits)
    if isinstance(self.tree, int):
      sizes = (self.width, self.tree, params.get('warmth'), self.families)
      tokens, topology, chances = lattice.grow(candidates, root, *sizes)
      return Draft(tokens, topology, calls=1, chances=chances), state
    topology = Topology.chain(self.k) if self.tree is None else self.tree
    drawing = None
    if self.sampling is not None and self.siblings is not None:
      drawing = Drawing(self.siblings, self.sampling.log_probs, keys, module.vocab_size)
    tree = lattice.fill(candidates, plan(topology, root, drawing))
    draft = Draft(tree.filled, topology, tree.laws, calls=1)
    if module.has_confidence and self.tree is None:  # each looks at the tokens before its own only
      sure = jax.nn.sigmoid(module.confidence(params, states, draft.tokens[:, :-1]))
      chances = jnp.pad(jnp.cumprod(sure, axis=1), ((0, 0), (1, 0)), constant_values=1)
      draft = dataclasses.replace(draft, chances=chances)
      if self.confidence is not None:
        is_kept = jnp.cumprod(sure >= self.confidence, axis=1, dtype=jnp.int32) > 0
        acceptable = jnp.pad(is_kept, ((0, 0), (1, 0)), constant_values=True)
        topology = dataclasses.replace(topology, acceptable=acceptable)
        draft = dataclasses.replace(draft, topology=topology)
    return draft, state

  def lattice(
    self,
    target: Bound,
    states: Float[Array, 'b g d'],
    last: Float[Array, 'b d'],
    logits: Float[Array, 'b g w'],
  ) -> Lattice:
    """Returns the candidates of each token, and the edges from the token before.

    Args:
      target: its embeddings may be read.
      states: of the rows that guess.
      last: the feature at the position before the root.
      logits: of the rows, before any edge.
    """
    module, params = self.draft
    scores, ids, after_bgmr = logits, params.get('ids'), None
    is_linked = module.edge_kind == 'correlator'
    if module.choices < logits.shape[-1] or is_linked:
      scores, chosen = best(logits, module.choices)
      ids = ids_of(params, chosen)
      if is_linked:
        log_probs = scores - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        links = module.link(params, target, states, last, log_probs, ids)
        return lattice.link(ids, *links)
      if module.markov:
        after_bgmr = module.after(params, chosen)  # one look-up for all tokens is faster than g
    scores = module.scaled(scores)
    if not module.markov:
      return Lattice(scores, ids)

    def bias(
      i: int, before: Int[Array, 'b w'], carry: Float[Array, 'b w c']
    ) -> tuple[Array, Array]:
      state = jnp.broadcast_to(states[:, None, i], (*before.shape, states.shape[-1]))
      after = None if after_bgmr is None else after_bgmr[:, None, i]
      return module.bias(params, before, after, state, carry, target, i)

    return Lattice(scores, ids, bias, module.start_carry(states[:, :1]))
