"""Acceptance rules that compare a draft with the target's prediction (Stern et al. 2018, sections 3 and 5).

Each says which nodes match, given that their parents do; `longest` finds the longest matching path. The bonus is the
target's choice after that path: its argmax, or what `Sampling` draws. `Exact` and `Sampling` are lossless; the others
trade fidelity for longer blocks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.protocol import Accepted, Draft
from fastdec.decoding.sampling import argmax
from fastdec.decoding.topology import Topology, take_node, with_rows
from fastdec.errors import UserError

SMALLEST = float(np.finfo(np.float32).tiny)  # what lies below counts as 0 on the device


class _Matching:
  """A rule made of `matches`: which nodes agree with the target's prediction at their parent."""

  def matches(self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']) -> Bool[Array, 'b n']:
    raise NotImplementedError

  def choose(self, keys: Array | None, logits: Float[Array, 'b n v']) -> Int[Array, 'b n']:
    """The target's own choice of the token after each node."""
    return argmax(logits)

  def __call__(
    self, keys: Array | None, draft: Draft, logits: Float[Array, 'b n v'], acceptable: Bool[Array, 'b n']
  ) -> Accepted:
    choice = self.choose(keys, logits)
    matching = self.matches(draft, logits, choice) & acceptable
    node = longest(matching, draft, logits)
    return Accepted(node=node, bonus=take_node(choice, node))


@struct.pytree
class Exact(_Matching):
  """A draft is accepted where it is the target's argmax. Lossless: the output is the target's greedy output."""

  def matches(self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']) -> Bool[Array, 'b n']:
    return draft.tokens == at_parent(choice, draft.topology)


@struct.pytree
class TopN(_Matching):
  """A draft is accepted where it is among the target's n most likely tokens (section 5.1). Not lossless."""

  n: Any  # int32 scalar

  def __post_init__(self) -> None:
    object.__setattr__(self, 'n', _number(self.n, 1, 'TopN takes n'))

  def matches(self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']) -> Bool[Array, 'b n']:
    predicted = at_parent(logits, draft.topology)
    own = jnp.take_along_axis(predicted, draft.tokens[..., None], axis=-1)
    index = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None]
    before = (predicted == own) & (index < draft.tokens[..., None])  # ties: lowest id first
    return ((predicted > own) | before).sum(-1) < self.n


@struct.pytree
class Distance(_Matching):
  """A draft is accepted within tau of the target's argmax, ids taken as intensities (section 5.2). Not lossless."""

  tau: Any  # int32 scalar

  def __post_init__(self) -> None:
    object.__setattr__(self, 'tau', _number(self.tau, 0, 'Distance takes tau'))

  def matches(self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']) -> Bool[Array, 'b n']:
    return jnp.abs(draft.tokens - at_parent(choice, draft.topology)) <= self.tau


@struct.pytree
class MinBlock(_Matching):
  """At least `size` tokens are kept per call, the root's counted (section 5.3): the first size - 1 drafts unseen.
  Needs a chain. Not lossless for size > 1. size may exceed the block: then all of it is kept."""

  rule: _Matching
  size: Any  # int32 scalar

  def __post_init__(self) -> None:
    object.__setattr__(self, 'size', _number(self.size, 1, 'MinBlock takes size'))

  def matches(self, draft: Draft, logits: Float[Array, 'b n v'], choice: Int[Array, 'b n']) -> Bool[Array, 'b n']:
    if not draft.topology.is_chain:
      raise UserError('MinBlock needs a chain of drafts, and this draft is a tree: use another rule, or no tree')
    return self.rule.matches(draft, logits, choice) | (draft.topology.depths < self.size)[None]


def at_parent(x: Array, topology: Topology) -> Array:
  """For each node, what x [b, n, ...] holds at its parent (the root: at itself, where nobody reads it)."""
  if topology.is_chain:
    return jnp.concatenate([x[:, :1], x[:, :-1]], axis=1)
  if topology.is_static:
    return x[:, topology.parents.clip(0)]
  parents = topology.parents.clip(0)
  return jnp.take_along_axis(x, parents.reshape(*parents.shape, *([1] * (x.ndim - 2))), axis=1)


def longest(matching: Bool[Array, 'b n'], draft: Draft, logits: Float[Array, 'b n v']) -> Int[Array, ' b']:
  """The last node of the longest path whose nodes all match. Among equally long ones that of the highest summed target
  log-probability, then the lowest node."""
  topology = draft.topology
  depths = with_rows(topology.depths, 2)
  matching = matching | (depths == 0)
  if topology.is_chain:
    return jnp.cumprod(matching, axis=1).sum(axis=1, dtype=jnp.int32) - 1
  mask = with_rows(topology.mask, 3)
  alive = (matching[:, None, :] | ~mask).all(-1)
  depth = jnp.where(alive, depths, -1)
  deepest = depth == depth.max(axis=1, keepdims=True)
  own = jnp.take_along_axis(at_parent(logits, topology), draft.tokens[..., None], axis=-1)[..., 0]
  gain = jnp.where(depths == 0, 0, own - at_parent(jax.nn.logsumexp(logits, axis=-1), topology))
  score = jnp.where(mask, gain[:, None, :], 0).sum(-1)
  score = jnp.maximum(score, jnp.finfo(score.dtype).min)  # a suppressed token's is minus infinity
  return argmax(jnp.where(deepest, score, -jnp.inf))


def is_outside(value: Any, allowed: Callable[[Any], bool]) -> bool:
  """False for what is traced: it was checked outside."""
  return not isinstance(value, jax.core.Tracer) and not allowed(value)


def _number(value: Any, least: int, takes: str) -> Int[Array, '']:
  """The setting as int32, whatever number it came as: one compiled program. What is traced was checked outside."""
  if not isinstance(value, jax.core.Tracer) and value < least:
    raise UserError(f'{takes} >= {least}, not {value}')
  return jnp.asarray(value, jnp.int32)
