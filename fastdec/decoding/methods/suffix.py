"""Suffix decoding: trees of what followed the text's last tokens before, as likely as the counts.

This is SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975) with the suffixes of one text, the
prompt and the output (and the source, as in `methods.lookup`). For each length l, its last l tokens
are looked up, and what followed each earlier place of theirs is in a trie. A node's probability is

    places of the l tokens and of the path down to the node
    --------------------------------------------------------
    places of the l tokens, the text's own end included

A trie keeps at most `factor` * l nodes, the most probable ones, and none below `least`. Their sum
is how many of them the text will probably have next. The length of the largest sum drafts.

    text        a b c  a b d  a b c  a b           the last token, b, has 4 places, and c follows 2
    l = 1, 2    "b" or "a b" before                c 1/2   c a 1/2   c a b 1/2   d 1/4

`PromptLookup` copies from one place, however rare the continuation is. Counts tell a phrase that
always continues alike from a word with many continuations: long drafts follow the first only.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.decoding.methods.lookup import LONGEST, Searched, match_suffix
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Step
from fastdec.decoding.sampling import Sampling, check_sampling
from fastdec.decoding.settings import Whole, real, size
from fastdec.decoding.strategy import TREES, LoopStrategy, Sizes
from fastdec.decoding.topology import Topology
from fastdec.struct import Bound

# Places that count: those that agree longest with the text's end, and the latest of them.
PLACES = 64


@struct.pytree
class SuffixDrafter:
  """Drafter by counts. Its state is the text to search in."""

  factor: Float[Array, '']
  least: Float[Array, '']
  longest: int = struct.static()  # suffix looked for
  depth: int = struct.static()
  nodes: int = struct.static()  # with the root

  def init(self, target: Bound, prefill: Prefill) -> Searched:
    return Searched.start(target, prefill, self.depth + 1)

  def propose(
    self, target: Bound, state: Searched, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Searched]:
    tokens, parents, chances = jax.vmap(self.grow)(state)
    tree = Topology.from_parents(parents, acceptable=chances > 0)
    tree = dataclasses.replace(tree, max_depth=self.depth)
    return Draft(tokens, tree, chances=chances), state

  def observe(self, target: Bound, state: Searched, step: Step) -> Searched:
    return state.append(step)

  def grow(
    self, searched: Searched
  ) -> tuple[Int[Array, ' n'], Int[Array, ' n'], Float[Array, ' n']]:
    """Returns the tokens, the parents and the chances of one row's nodes; 0: no node is there."""
    tokens, root = searched.text.tokens, searched.text.length - 1

    # What follows each place, up to the end of its text. After a place of token i, slot i + 1 + d
    # has the token of depth d + 1.
    matched_t = match_suffix(searched, self.longest)
    slots = len(matched_t)
    order_t = matched_t * slots + jnp.arange(slots, dtype=jnp.int32)
    place_p = jax.lax.top_k(order_t, min(PLACES, slots))[1]
    matched_p = matched_t[place_p]
    drafted = min(self.nodes - 1, len(place_p) * self.depth)
    index_pd = place_p[:, None] + 1 + jnp.arange(self.depth, dtype=jnp.int32)[None]
    end_p = jnp.where(place_p < searched.begin, searched.source_length, root + 1)
    follow_pd = tokens.at[index_pd].get(mode='clip')
    exists_pd = (index_pd < end_p[:, None]) & (matched_p > 0)[:, None]

    # agree[p, q, d]: the same tokens follow both places, down to depth d + 1.
    agree_pqd = (follow_pd[:, None] == follow_pd[None]) & exists_pd[:, None] & exists_pd[None]
    agree_pqd = jnp.cumprod(agree_pqd, axis=-1).astype(bool)

    # Count, for each length of suffix, the places that have it and each node's path after it. The
    # first place of a node is its own, with the longest match of them.
    length_l = jnp.arange(1, self.longest + 1, dtype=jnp.int32)
    has_lq = matched_p[None] >= length_l[:, None]
    count_lpd = jnp.einsum('lq,pqd->lpd', has_lq.astype(jnp.float32), agree_pqd.astype(jnp.float32))
    is_first_pd = jnp.argmax(agree_pqd, axis=1) == jnp.arange(len(place_p))[:, None]
    is_node_lpd = has_lq[:, :, None] & (is_first_pd & exists_pd)[None]
    all_l = has_lq.sum(axis=1, dtype=jnp.float32) + 1

    # The most probable nodes of each length's trie. Parents come first, as counts never rise
    # with depth; then the first place.
    depth_d = jnp.arange(self.depth, dtype=jnp.float32)
    key_lpd = jnp.where(is_node_lpd, count_lpd * self.depth - depth_d[None, None], -jnp.inf)
    key_lk, node_lk = jax.lax.top_k(key_lpd.reshape(self.longest, -1), drafted)
    count_lk = jnp.take_along_axis(count_lpd.reshape(self.longest, -1), node_lk, axis=1)
    most_l = jnp.floor(self.factor * length_l.astype(jnp.float32) + 1e-6).astype(jnp.int32)
    is_kept_lk = (key_lk > -jnp.inf) & (jnp.arange(drafted)[None] < most_l[:, None])
    is_kept_lk &= count_lk >= self.least * all_l[:, None]

    # The longest of the lengths of the largest sum
    sum_l = jnp.where(is_kept_lk, count_lk, 0).sum(axis=1) / all_l
    best = self.longest - 1 - jnp.argmax(sum_l[::-1])
    place_k, depth_k = node_lk[best] // self.depth, node_lk[best] % self.depth
    is_kept_k, count_k = is_kept_lk[best], count_lk[best]

    # A node's parent has the first place of the path a level higher.
    above_k = jnp.argmax(agree_pqd[place_k, :, depth_k - 1], axis=1)
    is_parent_kj = (place_k[None] == above_k[:, None]) & (depth_k[None] == depth_k[:, None] - 1)
    is_parent_kj &= is_kept_k[None]
    parent_k = 1 + jnp.argmax(is_parent_kj, axis=1).astype(jnp.int32)
    parent_k = jnp.where(is_kept_k & (depth_k > 0), parent_k, 0)
    tokens_k = jnp.where(is_kept_k, follow_pd[place_k, depth_k], tokens[root])
    chances_k = jnp.where(is_kept_k, count_k / all_l[best], 0)

    # With the root, and with nodes that no text has
    tokens_n = jnp.full(self.nodes, tokens[root]).at[1 : 1 + drafted].set(tokens_k)
    parents_n = jnp.zeros(self.nodes, jnp.int32).at[1 : 1 + drafted].set(parent_k)
    chances_n = jnp.zeros(self.nodes, jnp.float32).at[1 : 1 + drafted].set(chances_k)
    return tokens_n, parents_n.at[0].set(-1), chances_n.at[0].set(1)


