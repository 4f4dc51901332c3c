"""Chain against tree on the same blockwise heads: what is gained by scoring several guesses for a place."""

from collections.abc import Iterable

from experiments.lab.cells import latest
from experiments.lab.report import MISSING, Entry, Table, text
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell
from experiments.papers.stern2018.entries import SPEED_NOTE, in_order

NOTES = (
  'Chain / tree: exact acceptance by the same heads, the tree the best of at most so many nodes, the root included, for'
  ' those heads, as counted on what the model writes for sources of another split.',
  'A chain has at most k nodes, so it is the longest measured one of at most k nodes and of no more than the tree may'
  ' have; none such with the same heads: a dash. Wider calls cannot help it.',
  f'{SPEED_NOTE} Same: outputs of the tree that are those of greedy decoding.',
)


def trees_table(cells: Iterable[BlockwiseCell]) -> Table:
  """Tokens a call and wall clock of every tree beside the chain that the same heads draft."""
  finished = [cell for cell in latest(cells).values() if cell.error is None]
  rows = []
  for tree in in_order(cell for cell in finished if cell.rule.startswith('tree-')):
    width, chain = int(tree.rule.removeprefix('tree-')), _chain(tree, finished)
    more = None
    if chain and chain.mean_block_size and tree.mean_block_size:
      more = 100 * (tree.mean_block_size / chain.mean_block_size - 1)
    rows.append(tuple(map(Entry, (
      str(tree.k), REGIMES[tree.regime],
      f'{chain.k if chain else MISSING} / {tree.conditions.get("tree_nodes", width)}',
      _both(chain, tree, 'mean_block_size', '.2f'), text(more, '+.1f'), _both(chain, tree, 'ms_per_output', '.1f'),
      _both(chain, tree, 'speedup', '.2f', '×'),
      text(None if tree.same_as_greedy is None else 100 * tree.same_as_greedy, '.1f')))))  # fmt: skip
  header = ('k', 'Training', 'Nodes', 'Tokens a call', 'More %', 'ms', 'Speed-up', 'Same %')
  return Table('Trees on blockwise heads', header, tuple(rows), NOTES)


def _chain(tree: BlockwiseCell, finished: Iterable[BlockwiseCell]) -> BlockwiseCell | None:
  """The longest chain by the heads of a tree that is no wider than it; heads that are nested serve several k."""
  most = min(tree.k, int(tree.rule.removeprefix('tree-')))
  same = lambda cell: (cell.regime, cell.split, cell.models) == (tree.regime, tree.split, tree.models)
  chains = [cell for cell in finished if cell.rule == 'exact' and 1 < cell.k <= most and same(cell)]
  return max(chains, key=lambda cell: cell.k, default=None)


def _both(chain: BlockwiseCell | None, tree: BlockwiseCell, name: str, form: str, unit: str = '') -> str:
  return ' / '.join(text(cell and getattr(cell, name), form, unit) for cell in (chain, tree))
