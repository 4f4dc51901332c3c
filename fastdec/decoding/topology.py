"""The tree of a draft's nodes. A chain is a tree; greedy decoding is the one-node tree.

Static trees are NumPy arrays: they are known when the program is compiled. In dynamic ones, parents
are data, with one tree for each row; the loop computes their other arrays by the same formulas.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Shaped

from fastdec.decoding.settings import MOST_NODES, is_whole, size
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.models.api import NO_PARENT, Nodes, causal

NO_NODE = -1  # pads `Topology.paths`


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
  """A draft's tree. Static trees are hashable, and equal if all their arrays are.

  from_choices([[0], [1], [0, 0]]) -> nodes root, a, b, aa
    parents [-1, 0, 0, 1]    depths [0, 1, 1, 2]    ranks [0, 0, 1, 0]
    paths   [[0, 2, -1],     one row a leaf, from the root down
             [0, 1, 3]]
  """

  parents: Int[Array | np.ndarray, '*b n']
  ranks: Int[Array | np.ndarray, '*b n']  # 0: the drafter's first choice
  depths: Int[Array | np.ndarray, '*b n']
  mask: Bool[Array | np.ndarray, '*b n n']  # mask[i, j]: i sees j, an ancestor or itself
  # false: scored, never accepted; may be data even in a static tree
  acceptable: Bool[Array | np.ndarray, '*rows n']
  max_depth: int

  @classmethod
  def from_parents(cls, parents: Any, ranks: Any = None, acceptable: Any = None) -> 'Topology':
    """Makes the tree (or one tree a row) from each node's parent; node 0 is the root.

    Args:
      parents: int[n] (NumPy or a list: static), or int[b, n] (data). NO_PARENT, which is -1, for
        the root; for each other node the number of a node before it.
      ranks: the same shape; None: siblings are numbered from 0 in their order. Siblings of a static
        tree must have different ranks: with equal ranks they would be the same token, and a rule
        that draws would draw below both and keep the longer path.
      acceptable: bool, the same shape; None: all true. The root always is.

    Raises:
      UserError: static parents that do not make a tree, or static siblings of one rank.
    """
    if isinstance(parents, np.ndarray | list | tuple):
      parents = _check_parents(parents)
    xp = np if isinstance(parents, np.ndarray) else jnp
    parents = parents.astype(np.int32)
    n = parents.shape[-1]
    rows = (1,) * (parents.ndim - 1)

    # A node sees itself and its parent; each product doubles how far up it sees. Products of floats
    # are an order of magnitude faster than those of integers. adjacent[i, j]: j is i's parent.
    adjacent = xp.arange(n, dtype=np.int32).reshape(*rows, 1, n) == parents[..., None]
    mask = adjacent | xp.eye(n, dtype=bool).reshape(*rows, n, n)
    for _ in range(max(n - 2, 0).bit_length()):
      steps = mask.astype(np.float32)
      mask = steps @ steps > 0
    depths = mask.sum(-1, dtype=np.int32) - 1
    deepest = int(np.max(depths)) if isinstance(parents, np.ndarray) else n - 1

    if ranks is None:  # is_before[i, j]: j is before i
      is_before = np.tri(n, k=-1, dtype=bool).reshape(*rows, n, n)
      is_sibling = parents[..., :, None] == parents[..., None, :]
      ranks = (is_before & is_sibling).sum(-1, dtype=np.int32)
    ranks = xp.asarray(ranks, np.int32)
    if isinstance(ranks, np.ndarray):
      _check_ranks(parents, ranks)

    if acceptable is None:
      acceptable = xp.ones_like(parents, dtype=bool)
    elif isinstance(acceptable, list | tuple):
      acceptable = np.asarray(acceptable, bool)
    if acceptable.shape[-1:] != (n,):
      raise UserError(
        f'acceptable has shape {list(acceptable.shape)}: give one for each of the {n} nodes'
      )
    return cls(parents, ranks, depths, mask, acceptable, deepest)

  @classmethod
  def chain(cls, n: int) -> 'Topology':
    """Makes the root and n - 1 drafts, one below the other."""
    return cls.from_parents(causal(n).parents)

  @classmethod
  def from_choices(cls, choices: Sequence[Sequence[int]]) -> 'Topology':
    """Makes the tree of Medusa's `choices`: a path of ranks for each node but the root.

    The root is the first node. The others are sorted by depth, then by path.

    >>> tree = Topology.from_choices([[0], [1], [0, 0]])
    >>> tree.parents.tolist(), tree.depths.tolist()
    ([-1, 0, 0, 1], [0, 1, 1, 2])
    >>> tree.paths.tolist()
    [[0, 2, -1], [0, 1, 3]]

    Raises:
      UserError: something else than a path of ranks, a path without its parent, or the same path
        twice.
    """
    paths = sorted(_check_paths(choices), key=lambda path: (len(path), path))
    index: dict[tuple[int, ...], int] = {(): 0}
    for path in paths:
      if path in index:
        raise UserError(f'choice {quote(list(path))} is listed twice: list each node once')
      if path[:-1] not in index:
        raise UserError(
          f'choice {quote(list(path))} has no parent: list {quote(list(path[:-1]))} too'
        )
      index[path] = len(index)
    parents = [NO_PARENT] + [index[path[:-1]] for path in paths]
    ranks = [0] + [path[-1] for path in paths]
    return cls.from_parents(np.array(parents, np.int32), np.array(ranks, np.int32))

  @property
  def n(self) -> int:
    """Number of nodes, the root included."""
    return self.parents.shape[-1]

  @property
  def is_static(self) -> bool:
    return isinstance(self.parents, np.ndarray)

  @functools.cached_property
  def is_chain(self) -> bool:
    """True if it is known at compile time that each node j is the child of node j - 1."""
    return self.is_static and bool((self.parents == causal(self.n).parents).all())

  @property
  def nodes(self) -> Nodes:
    """The tree in the form that models read."""
    return causal(self.n) if self.is_chain else Nodes(self.parents, self.depths, self.mask)

  @functools.cached_property
  def paths(self) -> Int[np.ndarray, 'leaves m']:
    """Node indices from the root to each leaf, padded with NO_NODE; static trees only."""
    leaves = np.setdiff1d(np.arange(self.n), self.parents)
    paths = np.full((len(leaves), self.max_depth + 1), NO_NODE, np.int32)
    for row, leaf in zip(paths, leaves, strict=True):
      ancestors = np.flatnonzero(self.mask[leaf])
      row[self.depths[ancestors]] = ancestors
    return paths

  def path_to(self, node: Int[Array, ' b']) -> Int[Array, 'b m']:
    """Returns the nodes from the root down to each row's `node`, then 0; m = max_depth + 1."""
    mask = jnp.asarray(self.mask)
    mask_bn = mask[node] if mask.ndim == 2 else take_node(mask, node)
    depths_bn = jnp.broadcast_to(self.depths, mask_bn.shape)
    depth_m = jnp.arange(self.max_depth + 1, dtype=jnp.int32)
    index_n = jnp.arange(self.n, dtype=jnp.int32)
    at_depth_bmn = mask_bn[:, None] & (depths_bn[:, None] == depth_m[None, :, None])
    return jnp.where(at_depth_bmn, index_n[None, None], 0).sum(-1, dtype=jnp.int32)

  def _key(self) -> tuple[Any, ...]:
    return (self.n, *(x.tobytes() for x in (self.parents, self.ranks, self.acceptable)))

  def __eq__(self, other: object) -> bool:
    if not (isinstance(other, Topology) and self.is_static and other.is_static):
      return False
    return self._key() == other._key()

  def __hash__(self) -> int:
    if not (self.is_static and isinstance(self.acceptable, np.ndarray)):
      raise TypeError('a tree that is data cannot be a static argument')
    return hash(self._key())


