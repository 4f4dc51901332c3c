"""Calls as wide as they pay: each call keeps the likely nodes of the draft, and leaves out others.

A drafter of point guesses says how likely each node will be kept (`Draft.chances`). Sorted by
that, the first w nodes are a tree for each w, and a call on them emits, as the drafter expects,

    E(w) = sum over running rows and their first w nodes of the chance; the root's is 1

tokens. All rows of the batch have one call, so they share w: the static width of the largest
E(w) / cost(w). The program has a call of each width, and the device chooses.

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
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.models.api import Nodes, causal
from fastdec.models.taps import Taps
from fastdec.struct import Bound

Costs = tuple[tuple[int, float], ...]


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
class AdaptiveDrafter:
  """Drafter that orders another one's nodes by their chances, and chooses how many are scored.

  Its state is the other one's, and a mask of the rows that are running.
  """

  drafter: Any
  costs: Costs = struct.static()

  @property
  def nodes(self) -> int:
    return self.drafter.nodes

  @property
  def taps(self) -> Taps:
    return getattr(self.drafter, 'taps', ())

  def init(self, target: Bound, prefill: Prefill) -> tuple[Any, Bool[Array, ' b']]:
    return self.drafter.init(target, prefill), ~jnp.asarray(prefill.prompt.empty)

  def propose(
    self, target: Bound, state: tuple[Any, Bool[Array, ' b']], root: Int[Array, ' b'], keys: Any
  ) -> tuple[Draft, tuple[Any, Bool[Array, ' b']]]:
    draft, own = self.drafter.propose(target, state[0], root, None)
    is_running = state[1]
    assert draft.chances is not None  # by `Adaptive`
    chances_bn = jnp.broadcast_to(draft.chances, draft.tokens.shape)
    if not draft.topology.is_chain:
      draft, chances_bn = _sort(draft, chances_bn)

    # The width of most tokens for its cost
    emitted_n = jnp.cumsum(jnp.where(is_running[:, None], chances_bn, 0).sum(axis=0))
    widths = tuple(width for width, _ in self.costs)
    rates = [emitted_n[width - 1] / cost for width, cost in self.costs]
    choice = jnp.argmax(jnp.stack(rates)).astype(jnp.int32)

    # Only scored nodes are acceptable.
    index_n = jnp.arange(draft.topology.n, dtype=jnp.int32)
    is_scored_n = index_n < jnp.asarray(widths, jnp.int32)[choice]
    acceptable = jnp.broadcast_to(draft.topology.acceptable, draft.tokens.shape)
    tree = dataclasses.replace(draft.topology, acceptable=acceptable & is_scored_n[None])
    narrowed = Narrowed(draft.tokens, tree, calls=draft.calls, widths=widths, choice=choice)
    return narrowed, (own, is_running)

  def observe(
    self, target: Bound, state: tuple[Any, Bool[Array, ' b']], step: Step
  ) -> tuple[Any, Bool[Array, ' b']]:
    return self.drafter.observe(target, state[0], step), step.count > 0


def _sort(draft: Draft, chances: Float[Array, 'b n']) -> tuple[Draft, Float[Array, 'b n']]:
  """Sorts a draft by its nodes' chances, the likeliest first; parents stay before children.

  No chance is above the parent's, and nodes of one chance keep their order.
  """
  order_bn = jnp.argsort(-chances, axis=1, stable=True).astype(jnp.int32)
  place_bn = jnp.argsort(order_bn, axis=1).astype(jnp.int32)

  def sort(x: Any) -> Array:
    return jnp.take_along_axis(jnp.broadcast_to(x, chances.shape), order_bn, axis=1)

  tree = draft.topology
  parents_bn = sort(tree.parents)
  moved_bn = jnp.take_along_axis(place_bn, jnp.maximum(parents_bn, 0), axis=1)
  mask = jnp.broadcast_to(tree.mask, (*chances.shape, tree.n))
  mask = jnp.take_along_axis(mask, order_bn[:, :, None], axis=1)
  topology = Topology(
    parents=jnp.where(parents_bn < 0, parents_bn, moved_bn),
    ranks=sort(tree.ranks),
    depths=sort(tree.depths),
    mask=jnp.take_along_axis(mask, order_bn[:, None, :], axis=2),
    acceptable=sort(tree.acceptable),
    max_depth=tree.max_depth,
  )
  draft = dataclasses.replace(draft, tokens=sort(draft.tokens), topology=topology)
  return draft, sort(chances)


@struct.pytree
class Adaptive(Combined):
  """Decoding with a strategy's guesses, as many in each call as pay (`methods.adaptive`).

  A call has one of some widths, that of the most tokens for its cost: as the drafter expects them,
  summed over the rows of the batch. With a cost for one node, a call where nothing is likely is a
  greedy one. It is lossless: the output is that of greedy decoding or, with `sampling`, has the
  distribution of `Sample`.

  Args:
    strategy: `Suffix`, or `Eagle` or `BlockDraft` with a tree, without a rule or a sampling of its
      own.
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
  takes = 'Suffix, or Eagle or BlockDraft with a tree,'
  example = 'a drafter: write adaptive(suffix(nodes=16), costs={1: 1.0, 16: 1.5})'

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.strategy.knows_chances:
      raise UserError(
        f'this {type(self.strategy).__name__} does not say how likely its guesses are: give'
        f' Adaptive {self.takes} without a rule or sampling'
      )
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
