"""Calls as wide as they pay: each call keeps the likely nodes of the draft, and leaves out others.

A drafter of point guesses may say how likely each node will be kept (`Draft.chances`). Where it
does not, a node of rank r has 1 / (2 + 2 r) of its parent's chance. Sorted by that, the first w
nodes are a tree for each w, and a call on them emits, as is expected,

    E(w) = sum over running rows and their first w nodes of the chance; the root's is 1

tokens. All rows of the batch have one call, so they share w: the static width of the largest
E(w) / cost(w). The program has a call of each width, and the device chooses.

In E(w) the chances are calibrated by counts: those of nodes that were scored in earlier calls of
the batch, in classes of like chance, and how many of them were kept. Older calls count less, so
that a class which was given up is tried again.

    chance    (kept + PRIOR x what the drafter says) / (scored + PRIOR)

Which nodes are scored follows from the text before the call, never from what the call draws. So a
rule that is lossless for all trees of point guesses stays lossless ("what a length may look at").
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.cache.loops import while_loop
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Step
from fastdec.decoding.sampling import Sampling
from fastdec.decoding.settings import is_number, is_whole
from fastdec.decoding.strategy import Combined
from fastdec.decoding.topology import Topology, take_node, with_rows
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.models.api import Nodes, causal
from fastdec.models.taps import Taps
from fastdec.struct import Bound

Costs = tuple[tuple[int, float], ...]

CLASSES = 24  # of chances, by their log-odds
STEP = 0.5  # of the log-odds, from one class to the next
PRIOR = 4.0  # nodes that the drafter's own word counts for
KEEP = 0.99  # of the counts, from one call to the next


@dataclasses.dataclass(frozen=True)
class Narrowed(Draft):
  """A draft whose first widths[choice] nodes are scored. The others are not acceptable."""

  widths: tuple[int, ...] = ()
  choice: Int[Array, ''] | int = 0

  def score(self, call: Callable[[Array, Nodes, Any], Any], cache: Any) -> Any:
    tree = self.topology
    whole = jax.eval_shape(call, self.tokens, tree.nodes, cache)

    # Results of nodes that are left out are zeros. Entries of the cache are written in place.
    results = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), whole)
    results = (*results[:-1], _start_from(cache, results[-1]))

    # Each width has a loop, and the chosen one's makes one turn. A loop writes a cache in place;
    # a branch of `lax.switch` copies it whole.
    for i, width in enumerate(self.widths):
      if tree.is_chain:
        nodes = causal(width)
      else:
        nodes = Nodes(tree.parents[:, :width], tree.depths[:, :width], tree.mask[:, :width, :width])

      def turn(state: tuple[Array, Any], width: int = width, nodes: Nodes = nodes) -> Any:
        _, results = state
        narrow = call(self.tokens[:, :width], nodes, _start_from(results[-1], cache))
        return jnp.array(False), jax.tree.map(_widen, narrow, whole)

      waits = jnp.asarray(self.choice) == i
      _, results = while_loop(lambda state: state[0], turn, (waits, results), width)
    return results


def _start_from(cache: Any, other: Any) -> Any:
  """Returns `other` with the entries of `cache` that have the same shapes."""
  if jax.tree.structure(cache) != jax.tree.structure(other):
    return other
  return jax.tree.map(lambda x, y: x if x.shape == y.shape else y, cache, other)


def _widen(x: Array, like: jax.ShapeDtypeStruct) -> Array:
  """Pads an array with zeros at the end of each axis to a shape."""
  return jnp.pad(x, [(0, most - n) for n, most in zip(x.shape, like.shape, strict=True)])


@struct.pytree
class Watched:
  """The other drafter's state, and what happened to nodes of each class of chances."""

  own: Any
  is_running: Bool[Array, ' b']
  scored: Float[Array, 'b c']
  kept: Float[Array, 'b c']

  def calibrate(self, chances: Float[Array, 'b n']) -> Float[Array, 'b n']:
    """Returns the chances corrected by the counts of all rows; that of the root is 1."""
    of_class = _class_of(chances)
    scored_bn, kept_bn = self.scored.sum(axis=0)[of_class], self.kept.sum(axis=0)[of_class]
    corrected = (kept_bn + PRIOR * chances) / (scored_bn + PRIOR)
    return jnp.where(chances > 0, corrected, 0).at[:, 0].set(1)


