"""The trees of Table 1's rules such as 'tree-32': the best tree of that size for a run's own heads.

Which nodes are best is counted on what the model itself writes, for sources of another split than
the one measured on.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from fastdec.data.text.packing import tokenise
from fastdec.evaluation.tree_calibration import written_ranks
from fastdec.evaluation.tree_growth import Tree, grow
from fastdec.struct import Bound

SENTENCES = 400  # whose translations are counted, at most


def other_split(split: str) -> str:
  """Where trees for cells of a split are grown."""
  return 'dev' if split == 'test' else 'test'


def sources_of(text: Any, split: str) -> list[list[int]]:
  """The ids of at most `SENTENCES` sources of a split, evenly spaced; without those that the model
  is too short for."""
  pairs = text.pairs(split)
  chosen = np.linspace(0, len(pairs) - 1, min(SENTENCES, len(pairs))).round().astype(int)
  tokens = tokenise([pairs[i] for i in chosen], text.tokenizer, text.model.max_positions)
  return [tokens.source[i].tolist() for i in range(len(tokens))]


def grown(
  target: Bound,
  heads: Bound,
  depth: int,
  sources: list[list[int]],
  nodes: Collection[int],
  max_len: int,
  rows: int,
) -> dict[int, Tree]:
  """The best tree of each size for the first `depth` heads; it is smaller where no other guess was
  ever right.

  Each is grown by itself, and so is the same whichever others are asked for; the text is written
  once.

  Args:
    target, heads: the model, and blockwise heads on it.
    sources: ids.
    nodes: the root included.
    max_len: of a translation.
    rows: sources translated at once.
  """
  drafting = Bound(*heads.module.drafting(heads.params, depth))
  ranks = written_ranks(target, drafting, sources, max_len, rows)
  return {count: grow(ranks, count) for count in nodes}
