"""Decoded sentences with their blocks: what each call of the target emitted."""

import itertools
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import rich.console
import rich.text

from experiments.lab.cells import latest
from experiments.lab.show import blocks_of, marked
from experiments.papers.stern2018.cells import REGIMES, BlockwiseCell


def print_examples(
  console: rich.console.Console, measuring: Any, workdir: pathlib.Path, k: int, count: int = 3
) -> None:
  """A few sources of a split, and below each its exact translation block by block."""
  out, tokenizer = measuring.translate(workdir, k), measuring.text.tokenizer
  for i in np.linspace(0, len(out.lines) - 1, count + 2).round().astype(int)[1:-1]:
    console.print(tokenizer.decode(measuring.tokens.source[i].tolist()))
    console.print('  ', marked(blocks_of(tokenizer, out.tokens[i], out.block_sizes[i])), sep='')


def in_short(cells: Iterable[BlockwiseCell]) -> str | None:
  """The fastest of the cells whose output is greedy decoding's, in one sentence; None where none
  was timed."""
  found = []
  for cell in latest(cells).values():
    is_exact = cell.rule == 'exact' or cell.rule.startswith('tree-')
    if cell.error is None and cell.k > 1 and is_exact and cell.speedup is not None:
      found.append((cell.speedup, cell))
  if not found:
    return None
  speedup, best = max(found, key=lambda pair: pair[0])
  return (
    f'{best.mean_block_size:.1f} tokens a call, {speedup:.2f} times as fast as greedy decoding of'
    ' the same model, '
    f'{best.same_as_greedy:.0%} of the outputs the same (k = {best.k},'
    f' {REGIMES[best.regime].lower()}, {best.rule})'
  )


def worked_example(
  measuring: Any, workdir: pathlib.Path, k: int, sentence: str | None = None
) -> tuple[str, list[list[str]]]:
  """A source and its exact translation: the pieces of the first token, then those that each call
  accepted.

  The source is the sentence given, or, of the longer half of the split's translations, that with
  the longest blocks.
  """
  out, tokenizer = measuring.translate(workdir, k, sentence), measuring.text.tokenizer
  tokens_per_call = out.lengths / np.maximum((out.block_sizes > 0).sum(axis=1), 1)
  chosen = int(np.where(out.lengths >= np.median(out.lengths), tokens_per_call, 0).argmax())
  source = (
    tokenizer.decode(measuring.tokens.source[chosen].tolist()) if sentence is None else sentence
  )
  pieces = (
    piece.replace('▁', ' ')
    for piece in tokenizer.pieces(out.tokens[chosen][: out.lengths[chosen]].tolist())
  )
  sizes = [1, *(int(size) for size in out.block_sizes[chosen] if size)]
  return source, [list(itertools.islice(pieces, size)) for size in sizes]
