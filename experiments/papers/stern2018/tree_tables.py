"""Chain against tree on the same blockwise heads: what is gained by scoring several guesses for a
place."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from experiments.lab.cells import latest
from experiments.lab.report import MISSING, Column, Drawn, Table, between, text
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell
from experiments.papers.stern2018.entries import SAME, SPEED_NOTE, in_order

NOTES = (
  'Chain / tree: exact acceptance by the same heads. The tree is the best one for those heads of at'
  ' most this many'
  ' nodes, the root included, as counted on what the model writes for sources of another split.',
  'Each tree is compared with the longest measured chain on the same heads that has no more nodes'
  ' than the tree; a dash'
  ' if there is none. A chain has at most k nodes, so wider calls cannot help it.',
  SPEED_NOTE,
  'In parentheses or below, the least and the largest of the tree. Same: outputs of the tree that'
  ' are those of greedy'
  ' decoding.',
)


class Pair(NamedTuple):
  """A tree, and the chain that it is compared with."""

  chain: BlockwiseCell | None
  tree: BlockwiseCell

  def nodes(self) -> str:
    width = self.tree.rule.removeprefix('tree-')
    return (
      f'{self.chain.k if self.chain else MISSING} / {self.tree.conditions.get("tree_nodes", width)}'
    )

  def more(self) -> float | None:
    """By how much more tokens a call of the tree writes, per cent."""
    if not (self.chain and self.chain.mean_block_size and self.tree.mean_block_size):
      return None
    return 100 * (self.tree.mean_block_size / self.chain.mean_block_size - 1)

  def both(self, name: str, form: str, unit: str = '') -> str:
    return ' / '.join(text(cell and getattr(cell, name), form, unit) for cell in self)


TREES = Table(
  'Trees on blockwise heads',
  (
    Column('k', lambda pair: pair.tree.k),
    Column('Training', lambda pair: REGIMES[pair.tree.regime]),
    Column('Nodes', Pair.nodes),
    Column('Tokens a call', lambda pair: pair.both('mean_block_size', '.2f')),
    Column('More %', Pair.more, '+.1f'),
    Column('ms', lambda pair: pair.both('ms_per_output', '.1f')),
    Column(
      'Speed-up',
      lambda pair: pair.both('speedup', '.2f', '×'),
      beside=lambda pair: between(pair.tree.spread),
    ),
    dataclasses.replace(SAME, cell=lambda pair: pair.tree),
  ),
  NOTES,
)


def trees_table(cells: Iterable[BlockwiseCell]) -> Drawn:
  """Tokens a call and wall clock of every tree beside the chain that the same heads draft."""
  finished = [cell for cell in latest(cells).values() if cell.error is None]
  trees = in_order(cell for cell in finished if cell.rule.startswith('tree-'))
  return TREES.of(Pair(_chain(tree, finished), tree) for tree in trees)


def _chain(tree: BlockwiseCell, finished: Iterable[BlockwiseCell]) -> BlockwiseCell | None:
  """The longest chain by the heads of a tree that is no wider than it; heads that are nested serve
  several k."""
  most = min(tree.k, int(tree.rule.removeprefix('tree-')))

  def same(cell):
    return (cell.regime, cell.split, cell.models) == (tree.regime, tree.split, tree.models)

  chains = [cell for cell in finished if cell.rule == 'exact' and 1 < cell.k <= most and same(cell)]
  return max(chains, key=lambda cell: cell.k, default=None)
