"""The n-grams of a text, for drafts that begin with the newest emitted token.

An n-gram is n tokens: the first is its key, and the others are its value, which once followed the
key. Each row has a log of n-grams, an array in the order in which they came. A search returns the
newest different values of a key. A dictionary of lists would keep the same values if it dropped the
one that was neither added nor repeated for the longest time.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fastdec import struct

NONE = -1  # the key of a slot that holds no n-gram


@struct.pytree
class Log:
  """The n-grams of each row, the oldest first."""

  grams: Int[Array, 'b m l']  # each column is one: key, then value
  length: Int[Array, ' b']  # n-grams so far

  @classmethod
  def of(cls, grams: Int[Array, 'b m l'], slots: int) -> 'Log':
    """Returns a log of these n-grams with room for `slots` more."""
    b, _, length = grams.shape
    grams = jnp.pad(grams, ((0, 0), (0, 0), (0, slots)), constant_values=NONE)
    return cls(grams, jnp.full(b, length, jnp.int32))

  def append(self, grams: Int[Array, 'b m w'], count: Int[Array, ' b']) -> 'Log':
    """Appends the first `count` of these n-grams. The key of the others must be NONE."""

    def put(row: Array, new: Array, place: Array) -> Array:
      return jax.lax.dynamic_update_slice_in_dim(row, new, place, axis=1)

    return Log(jax.vmap(put)(self.grams, grams, self.length), self.length + count)

  def newest(
    self, key: Int[Array, ' b'], count: int
  ) -> tuple[Int[Array, 'b g c'], Bool[Array, 'b g']]:
    """Returns the newest different values of each row's key, newest first; g = count, c = m - 1.

    The second result is a mask of the values that were found.
    """
    b, m, slots = self.grams.shape
    index = jnp.arange(slots, dtype=jnp.int32)[None]

    # Each pass takes the newest n-gram that is left, and removes it with all its repetitions.
    def find(carry: tuple[Array, ...]) -> tuple[Array, ...]:
      i, is_left, values, known = carry
      place = jnp.where(is_left, index, -1).max(axis=1)
      gram = jnp.take_along_axis(self.grams, jnp.maximum(place, 0)[:, None, None], axis=2)
      is_left &= ~(self.grams == gram).all(axis=1)
      values = values.at[:, i].set(gram[:, 1:, 0])
      return i + 1, is_left, values, known.at[:, i].set(place >= 0)

    is_left = self.grams[:, 0] == key[:, None]
    values, known = jnp.zeros((b, count, m - 1), jnp.int32), jnp.zeros((b, count), bool)
    _, _, values, known = jax.lax.while_loop(
      lambda carry: (carry[0] < count) & carry[1].any(),
      find,
      (jnp.int32(0), is_left, values, known),
    )
    return values, known


def extend_values(
  values: tuple[Int[Array, 'b g c'], Int[Array, 'b h c']],
  known: tuple[Bool[Array, 'b g'], Bool[Array, 'b h']],
) -> tuple[Int[Array, 'b g c'], Bool[Array, 'b g']]:
  """Fills the first list up with values of the second that it does not have."""
  both_bjc, known_bj = jnp.concatenate(values, axis=1), jnp.concatenate(known, axis=1)
  # A known value is wanted unless the same value is before it. is_before[i, j]: j is before i.
  same = (both_bjc[:, :, None] == both_bjc[:, None]).all(-1) & known_bj[:, None]
  is_before = jnp.tri(known_bj.shape[1], k=-1, dtype=bool)[None]
  wanted_bj = known_bj & ~(same & is_before).any(-1)
  order = jnp.argsort(~wanted_bj, axis=1, stable=True)[:, : known[0].shape[1]]
  merged = jnp.take_along_axis(both_bjc, order[..., None], axis=1)
  return merged, jnp.take_along_axis(wanted_bj, order, axis=1)


def cut_ngrams(tokens: Int[Array, 'b t'], length: Int[Array, ' b'], n: int) -> Int[Array, 'b n l']:
  """Returns all n-grams of the first `length` tokens of each row, l = max(t - n + 1, 0).

  n-grams that reach beyond these tokens have the key NONE.
  """
  slots = max(tokens.shape[1] - n + 1, 0)
  grams = jnp.stack([tokens[:, i : i + slots] for i in range(n)], axis=1)
  is_whole = jnp.arange(slots, dtype=jnp.int32)[None] + n <= length[:, None]
  return grams.at[:, 0].set(jnp.where(is_whole, grams[:, 0], NONE))


@struct.pytree
class Merged:
  """Chains below the root as one trie: where chains agree, the nodes of the first one are kept."""

  parents: Int[Array, 'b g c']  # node g * c + d is the d-th of chain g; -1: the root
  sees: Bool[Array, 'b n n']  # [i, j]: node i sees node j, an ancestor or itself; n = g * c
  is_kept: Bool[Array, 'b g c']


def merge(chains: Int[Array, 'b g c'], known: Bool[Array, 'b g']) -> Merged:
  """Merges chains into a trie. Nodes of unknown chains are not kept and have no children.

  For the chains a b c and a d e, the first chain's node a stands for both, and d becomes its child:

      node     0  1  2   3  4  5
      token    a  b  c   a  d  e
      parent  -1  0  1  -1  0  4      3 is not kept
  """
  b, g, c = chains.shape
  # For each node, the first chain that begins with the same tokens. same: [b, g, other chain, c].
  same = jnp.cumprod(chains[:, :, None] == chains[:, None, :], axis=-1).astype(bool)
  same &= known[:, :, None, None] & known[:, None, :, None]
  first = jnp.argmax(same, axis=2).astype(jnp.int32)

  # The node of the d-th token of each chain
  depth, own = jnp.arange(c, dtype=jnp.int32), jnp.arange(g, dtype=jnp.int32)
  node = first * c + depth[None, None]
  parents = jnp.pad(node[:, :, :-1], ((0, 0), (0, 0), (1, 0)), constant_values=-1)
  is_kept = known[:, :, None] & (first == own[None, :, None])

  # The ancestors of each node. is_above[d, e]: the e-th of a chain is above the d-th.
  is_above = depth[None, :] < depth[:, None]
  index = jnp.arange(g * c, dtype=jnp.int32)
  above = jnp.where(is_above[None, None], node[:, :, None, :], -1).reshape(b, g * c, c)
  sees = (above[..., None] == index[None, None, None]).any(axis=2)
  return Merged(parents, sees | jnp.eye(g * c, dtype=bool)[None], is_kept)
