"""Drafting by an autoregressive network on the target's features: EAGLE, MTP.

See Li et al. 2024 and 2025. In a chain each token is guessed from the network's own state after the
token before. A tree grows where the network is confident (EAGLE-2, `growing`), for any number of
rows. After each call of the target the network reads the accepted tokens again, with the target's
features, and forgets what it read of its guesses. So a draft takes one pass of the network for its
first token, and one for each further level.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.cache.loops import fori_loop
from fastdec.cache.memory import WithMemory
from fastdec.decoding.drafted_by import check_draft
from fastdec.decoding.methods import growing
from fastdec.decoding.methods.drafts_with_probs import DraftsWithProbs
from fastdec.decoding.methods.planned import Drawing, Planned, parents_at, plan
from fastdec.decoding.methods.trees import static_tree
from fastdec.decoding.prefill import chunks_of, in_chunks
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Rule, Step
from fastdec.decoding.rules.recursive import Siblings
from fastdec.decoding.sampling import Sampling, argmax, draw, fold_keys, scale
from fastdec.decoding.settings import Whole, size
from fastdec.decoding.strategy import DRAFTED, TREES, Sizes, interleave
from fastdec.decoding.topology import Topology, take_node
from fastdec.heads.draft import check_target
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.words import ids_of, in_target_words, suppress_words
from fastdec.models.api import Model, source_of
from fastdec.models.taps import Taps
from fastdec.struct import Bound

# Trees worth trying: children of each node, and depths.
WIDTH = 8
LEVELS = (5, 3)


@struct.pytree
class Eagle(DraftsWithProbs):
  """Decoding with an autoregressive draft network (EAGLE-1, -2, -3; MTP).

  Lossless with the default rules. With `sampling` a chain is drawn from the draft's distribution,
  and `Rejection` accepts it. A tree consists of the draft's best guesses; those that the target
  draws are accepted. With a rule for drawn trees, such as `Traversal()`, a static tree is drawn
  too.

  Args:
    draft: (module, params), an `EagleNetwork` as `load_draft` gives it.
    depth: tokens below the root, at most.
    width: 1: a chain of `depth` tokens. More: the children of each node, and the expanded nodes of
      each level.
    nodes: tokens that the target scores in a call, the root included (None: 1 + depth * width).
    rule: None: `Exact()` without sampling; with it, `Rejection()` for a chain, and the target's own
      draw for a tree.
    sampling: how tokens are drawn, of target and draft alike; None: the most likely token.
    choices: a static tree instead of one that grows by depth, width and nodes: as `Medusa` takes
      it, or its number of children level by level, such as (1, 1, 3, 1).

  Raises:
    UserError: another kind of draft, or impossible sizes of a tree.
  """

  draft: Any
  depth: Whole = struct.static(default=7)
  width: Whole = struct.static(default=1)
  nodes: Whole = struct.static(default=None)
  rule: Rule | None = None
  sampling: Sampling | None = None
  choices: Any = struct.static(default=None)
  part = 'draft'
  drafts_for = EagleNetwork
  joins = True

  def __post_init__(self) -> None:
    draft = check_draft(self.draft, 'draft', EagleNetwork)
    words = draft.module.words or draft.module.vocab_size
    if self.choices is not None:
      tree = static_tree(self.choices)
      sizes = {'depth': tree.max_depth, 'width': int(tree.ranks.max()) + 1, 'nodes': tree.n}
      struct.assign(self, choices=tree, **sizes)
    depth = size('depth', self.depth, 1, 'how many tokens deep drafts may be, 1 or more')
    width = size('width', self.width, 1, '1 for a chain, or more for a tree')
    nodes = 1 + depth * width if self.nodes is None else self.nodes
    depth, width, nodes = growing.check_sizes(depth, width, nodes, words)
    struct.assign(self, draft=draft, depth=depth, width=width, nodes=nodes)
    self.settle()

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    growing_tree = dataclasses.replace(self, choices=None)
    chains = [
      dataclasses.replace(growing_tree, depth=n, width=1, nodes=None) for n in drafted or DRAFTED
    ]
    trees = []
    for n in nodes or TREES:
      for depth in LEVELS:
        if growing.fits(depth, WIDTH, n):
          trees.append(dataclasses.replace(growing_tree, depth=depth, width=WIDTH, nodes=n))
    return interleave(chains, trees)

  @property
  def drafts_trees(self) -> bool:
    return self.width > 1

  @property
  def grows(self) -> bool:
    return self.choices is None

  @property
  def drafter(self) -> Drafter:
    if self.drafts_trees:
      sizes = self.depth, self.width, self.nodes, self.choices
      return TreeDrafter(self.draft, *sizes, self.sampling, self.siblings)
    return ChainDrafter(self.draft, self.depth, self.sampling)

  @property
  def most_accepted(self) -> int:
    return self.depth

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    check_target(self.draft, model)


@struct.pytree
class Read:
  """The network's memory of each row: all emitted tokens, the root included."""

  cache: WithMemory
  # the network's output at the root, for the first guess; of blocks the newest feature
  last: Float[Array, 'b d']


