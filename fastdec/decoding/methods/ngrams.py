"""Seen n-grams, for drafts that begin with the newest emitted token.

An n-gram is n tokens; the first is its key, the others are its value, which once followed the key.
The n-grams of a row stand in a log, an array in order of arrival. A search returns the newest
different values of a key. A dictionary of lists would keep the same ones if it dropped the value
not added or seen again for longest.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fastdec import struct

NONE = -1  # the key of a slot that holds no n-gram


@struct.pytree
class Log:
  """The n-grams of each row, the oldest first."""

  grams: Int[Array, 'b m l']  # one a column: key, then value
  length: Int[Array, ' b']  # slots that are written

  @classmethod
  def of(cls, grams: Int[Array, 'b m l'], slots: int) -> 'Log':
    """Returns a log that begins with these, and has this many more slots."""
    b, _, length = grams.shape
    grams = jnp.pad(grams, ((0, 0), (0, 0), (0, slots)), constant_values=NONE)
    return cls(grams, jnp.full(b, length, jnp.int32))

  def append(self, grams: Int[Array, 'b m w'], count: Int[Array, ' b']) -> 'Log':
    """Appends the first `count` of these. The key of the others must be NONE."""
    put = jax.vmap(
      lambda row, new, place: jax.lax.dynamic_update_slice_in_dim(row, new, place, axis=1)
    )
    return Log(put(self.grams, grams, self.length), self.length + count)

  def newest(
    self, key: Int[Array, ' b'], count: int
  ) -> tuple[Int[Array, 'b g c'], Bool[Array, 'b g']]:
    """Returns the newest different values of each row's key, newest first; g = count, c = m - 1.

    The second result is a mask of the known entries."""
    b, m, slots = self.grams.shape
    index = jnp.arange(slots, dtype=jnp.int32)[None]

    def is_unfinished(carry: tuple[Array, ...]) -> Bool[Array, '']:
      i, live, _, _ = carry
      return (i < count) & live.any()

    def find(carry: tuple[Array, ...]) -> tuple[Array, ...]:
      i, live, values, known = carry
      place = jnp.where(live, index, -1).max(axis=1)
      gram = jnp.take_along_axis(self.grams, jnp.maximum(place, 0)[:, None, None], axis=2)
      again = (self.grams == gram).all(axis=1)
      return (
        i + 1,
        live & ~again,
        values.at[:, i].set(gram[:, 1:, 0]),
        known.at[:, i].set(place >= 0),
      )

    live = self.grams[:, 0] == key[:, None]
    values, known = jnp.zeros((b, count, m - 1), jnp.int32), jnp.zeros((b, count), bool)
    _, _, values, known = jax.lax.while_loop(
      is_unfinished, find, (jnp.int32(0), live, values, known)
    )
    return values, known


def extend_values(
  values: tuple[Int[Array, 'b g c'], Int[Array, 'b h c']],
  known: tuple[Bool[Array, 'b g'], Bool[Array, 'b h']],
) -> tuple[Int[Array, 'b g c'], Bool[Array, 'b g']]:
  """Extends the first list by new entries of the second, as far as they fit."""
  both_bjc, known_bj = jnp.concatenate(values, axis=1), jnp.concatenate(known, axis=1)
  same = (both_bjc[:, :, None] == both_bjc[:, None]).all(-1) & known_bj[:, None]
  is_before = jnp.tri(known_bj.shape[1], k=-1, dtype=bool)[None]  # [i, j]: j stands before i
  wanted_bj = known_bj & ~(same & is_before).any(-1)
  order = jnp.argsort(~wanted_bj, axis=1, stable=True)[:, : known[0].shape[1]]
  merged = jnp.take_along_axis(both_bjc, order[..., None], axis=1)
  return merged, jnp.take_along_axis(wanted_bj, order, axis=1)


def cut_ngrams(tokens: Int[Array, 'b t'], length: Int[Array, ' b'], n: int) -> Int[Array, 'b n l']:
  """Returns all n-grams of the first `length` tokens of each row, l = max(t - n + 1, 0).

  n-grams that reach further have the key NONE."""
  slots = max(tokens.shape[1] - n + 1, 0)
  grams = jnp.stack([tokens[:, i : i + slots] for i in range(n)], axis=1)
  is_whole = jnp.arange(slots, dtype=jnp.int32)[None] + n <= length[:, None]
  return grams.at[:, 0].set(jnp.where(is_whole, grams[:, 0], NONE))


@struct.pytree
class Merged:
  """Chains below the root as one trie: of nodes with the same tokens, the first chain's is kept."""

  parents: Int[Array, 'b g c']  # node g * c + d is the d-th of chain g; -1: the root
  sees: Bool[Array, 'b n n']  # [i, j]: node i sees node j, an ancestor or itself; n = g * c
  is_kept: Bool[Array, 'b g c']


def merge(chains: Int[Array, 'b g c'], known: Bool[Array, 'b g']) -> Merged:
  """Merges chains into a trie. Nodes of unknown chains are not kept, and nothing hangs below them.

  Chains a b c and a d e: the first node of the second chain becomes the first chain's; d hangs
  below it.

      node     0  1  2   3  4  5
      token    a  b  c   a  d  e
      parent  -1  0  1  -1  0  4      3 is not kept
  """
  b, g, c = chains.shape
  # [b, g, other, c]
  same = jnp.cumprod(chains[:, :, None] == chains[:, None, :], axis=-1).astype(bool)
  same &= known[:, :, None, None] & known[:, None, :, None]
  # the first chain that begins with the same tokens
  first = jnp.argmax(same, axis=2).astype(jnp.int32)
  depth, own = jnp.arange(c, dtype=jnp.int32), jnp.arange(g, dtype=jnp.int32)
  node = first * c + depth[None, None]  # the one for the d-th token of each chain
  parents = jnp.pad(node[:, :, :-1], ((0, 0), (0, 0), (1, 0)), constant_values=-1)
  is_kept = known[:, :, None] & (first == own[None, :, None])

  is_above = depth[None, :] < depth[:, None]  # [d, e]: the e-th of a chain is above the d-th
  index = jnp.arange(g * c, dtype=jnp.int32)
  # each node's ancestors
  above = jnp.where(is_above[None, None], node[:, :, None, :], -1).reshape(b, g * c, c)
  sees = (above[..., None] == index[None, None, None]).any(axis=2) | jnp.eye(g * c, dtype=bool)[
    None
  ]
  return Merged(parents, sees, is_kept)
