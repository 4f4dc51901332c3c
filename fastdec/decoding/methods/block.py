"""Drafting by a one-pass draft network (DFlash, DSpark 2026): all guesses of a block at once.

The network scores all words, or its best few, for each token of the block. A bias from the token
guessed before reorders them (`lattice`). Their best path is a chain, and their best paths together
are a tree. After each call the target's features of the accepted tokens go into the network's
cache, for its next pass.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.cache.memory import WithMemory
from fastdec.decoding.drafted_by import check_draft
from fastdec.decoding.methods import growing, lattice
from fastdec.decoding.methods.drafts_with_probs import DraftsWithProbs
from fastdec.decoding.methods.lattice import Lattice
from fastdec.decoding.methods.planned import Drawing, plan
from fastdec.decoding.methods.trees import static_tree
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Rule, Step
from fastdec.decoding.rules.recursive import Siblings
from fastdec.decoding.sampling import Sampling, best
from fastdec.decoding.settings import Whole, is_whole
from fastdec.decoding.strategy import TREES, Sizes, choose_lengths, interleave
from fastdec.decoding.topology import Topology, take_node
from fastdec.errors import UserError
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import check_target
from fastdec.heads.words import ids_of, suppress_words
from fastdec.models.api import Model, source_of
from fastdec.models.taps import Taps
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

  Raises:
    UserError: another kind of draft, or impossible sizes of a block or tree.
  """

  draft: Any
  k: Whole = struct.static(default=None)
  choices: Any = struct.static(default=None)
  rule: Rule | None = None
  sampling: Sampling | None = None
  part = 'draft'
  drafts_for = BlockNetwork
  joins = True

  def __post_init__(self) -> None:
    draft = check_draft(self.draft, 'draft', BlockNetwork)
    most = draft.module.k
    k = most if self.k is None else self.k
    if not (is_whole(k, 2, 'iu') and k <= most):
      raise UserError(
        f'k={k!r} is out of range: this draft was trained for k={most}, so give 2 <= k <= {most}'
      )
    choices = _tree(self.choices, int(k) - 1, draft.module.choices)
    if isinstance(choices, Topology) and self.k is None:
      k = choices.max_depth + 1
    struct.assign(self, draft=draft, k=int(k), choices=choices)
    self.settle()

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    draft = self.draft.module
    most, width = draft.k - 1, min(WIDTH, draft.choices)
    chains, trees = [], []
    for n in choose_lengths(drafted, most):
      chains.append(dataclasses.replace(self, k=n + 1, choices=None))
    for n in nodes or TREES:
      if growing.fits(most, width, n):
        trees.append(dataclasses.replace(self, k=None, choices=n))
    return interleave(chains, trees)

  @property
  def drafts_trees(self) -> bool:
    return self.choices is not None

  @property
  def grows(self) -> bool:
    return isinstance(self.choices, int)

  @property
  def drafter(self) -> Drafter:
    return BlockDrafter(self.draft, self.k, self.choices, self.sampling, self.siblings)

  @property
  def most_accepted(self) -> int:
    if isinstance(self.choices, Topology):
      return self.choices.max_depth
    return self.k - 1

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    check_target(self.draft, model)


def _tree(choices: Any, depth: int, candidates: int) -> Topology | int | None:
  """Returns a static tree, the number of nodes of a growing one, or None for a chain.

  Raises:
    UserError: impossible choices.
  """
  if choices is None:
    return None
  if is_whole(choices, -(2**31), 'iu'):
    _, _, nodes = growing.check_sizes(depth, min(WIDTH, candidates), choices)
    return nodes
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
class Seen:
  """The network's memory of each row: the features of all positions before the root."""

  cache: WithMemory
  last: Float[Array, 'b d']  # the newest of them


@struct.pytree
class BlockDrafter:
  """Drafter of a chain or a static tree, of guesses or drawn, or of a tree grown to some nodes."""

  draft: Bound
  k: int = struct.static()
  tree: Topology | int | None = struct.static(default=None)
  sampling: Sampling | None = None
  siblings: Siblings | None = struct.static(default=None)  # how nodes are drawn; None: guesses

  @property
  def nodes(self) -> int:
    if self.tree is None:
      return self.k
    return self.tree.n if isinstance(self.tree, Topology) else self.tree

  @property
  def taps(self) -> Taps:
    return self.draft.module.taps

  def init(self, target: Bound, prefill: Prefill) -> Seen:
    module, params = self.draft
    rows, slots = len(prefill.root), prefill.capacity.total + module.rows
    cache = module.init_cache(params, source_of(target.module)(prefill.memory), rows, slots)
    return self._see(prefill.hidden, prefill.taps, prefill.prompt.length, cache)

  def propose(
    self, target: Bound, state: Seen, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Seen]:
    module, params = self.draft
    states = module.read(params, target, root, state.last, state.cache)[:, : self.k - 1]
    logits = module.logits(params, target, states)
    logits = suppress_words(params, logits, target.module.suppressed_ids)
    candidates = self._lattice(target, states, logits)
    if isinstance(self.tree, int):
      width = min(WIDTH, module.choices)
      tokens, topology = lattice.grow(candidates, root, width, self.tree, params.get('warmth'))
      return Draft(tokens, topology, calls=1), state
    topology = Topology.chain(self.k) if self.tree is None else self.tree
    if self.sampling is not None and self.siblings is not None:
      drawing = Drawing(self.siblings, self.sampling.log_probs, keys, module.vocab_size)
      drawn = lattice.sample(candidates, plan(topology, root, drawing))
      return Draft(drawn.filled, topology, drawn.laws, calls=1), state
    return Draft(lattice.fill(candidates, root, topology), topology, calls=1), state

  def observe(self, target: Bound, state: Seen, step: Step) -> Seen:
    hidden, taps = step.on_path((step.hidden, step.taps))
    return self._see(hidden, taps, step.count, state.cache)

  def _see(
    self,
    hidden: Float[Array, 'b n e'],
    taps: tuple[Float[Array, 'b n _'], ...],
    count: Int[Array, ' b'],
    cache: WithMemory,
  ) -> Seen:
    """Reads the first `count` of n positions that the target has read."""
    module, params = self.draft
    features = module.features(params, hidden, taps)
    positions = cache.length[:, None] + jnp.arange(features.shape[1], dtype=jnp.int32)[None]
    cache = module.remember(params, features, positions, cache).commit(None, count)
    return Seen(cache, take_node(features, jnp.maximum(count - 1, 0)))

  def _lattice(
    self, target: Bound, states: Float[Array, 'b g d'], logits: Float[Array, 'b g w']
  ) -> Lattice:
    """Returns the candidates of each token, and the edges from the token before."""
    module, params = self.draft
    scores, ids, after_bgmr = logits, params.get('ids'), None
    if module.choices < logits.shape[-1]:
      scores, chosen = best(logits, module.choices)
      ids = ids_of(params, chosen)
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