def _check_paths(choices: Any) -> list[tuple[int, ...]]:
  """Checks that a tree's choices are paths of ranks, and returns them."""
  if not isinstance(choices, Iterable) or isinstance(choices, str):
    raise UserError(
      f'{quote(choices)} is not a tree: give paths of ranks, such as [[0], [0, 0], [1]]'
    )
  paths = []
  for choice in itertools.islice(choices, MOST_NODES):
    is_list = isinstance(choice, Iterable) and not isinstance(choice, str)
    ranks = list(choice) if is_list else []
    if not ranks or not all(is_whole(rank, 0, 'iu') for rank in ranks):
      raise UserError(
        f'choice {quote(choice)} is not a path of ranks: give a list of one or more numbers from 0'
      )
    paths.append(tuple(map(int, ranks)))
  size('nodes', 1 + len(paths), 1, 'the nodes of a tree')
  return paths


def _check_parents(parents: Any) -> np.ndarray:
  """Returns the parents of a static tree; raises UserError unless they make a tree."""
  array = np.asarray(parents)
  size('nodes', array.size, 0, 'the nodes of a tree')
  is_tree = array.ndim == 1 and array.size > 0 and np.issubdtype(array.dtype, np.integer)
  if is_tree:
    is_before = array < np.arange(array.size)
    is_tree = array[0] == NO_PARENT and bool((array[1:] >= 0).all() and is_before.all())
  if not is_tree:
    raise UserError(
      f'parents={quote(array.tolist())} do not make a tree: give -1 for node 0, the root, and for'
      ' each other node the number of a node before it'
    )
  return array


def _check_ranks(parents: Int[np.ndarray, ' n'], ranks: Int[np.ndarray, ' _']) -> None:
  """Raises UserError unless each node has a rank, and siblings have different ranks."""
  places = set(zip(parents.tolist(), ranks.tolist(), strict=False))
  if ranks.shape != parents.shape or ranks.min() < 0 or len(places) < parents.size:
    raise UserError(
      f'ranks={quote(ranks.tolist())} of parents={quote(parents.tolist())} are not possible:'
      ' give each of the nodes below one parent another rank from 0 up, or none at all'
    )


def take_node(x_bn: Shaped[Array, 'b n ...'], node: Int[Array, ' b']) -> Shaped[Array, 'b ...']:
  """Returns x_bn[b, node[b]] for every row."""
  return jnp.take_along_axis(x_bn, node.reshape(-1, *([1] * (x_bn.ndim - 1))), axis=1)[:, 0]


def with_rows(x: Shaped[Array | np.ndarray, '...'], rank: int) -> Shaped[Array, '...']:
  """Gives a topology's array `rank` axes: a new first one of length 1 if all rows share it."""
  return jnp.asarray(x if x.ndim == rank else x[None])