class ReadingDrafter:
  """Common part of drafters by networks, which read accepted tokens with the target's features."""

  draft: Bound

  @property
  def guessed(self) -> int:
    """Number of rows that the network reads to make a draft."""
    raise NotImplementedError

  @property
  def taps(self) -> Taps:
    return self.draft.module.taps

  def init(self, target: Bound, prefill: Prefill) -> Read:
    module, params = self.draft
    prompt = prefill.prompt
    slots = prefill.capacity.total + self.guessed
    source = source_of(target.module)(prefill.memory)
    cache = module.init_cache(params, source, len(prefill.root), slots)
    following = _shift(prompt.tokens, prefill.root, prompt.length)

    # A long prompt is read in chunks. The last output of each row is in its last chunk.
    def read(cache: WithMemory, chunk: Any, count: Int[Array, ' b']) -> tuple[WithMemory, Array]:
      hidden, taps, following = chunk
      state = self._read(target, hidden, taps, following, count, cache)
      return state.cache, state.last[:, None]

    states = (prefill.hidden, prefill.taps, following)
    cache, last = in_chunks(read, cache, states, prompt.length, prompt.chunk)
    _, width = chunks_of(following.shape[1], prompt.chunk)
    return Read(cache, take_node(last, (prompt.length - 1) // width))

  def observe(self, target: Bound, state: Read, step: Step) -> Read:
    hidden, taps = step.on_path((step.hidden, step.taps))
    following = _shift(step.on_path(step.draft.tokens), step.root, step.count)
    return self._read(target, hidden, taps, following, step.count, state.cache)

  def _read(
    self,
    target: Bound,
    hidden: Float[Array, 'b n e'],
    taps: tuple[Float[Array, 'b n _'], ...],
    following: Int[Array, 'b n'],
    count: Int[Array, ' b'],
    cache: WithMemory,
  ) -> Read:
    """Reads the first `count` of n positions of the target, each with the token after it."""
    module, params = self.draft
    features = module.features(params, hidden, taps)
    rows, cache = module.see(params, target, features, following, cache)
    return Read(cache.commit(None, count), take_node(rows, jnp.maximum(count - 1, 0)))

  def _logits(self, target: Bound, states: Float[Array, '*b d']) -> Float[Array, '*b w']:
    """Returns logits over the draft's words, minus infinity for words that are never emitted."""
    module, params = self.draft
    logits = module.logits(params, target, states)
    return suppress_words(params, logits, target.module.suppressed_ids)


@struct.pytree
class ChainDrafter(ReadingDrafter):
  """Drafter of a chain, greedily or by sampling."""

  draft: Bound
  depth: int = struct.static()
  sampling: Sampling | None = None

  @property
  def guessed(self) -> int:
    return self.depth

  @property
  def nodes(self) -> int:
    return self.depth + 1

  def propose(
    self, target: Bound, state: Read, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Read]:
    module, params = self.draft
    b, n = root.shape[0], self.nodes
    length, slots = state.cache.length, state.cache.own.slots

    def guess(
      i: int | Array, last: Array, tokens: Array, q: Array | None
    ) -> tuple[Array, Array | None]:
      logits = self._logits(target, last)
      if q is None or self.sampling is None:
        return tokens.at[:, i + 1].set(ids_of(params, argmax(logits))), None
      log_q = self.sampling.log_probs(in_target_words(params, logits, module.vocab_size))
      drawn = draw(fold_keys(keys, i), log_q)
      return tokens.at[:, i + 1].set(drawn), q.at[:, i + 1].set(jnp.exp(log_q))

    def read_next(i: Int[Array, ''], carry: tuple[Array, Array, Array | None, WithMemory]) -> Any:
      last, tokens, q, cache = carry
      token = jax.lax.dynamic_slice_in_dim(tokens, i, 1, axis=1)
      place = length + i - 1
      mask = jnp.arange(slots, dtype=jnp.int32)[None, None] <= place[:, None, None]
      embedded = module.embedded(params, target, token)
      states, cache = module.read(
        params, embedded, last[:, None], place[:, None], mask, cache, place
      )
      return states[:, 0], *guess(i, states[:, 0], tokens, q), cache

    tokens = jnp.broadcast_to(root[:, None], (b, n))
    q = None
    if self.sampling is not None:
      wide = jnp.promote_types(state.last.dtype, jnp.float32)
      q = jnp.zeros((b, n, module.vocab_size), wide)
    tokens, q = guess(0, state.last, tokens, q)
    carry = (state.last, tokens, q, state.cache)
    _, tokens, q, cache = fori_loop(1, self.depth, read_next, carry, nodes=1)
    return Draft(tokens, Topology.chain(n), q, calls=self.depth), Read(cache, state.last)


@struct.pytree
class TreeDrafter(ReadingDrafter):
  """Drafter of the tree of the likeliest paths (`growing`), or of a static one (`planned`)."""

  draft: Bound
  depth: int = struct.static()
  width: int = struct.static()
  nodes: int = struct.static()
  choices: Topology | None = struct.static(default=None)
  sampling: Sampling | None = None
  siblings: Siblings | None = struct.static(default=None)  # how nodes are drawn; None: guesses

  @property
  def widths(self) -> list[int]:
    """The number of nodes that the network reads of each level but the last."""
    levels = range(1, self.depth)
    if self.choices is not None:
      return [len(parents_at(self.choices, level)) for level in levels]
    return [growing.frontier_width(level, self.width, self.nodes) for level in levels]

  @property
  def guessed(self) -> int:
    return sum(self.widths)

  def propose(
    self, target: Bound, state: Read, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Read]:
    module, params = self.draft
    cache, length = state.cache, state.cache.length
    ids = params['ids'].astype(root.dtype) if 'ids' in params else None

    # For each slot with a guess, how many positions after the root the guess is
    places = jnp.asarray(np.repeat(np.arange(self.depth - 1, dtype=np.int32), self.widths))

    states = state.last[:, None]  # outputs of the level before
    if self.choices is None:
      tree = growing.start(self._log_q(target, state.last, 0), self.width, self.nodes, ids)
    else:
      drawing = None
      if self.sampling is not None and self.siblings is not None:
        drawing = Drawing(self.siblings, self.sampling.log_probs, keys, module.vocab_size)
      tree = plan(self.choices, root, drawing).advance(self._logits(target, states), ids)
    for level in range(1, self.depth):
      # The frontier's nodes, each with its parent's output, see the text and their ancestors.
      before = jnp.take_along_axis(states, tree.origin[..., None], axis=1)
      embedded = module.embedded(params, target, tree.tokens)
      positions = jnp.broadcast_to(length[:, None] + (level - 1), tree.tokens.shape)
      mask = frontier_mask(tree.sees, length, cache.own.slots)

      # The nodes of a level are in slots one after the other, and all at the same position.
      start = length + sum(self.widths[: level - 1])
      slots = jnp.arange(mask.shape[2], dtype=jnp.int32)[None] - length[:, None]
      offsets = jnp.where(slots < 0, slots, places[slots.clip(0, self.guessed - 1)])
      at = length[:, None] + offsets
      states, cache = module.read(params, embedded, before, positions, mask, cache, start, at)
      if isinstance(tree, Planned):
        tree = tree.advance(self._logits(target, states), ids)
      else:
        tree = growing.advance(tree, self._log_q(target, states, level), ids)
    if isinstance(tree, Planned):
      draft = Draft(tree.filled, tree.topology, tree.laws, calls=self.depth)
    else:
      tokens, topology, chances = growing.finish(tree, root)
      draft = Draft(tokens, topology, calls=self.depth, chances=chances)
    return draft, Read(cache, state.last)

  def _log_q(self, target: Bound, states: Float[Array, '*b d'], level: int) -> Float[Array, '*b w']:
    """Returns log-probabilities over the draft's words, calibrated for this level."""
    logits = self._logits(target, states)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    temperatures = self.draft.params.get('warmth')
    if temperatures is not None:
      logits = scale(logits, temperatures[min(level, temperatures.shape[0] - 1)])
    return jax.nn.log_softmax(logits, axis=-1)


def _shift(
  tokens: Int[Array, 'b n'], root: Int[Array, ' b'], count: Int[Array, ' b']
) -> Int[Array, 'b n']:
  """Returns the token after each of the first `count` tokens; the root comes after the last."""
  is_last = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] == count[:, None] - 1
  return jnp.where(is_last, root[:, None], jnp.roll(tokens, -1, axis=1))


def frontier_mask(
  among: Bool[Array, 'b w m'], length: Int[Array, ' b'], slots: int
) -> Bool[Array, 'b w s']:
  """Returns the mask of the slots that a frontier sees.

  They are the slots of the text, and those of each node's ancestors among the m guesses.
  """
  m = among.shape[-1]
  row_bs = jnp.arange(slots, dtype=jnp.int32)[None] - length[:, None]
  seen_bws = jnp.take_along_axis(among, row_bs.clip(0, m - 1)[:, None], axis=-1)
  return (row_bs < 0)[:, None] | (seen_bws & (row_bs < m)[:, None])