@struct.pytree
class Suffix(LoopStrategy):
  """Suffix decoding: drafts what the text went on with before, as far as counts say that it pays.

  A call verifies a tree of the likeliest continuations of the text's last tokens
  (`methods.suffix`). The text is the prompt, the output, and a source of the same vocabulary. It
  needs no training and is lossless: the output is that of greedy decoding or, with `sampling`, has
  the distribution of `Sample`.

  Args:
    longest: suffix looked for, 1 to 64 tokens.
    depth: tokens below the root, at most.
    nodes: of the tree, the root included, at least 2.
    factor: a suffix of l tokens drafts at most factor * l nodes (1 in the paper).
    least: probability of a node, by counts, from 0 to 1.
    sampling: how tokens are drawn, for which `decode` needs a key; None: greedy decoding.
  """

  longest: Whole = struct.static(default=16)
  depth: Whole = struct.static(default=8)
  nodes: Whole = struct.static(default=10)
  factor: Any = 4.0
  least: Any = 0.1
  sampling: Sampling | None = None
  joins = True

  def __post_init__(self) -> None:
    longest = size('longest', self.longest, 1, 'a length to look for, 1 or more', LONGEST)
    depth = size('depth', self.depth, 1, 'how many tokens deep drafts may be, 1 or more')
    nodes = size('nodes', self.nodes, 2, 'the nodes of a tree from 2, or decode by Greedy()')
    factor = real('factor', self.factor, 0.0, 64.0, 'nodes for a token matched, 0 to 64')
    least = real('least', self.least, 0.0, 1.0, 'a probability, 0 to 1')
    struct.assign(self, longest=longest, depth=depth, nodes=nodes, factor=factor, least=least)
    struct.assign(self, sampling=check_sampling(self.sampling))

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    return [dataclasses.replace(self, nodes=n) for n in nodes or TREES]

  @property
  def drafter(self) -> Drafter:
    return SuffixDrafter(self.factor, self.least, self.longest, self.depth, self.nodes)

  @property
  def most_accepted(self) -> int:
    return min(self.depth, self.nodes - 1)