def _class_of(chances: Float[Array, 'b n']) -> Int[Array, 'b n']:
  odds = jax.scipy.special.logit(chances.clip(1e-6, 1 - 1e-6))
  return (CLASSES // 2 + jnp.floor(odds / STEP)).clip(0, CLASSES - 1).astype(jnp.int32)


@struct.pytree
class AdaptiveDrafter:
  """Drafter that orders another one's nodes by their chances, and chooses how many are scored."""

  drafter: Any
  costs: Costs = struct.static()

  @property
  def nodes(self) -> int:
    return self.drafter.nodes

  @property
  def taps(self) -> Taps:
    return getattr(self.drafter, 'taps', ())

  def init(self, target: Bound, prefill: Prefill) -> Watched:
    is_running = ~jnp.asarray(prefill.prompt.empty)
    nothing = jnp.zeros((len(is_running), CLASSES), jnp.float32)
    return Watched(self.drafter.init(target, prefill), is_running, nothing, nothing)

  def propose(
    self, target: Bound, state: Watched, root: Int[Array, ' b'], keys: Any
  ) -> tuple[Draft, Watched]:
    draft, own = self.drafter.propose(target, state.own, root, None)
    tree, chances = draft.topology, draft.chances
    if chances is None:
      ranks = with_rows(tree.ranks, 2).astype(jnp.float32)
      shares_bn = jnp.where(with_rows(tree.depths, 2) > 0, 1 / (2 + 2 * ranks), 1)
      chances = jnp.where(with_rows(tree.mask, 3), shares_bn[:, None], 1).prod(axis=-1)
    acceptable = jnp.broadcast_to(tree.acceptable, draft.tokens.shape)
    chances = jnp.where(acceptable, chances, 0).astype(jnp.float32)
    draft = dataclasses.replace(draft, chances=chances)
    if not tree.is_chain:
      draft = _sort(draft)
    assert draft.chances is not None

    # The width of most tokens for its cost
    chances_bn = state.calibrate(draft.chances)
    emitted_n = jnp.cumsum(jnp.where(state.is_running[:, None], chances_bn, 0).sum(axis=0))
    widths = tuple(width for width, _ in self.costs)
    rates = [emitted_n[width - 1] / cost for width, cost in self.costs]
    choice = jnp.argmax(jnp.stack(rates)).astype(jnp.int32)

    # Only scored nodes are acceptable.
    index_n = jnp.arange(draft.topology.n, dtype=jnp.int32)
    is_scored_n = index_n < jnp.asarray(widths, jnp.int32)[choice]
    acceptable = jnp.broadcast_to(draft.topology.acceptable, draft.tokens.shape)
    tree = dataclasses.replace(draft.topology, acceptable=acceptable & is_scored_n[None])
    narrowed = Narrowed(
      draft.tokens, tree, calls=draft.calls, chances=draft.chances, widths=widths, choice=choice
    )
    return narrowed, dataclasses.replace(state, own=own)

  def observe(self, target: Bound, state: Watched, step: Step) -> Watched:
    # Count the nodes below the root that were scored, and those that the rule kept.
    tree, is_running = step.draft.topology, step.count > 0
    assert step.draft.chances is not None  # by `propose`
    is_scored_bn = jnp.asarray(tree.acceptable).at[:, 0].set(False) & is_running[:, None]
    above = jnp.broadcast_to(tree.mask, (*is_scored_bn.shape, tree.n))
    is_kept_bn = is_scored_bn & take_node(above, step.accepted.node)
    of_class = jax.nn.one_hot(_class_of(step.draft.chances), CLASSES, dtype=jnp.float32)

    def count(counts: Float[Array, 'b c'], nodes: Bool[Array, 'b n']) -> Float[Array, 'b c']:
      return KEEP * counts + jnp.einsum('bn,bnc->bc', nodes.astype(jnp.float32), of_class)

    own = self.drafter.observe(target, state.own, step)
    scored, kept = count(state.scored, is_scored_bn), count(state.kept, is_kept_bn)
    return Watched(own, is_running, scored, kept)


def _sort(draft: Draft) -> Draft:
  """Sorts a draft by its nodes' chances, the likeliest first; parents stay before children.

  No chance is above the parent's, and nodes of one chance keep their order.
  """
  assert draft.chances is not None
  order_bn = jnp.argsort(-draft.chances, axis=1, stable=True).astype(jnp.int32)
  place_bn = jnp.argsort(order_bn, axis=1).astype(jnp.int32)

  def sort(x: Any) -> Array:
    return jnp.take_along_axis(jnp.broadcast_to(x, order_bn.shape), order_bn, axis=1)

  tree = draft.topology
  parents_bn = sort(tree.parents)
  moved_bn = jnp.take_along_axis(place_bn, jnp.maximum(parents_bn, 0), axis=1)
  mask = jnp.broadcast_to(tree.mask, (*order_bn.shape, tree.n))
  mask = jnp.take_along_axis(mask, order_bn[:, :, None], axis=1)
  topology = Topology(
    parents=jnp.where(parents_bn < 0, parents_bn, moved_bn),
    ranks=sort(tree.ranks),
    depths=sort(tree.depths),
    mask=jnp.take_along_axis(mask, order_bn[:, None, :], axis=2),
    acceptable=sort(tree.acceptable),
    max_depth=tree.max_depth,
  )
  chances_bn = sort(draft.chances)
  return dataclasses.replace(
    draft, tokens=sort(draft.tokens), topology=topology, chances=chances_bn
  )


@struct.pytree
class Adaptive(Combined):
  """Decoding with a strategy's guesses, as many in each call as pay (`methods.adaptive`).

  A call has one of some widths, that of the most tokens for its cost: as the drafter and the calls
  before let expect them, summed over the rows of the batch. With a cost for one node, a call where
  nothing is likely is a greedy one. It is lossless: the output is that of greedy decoding or, with
  `sampling`, has the distribution of `Sample`.

  Args:
    strategy: `PromptLookup`, `Suffix`, `Forced`, `Eagle`, `BlockDraft`, `Blockwise` or `Medusa`,
      without a rule or a sampling of its own.
    costs: {nodes: cost} of calls of some widths in any unit, such as milliseconds (`call_ms` of
      `fd.tune`) with the draft's own time. The largest width is that of the strategy.
    sampling: how tokens are drawn, for which `decode` needs a key; None: greedy decoding.

  Raises:
    UserError: another strategy, or costs of impossible widths.
  """

  strategy: Any
  costs: Any = struct.static()
  sampling: Sampling | None = None

  parts = ('strategy',)
  takes = 'PromptLookup, Suffix, Forced, Eagle, BlockDraft, Blockwise or Medusa'
  example = 'a drafter: write adaptive(suffix(nodes=16), costs={1: 1.0, 16: 1.5})'

  def __post_init__(self) -> None:
    super().__post_init__()
    struct.assign(self, costs=_check_costs(self.costs, self.strategy.drafter.nodes))

  @property
  def drafter(self) -> Drafter:
    return AdaptiveDrafter(self.strategy.drafter, self.costs)


def _check_costs(costs: Any, nodes: int) -> Costs:
  """Returns widths and costs, the narrowest first; raises UserError if they are impossible."""
  pairs = sorted(dict(costs).items()) if isinstance(costs, dict | tuple) else []
  fits = bool(pairs) and all(
    is_whole(width, 1, 'iu', nodes) and is_number(cost) and 0 < cost < math.inf
    for width, cost in pairs
  )
  if not (fits and pairs[-1][0] == nodes):
    raise UserError(
      f'costs={quote(costs)} are not possible: give {{nodes: cost}} of some widths from 1 to'
      f' {nodes}, the nodes of the strategy, which is one of them, with costs above 0'
    )
  return tuple((int(width), float(cost)) for width, cost in pairs)
