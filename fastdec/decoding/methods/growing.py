"""Trees that grow where the drafter is confident (EAGLE-2, Li et al. 2024, section 4).

Their parents are data, one tree for each row, in any batch and inside jit. A node's score is the
sum of log q on the path to it: the drafter's confidence that the whole path is right.

  start    the best w children of the root are level 1, and its frontier
  advance  each frontier node has its best w children; the best w of all are the next frontier
  finish   the best nodes - 1 of all candidates are kept, in the order in which they were found

A parent comes before its children, which never score higher, so no node is kept without its parent.
A child is kept only together with its whole path and with all nodes before its parent in the
frontier. If these are already nodes - 1, there is no need to look for the child. So in a small tree
the deeper frontiers are narrower than w (`frontier_width`).

JetSpec's tree (2026, arXiv 2606.18394) has `families`: all w children of a node enter together,
those of the likeliest nodes. Its n nodes are the families of e = ceil((n - 1) / w) nodes, so its
frontiers are the best e - l nodes of each level l.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.sampling import best, rank
from fastdec.decoding.settings import size
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.models.api import NO_PARENT

ROOT = 0  # the number of the root


@struct.pytree
class Growing:
  """A tree of some levels. The best nodes of the newest level, the frontier, are expanded next.

  Nodes are numbered in the order in which they are found. The order of expansion begins with the
  root, 0; the frontiers follow, level by level, each with its best node first. The e-th node in
  this order has the children 1 + e * width + r, where r is the rank. At width 2:

    expanded   root   1    2    5    3       level 1 is 1 and 2; 5 and 3 were the best of level 2
    children   1 2   3 4  5 6  7 8  9 10
  """

  tokens: Int[Array, 'b f']  # of the frontier, best first
  scores: Float[Array, 'b f']
  # the place of each node's parent in the frontier before; 0 at level 1: the root
  origin: Int[Array, 'b f']
  # numbers from the root's child down to each node of every frontier so far
  paths: tuple[Int[Array, 'b _ _'], ...]
  # tokens and scores of each level's candidates
  candidates: tuple[tuple[Int[Array, 'b _'], Float[Array, 'b _']], ...]
  width: int = struct.static()  # children of a node, and nodes of a frontier at most
  nodes: int = struct.static()  # of the finished tree, the root included
  families: bool = struct.static(default=False)

  @property
  def depth(self) -> int:
    """Number of levels."""
    return len(self.paths)

  @property
  def expanded(self) -> int:
    """Number of nodes in all frontiers but the newest, without the root."""
    return sum(path.shape[1] for path in self.paths[:-1])

  @property
  def sees(self) -> Bool[Array, 'b f s']:
    """Mask of a frontier node's ancestors and itself, among all s nodes of the frontiers so far.

    The s nodes are in the order of expansion, as in a cache of the frontiers.
    """
    expanded_bs = jnp.concatenate([path[..., -1] for path in self.paths], axis=1)
    return (self.paths[-1][:, :, None, :] == expanded_bs[:, None, :, None]).any(-1)


def frontier_width(level: int, width: int, nodes: int, families: bool = False) -> int:
  """Returns the number of nodes of a level whose children may be kept, at least 1.

  The f-th best node of level l comes with f - 1 better ones and l - 1 ancestors. With one child
  they are f + l nodes, and only nodes - 1 are kept.
  """
  if families:
    return max(1, min(width**level, count_families(width, nodes) - level))
  return max(1, min(width, nodes - 1 - level))


def count_families(width: int, nodes: int) -> int:
  """Returns the number of nodes with children, in a tree of families."""
  return -(-(nodes - 1) // width)


def start(
  log_q: Float[Array, 'b v'],
  width: int,
  nodes: int,
  ids: Int[Array, ' v'] | Int[Array, 'b 1 v'] | None = None,
  families: bool = False,
) -> Growing:
  """Makes level 1, the best children of the root.

  Args:
    log_q: log-probabilities of the token after the root; minus infinity for tokens that are never
      emitted.
    width: children of each node, and most nodes of each frontier.
    nodes: of the finished tree, the root included. The sizes must be possible (`check_sizes`).
    ids: the token of each entry of log_q, for all rows or, with an axis for nodes, for each; None:
      the indices. They must differ.
    families: see the top of this file.
  """
  # The root's score. Sums in bfloat16 would all tie.
  zero = jnp.zeros((len(log_q), 1), jnp.promote_types(log_q.dtype, jnp.float32))
  tokens_bw, scores_bw = _find_children(zero, log_q[:, None], width, ids)
  frontier = frontier_width(1, width, nodes, families)
  tokens_bf, scores_bf = tokens_bw[:, :frontier], scores_bw[:, :frontier]
  numbers = jnp.broadcast_to(1 + jnp.arange(tokens_bf.shape[1], dtype=jnp.int32), tokens_bf.shape)
  origin, first = jnp.zeros_like(tokens_bf), (tokens_bw, scores_bw)
  paths = (numbers[..., None],)
  return Growing(tokens_bf, scores_bf, origin, paths, (first,), width, nodes, families)


def advance(
  growing: Growing,
  log_q: Float[Array, 'b #f v'],
  ids: Int[Array, ' v'] | Int[Array, 'b #f v'] | None = None,
) -> Growing:
  """Adds one more level.

  Args:
    growing: as `start` or `advance` returned it.
    log_q: log-probabilities of the token after each node of the frontier, or the same for all.
    ids: as in `start`.
  """
  width = growing.width
  tokens_bc, scores_bc = _find_children(growing.scores, log_q, width, ids)
  frontier = frontier_width(growing.depth + 1, width, growing.nodes, growing.families)
  scores_bf, best_bf = rank(scores_bc, frontier)  # ties: the lowest number first
  origin_bf = best_bf // width

  # The paths of the new frontier. `first` is the number of the first candidate of this level.
  first = 1 + width * (1 + growing.expanded)
  above_bfl = jnp.take_along_axis(growing.paths[-1], origin_bf[..., None], axis=1)
  path = jnp.concatenate([above_bfl, first + best_bf[..., None]], axis=-1)
  return dataclasses.replace(
    growing,
    tokens=jnp.take_along_axis(tokens_bc, best_bf, axis=1),
    scores=scores_bf,
    origin=origin_bf,
    paths=(*growing.paths, path),
    candidates=(*growing.candidates, (tokens_bc, scores_bc)),
  )


def finish(
  growing: Growing, root: Int[Array, ' b']
) -> tuple[Int[Array, 'b n'], Topology, Float[Array, 'b n']]:
  """Returns tokens and topology of the root and the best nodes - 1 candidates, and their chances.

  A node's chance is q of the whole path to it.
  """
  width, depth, nodes = growing.width, growing.depth, growing.nodes
  tokens_by_level, scores_by_level = zip(*growing.candidates, strict=True)
  tokens_bc = jnp.concatenate(tokens_by_level, axis=1)
  scores_bc = jnp.concatenate(scores_by_level, axis=1)
  kept = jnp.sort(_keep(growing, scores_bc), axis=1)
  tokens_bn = jnp.concatenate([root[:, None], jnp.take_along_axis(tokens_bc, kept, axis=1)], axis=1)
  number_bn = jnp.pad(kept + 1, ((0, 0), (1, 0)), constant_values=ROOT)

  # The paths to all expanded nodes, padded with the root, which is above all others. From them, the
  # path to each kept node's parent.
  paths = [jnp.full((len(root), 1, depth), ROOT, jnp.int32)]
  for path in growing.paths[:-1]:
    paths.append(jnp.pad(path, ((0, 0), (0, 0), (0, depth - path.shape[-1]))))
  path_bed = jnp.concatenate(paths, axis=1)
  child_bn = jnp.maximum(number_bn - 1, 0)
  above_bnd = jnp.take_along_axis(path_bed, (child_bn // width)[..., None], axis=1)

  # Numbers grow along a path, so the parent is the largest one on it.
  is_root = number_bn == ROOT
  parent = above_bnd.max(-1)
  parents = (number_bn[:, None, :] < parent[:, :, None]).sum(-1, dtype=jnp.int32)
  is_above = (above_bnd[:, :, None, :] == number_bn[:, None, :, None]).any(-1)
  mask = is_above | jnp.eye(nodes, dtype=bool)[None]
  chances_bn = jnp.where(is_root, 1, jnp.exp(jnp.take_along_axis(scores_bc, child_bn, axis=1)))
  topology = Topology(
    parents=jnp.where(is_root, NO_PARENT, parents),
    ranks=child_bn % width,
    depths=mask.sum(-1, dtype=jnp.int32) - 1,
    mask=mask,
    acceptable=jnp.ones_like(is_root),
    max_depth=depth,
  )
  return tokens_bn, topology, chances_bn


def _keep(growing: Growing, scores_bc: Float[Array, 'b c']) -> Int[Array, 'b k']:
  """Returns the places of the candidates that are kept, the best first."""
  width, kept = growing.width, growing.nodes - 1
  if not growing.families:
    return rank(scores_bc, kept)[1]
  numbers = [path[..., -1] for path in growing.paths[:-1]]
  scores = [jnp.zeros_like(scores_bc[:, :1])]
  for number in numbers:
    scores.append(jnp.take_along_axis(scores_bc, number - 1, axis=1))
  parents = rank(jnp.concatenate(scores, axis=1), count_families(width, growing.nodes))[1]
  children = parents[..., None] * width + jnp.arange(width, dtype=jnp.int32)[None, None]
  return children.reshape(len(children), -1)[:, :kept]


def check_sizes(
  depth: Any, width: Any, nodes: Any, choices: int | None = None, families: bool = False
) -> tuple[int, int, int]:
  """Returns the sizes of a tree, as Python ints.

  Args:
    depth: of the deepest nodes; the root has depth 0.
    width: children of each expanded node, and expanded nodes of each level; 1: a chain.
    nodes: of the finished tree, the root included.
    choices: tokens that the drafter can choose among (None: enough).
    families: see the top of this file.

  Raises:
    UserError: no tree has these sizes.
  """
  depth = size('depth', depth, 1, 'how many tokens deep the draft may be, 1 or more')
  width = size('width', width, 1, 'how many children each node may have, 1 or more')
  nodes = size('nodes', nodes, 1, 'how many tokens a call may score, the root included')
  if choices is not None and width > choices:
    raise UserError(
      f'width={width} is not possible: this draft has {choices} candidates for each token, so give'
      f' at most {choices}'
    )
  if families:
    parents, levels = 1, range(1, min(depth, count_families(width, nodes)))
    parents += sum(frontier_width(level, width, nodes, families) for level in levels)
    if nodes < 2 or parents < count_families(width, nodes):
      raise UserError(
        f'nodes={nodes} is not possible: a tree of families has 2 nodes or more, and one of'
        f' depth={depth} and width={width} has fewer than {nodes}'
      )
  elif not fits(depth, width, nodes):
    most = 1 + width + (depth - 1) * width**2
    raise UserError(
      f'nodes={nodes} is not possible: with the root, a tree of depth={depth} and width={width} has'
      f' at least {depth + 1} and at most {most} nodes'
    )
  return depth, width, nodes


def fits(depth: int, width: int, nodes: int) -> bool:
  """True if there is a tree of these sizes."""
  return depth < nodes <= 1 + width + (depth - 1) * width**2


def take_ids(
  ids: Int[Array, ' v'] | Int[Array, 'b #p v'] | None, index: Int[Array, 'b p w']
) -> Int[Array, 'b p w']:
  """Returns the tokens at these indices of `ids`, shared or of each node; None: the indices."""
  if ids is None:
    return index
  if ids.ndim == 1:
    return ids[index]
  return jnp.take_along_axis(ids, index, axis=-1)


def _find_children(
  scores: Float[Array, 'b p'],
  log_q: Float[Array, 'b #p v'],
  width: int,
  ids: Int[Array, ' v'] | Int[Array, 'b #p v'] | None,
) -> tuple[Int[Array, 'b c'], Float[Array, 'b c']]:
  """Returns tokens and scores of the best children of each node, side by side: c = p * width."""
  best_bpw, index_bpw = best(log_q, width)
  # Even if log_q is NaN, or above 0 by rounding, a child must not score higher than its parent.
  best_bpw = jnp.where(jnp.isnan(best_bpw), -jnp.inf, jnp.minimum(best_bpw, 0)).astype(scores.dtype)
  scores_bpw = scores[..., None] + best_bpw
  tokens_bpw = jnp.broadcast_to(take_ids(ids, index_bpw), scores_bpw.shape)
  return tokens_bpw.reshape(len(scores), -1), scores_bpw.reshape(len(scores), -1)
